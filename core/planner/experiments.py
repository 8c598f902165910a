"""Experiments E1 to E3 of SQUIRO VII as data: instances, arms and figures. `reproduction` writes them up.

What the paper leaves open is chosen here and printed in the report: E2's tier mix and loads, E1's pools and scores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qtandem.core.planner.checker import check
from qtandem.core.planner.generate import Parameters, generate
from qtandem.core.planner.instance import Instance
from qtandem.core.planner.kept import Figures, Kept
from qtandem.core.planner.objective import objective
from qtandem.core.planner.plan import Plan
from qtandem.core.planner.solve import solve

Say = Callable[[str], None]

REGIMES = {
    "underloaded": (0.44, 0.49),
    "balanced": (0.76, 0.82),
    "packed": (0.90, 0.95),
    "overloaded": (1.40, 1.55),
}
E2_BASE = Parameters(
    tiers=(0.48, 0.28, 0.15, 0.09),
    security=(1.0,),
    pinned=0.05,
    gpu_nodes=0.0,
    gangs=0.0,
    spread=0.8,
    largest=0.5,
)
E2_NODES = (20, 40)
E2_WORKLOADS_A_NODE = 8.0

E1_BASE = Parameters(
    nodes=50,
    workloads=150,
    tiers=(0.0, 0.6, 0.4, 0.0),
    load=(0.52, 0.58),
    security=(1.0,),
    pinned=0.0,
    gpu_nodes=0.0,
    gangs=0.0,
    spread=0.5,
    largest=0.5,
)
# Research, enterprise and regulated work need 0, 4 and 10 of the 10 checks.
E1_CHECKS = (0, 4, 10)
E1_REGULATED = (0.18, 0.25)
E1_ENTERPRISE = 0.30
E1_MARGIN = 0.04
E1_SCORE = (53.0, 1.4, 8.0)
E1_STRINGENCY = (0.0, 45.0, 85.0)
E1_THETA, E1_NU = 0.5, 0.5
E1_LAMBDA = 5.0

E3_SIZES = ((10, 53), (25, 133), (50, 267), (75, 400))


def figures(instance: Instance, plan: Plan) -> Figures:
    used = set(plan.placement.values())
    nodes = [n for n in instance.nodes if n.name in used]
    return Figures(
        admission=len(plan.placement) / len(instance.workloads),
        nodes=len(nodes),
        cost=sum(n.cost for n in nodes),
        energy=sum(n.power for n in nodes) / 1000 * instance.interval_h,
        seconds=plan.seconds,
        gap=plan.gap,
        proven=plan.proven,
        load=round(os.getloadavg()[0], 2),
    )


def _solved(instance: Instance, name: str, engine: str, limit_s: float, workers: int = 0) -> Plan:
    """A checked plan; without `workers` work is counted instead of time, so that it is the same on any machine."""
    goal = objective(name, lam=E1_LAMBDA) if name == "regulated" else objective(name)
    plan = solve(instance, goal, engine=engine, limit_s=limit_s, workers=workers or 1, deterministic=not workers)
    faults = check(instance, goal, plan)
    if faults:
        raise AssertionError(f"{engine}: {faults[0]}")
    return plan


def e2(seeds: int, limit_s: float, say: Say, kept: Kept) -> dict[str, dict[str, list[Figures]]]:
    """Regime to arm to figures of each seed: greedy, performance, balanced. Deterministic."""
    arms = {
        "greedy": ("balanced", "least-allocated"),
        "performance": ("performance", "exact"),
        "balanced": ("balanced", "exact"),
    }
    out: dict[str, dict[str, list[Figures]]] = {}
    for regime, load in REGIMES.items():
        out[regime] = {arm: [] for arm in arms}
        for seed in range(seeds):
            say(f"E2 {regime} {seed + 1}/{seeds}")
            instance = generate(e2_parameters(seed, load), seed)
            for arm, (goal, engine) in arms.items():

                def measure(goal: str = goal, engine: str = engine, instance: Instance = instance) -> Figures:
                    return figures(instance, _solved(instance, goal, engine, limit_s))

                out[regime][arm].append(kept.figures(f"E2 {regime} {arm} {seed} {limit_s:g}", measure))
    return out


def e2_parameters(seed: int, load: tuple[float, float]) -> Parameters:
    nodes = int(np.random.default_rng(seed).integers(E2_NODES[0], E2_NODES[1] + 1))
    workloads = round(nodes * E2_WORKLOADS_A_NODE * np.mean(load))
    return replace(E2_BASE, nodes=nodes, workloads=workloads, load=load)


def e1(seeds: int, limit_s: float, say: Say, kept: Kept) -> dict[str, list[Figures]]:
    """Arm to figures of each seed: blind, labels, hard-only, hard and soft. Deterministic."""
    arms = {
        "blind": ("balanced", "least-allocated"),
        "labels": ("balanced", "least-allocated"),
        "hard-only": ("balanced", "exact"),
        "hard+soft": ("regulated", "exact"),
    }
    out: dict[str, list[Figures]] = {arm: [] for arm in arms}
    for seed in range(seeds):
        say(f"E1 {seed + 1}/{seeds}")
        instance = e1_instance(seed)
        blind = replace(instance, workloads=tuple(replace(w, posture=0.0) for w in instance.workloads))
        for arm, (goal, engine) in arms.items():
            masked = blind if arm == "blind" else instance

            def measure(
                goal: str = goal, engine: str = engine, instance: Instance = instance, masked: Instance = masked
            ) -> Figures:
                plan = _solved(masked, goal, engine, limit_s)
                return _secured(instance, plan, figures(instance, plan))

            out[arm].append(kept.figures(f"E1 {arm} {seed} {limit_s:g}", measure))
    return out


def e1_instance(seed: int) -> Instance:
    """Posture is the number of checks that a node passes, or a workload needs; risk is 1 - Phi/100 (eq. 21-24)."""
    rng = np.random.default_rng([seed, 1])
    base = generate(E1_BASE, seed)
    shares = _profile_shares(rng)
    profile = rng.choice(3, size=len(base.workloads), p=shares)
    demand, cap = base.demand[:, 0].astype(float), base.capacity[:, 0].astype(float)
    passed = np.zeros(len(base.nodes), dtype=int)
    order, filled = rng.permutation(len(base.nodes)), 0.0
    for j in order:
        share = filled / cap.sum()
        strict = demand[profile == 2].sum() / demand.sum() + E1_MARGIN
        middle = demand[profile >= 1].sum() / demand.sum() + 2 * E1_MARGIN
        passed[j] = 10 if share < strict else int(rng.integers(4, 10)) if share < middle else int(rng.integers(0, 4))
        filled += cap[j]
    score = np.clip(E1_SCORE[0] + E1_SCORE[1] * passed + rng.normal(0, E1_SCORE[2], size=len(passed)), 0, 100)
    needs = np.array(E1_CHECKS)[profile]
    coverage = 100 - 10.0 * np.maximum(0, needs[:, None] - passed[None, :])
    pressure = E1_THETA * np.maximum(0, np.array(E1_STRINGENCY)[profile][:, None] - score[None, :])
    fit = np.clip(E1_NU * coverage + (1 - E1_NU) * score[None, :] - pressure, 0, 100)
    return replace(
        base,
        nodes=tuple(replace(n, posture=float(c)) for n, c in zip(base.nodes, passed, strict=True)),
        workloads=tuple(
            replace(w, posture=float(n), risk=i) for i, (w, n) in enumerate(zip(base.workloads, needs, strict=True))
        ),
        risk=tuple(tuple(row) for row in (1 - fit / 100).round(4).tolist()),
    )


def _profile_shares(rng: np.random.Generator) -> list[float]:
    regulated = float(rng.uniform(*E1_REGULATED))
    return [1 - E1_ENTERPRISE - regulated, E1_ENTERPRISE, regulated]


def _secured(instance: Instance, plan: Plan, figures: Figures) -> Figures:
    nodes = instance.node_index
    placed = [w for w in instance.workloads if w.name in plan.placement]
    kept = [instance.nodes[nodes[plan.placement[w.name]]].posture >= w.posture for w in placed]
    strict = [ok for w, ok in zip(placed, kept, strict=True) if w.posture >= E1_CHECKS[2]]
    risks = [instance.risk[w.risk or 0][nodes[plan.placement[w.name]]] for w in placed]
    return replace(
        figures,
        kept=float(np.mean(kept)),
        kept_regulated=float(np.mean(strict)) if strict else 1.0,
        score=100 * (1 - float(np.mean(risks))),
    )


def e3(
    seeds: int, peer_seeds: int, limit_s: float, workers: int, say: Say, kept: Kept
) -> dict[int, dict[str, list[Figures]]]:
    """Size to engine to figures, in time: greedy and ours on all seeds, the paper's formulation on the first few."""
    out: dict[int, dict[str, list[Figures]]] = {}
    for nodes, workloads in E3_SIZES:
        out[nodes] = {"greedy": [], "ours": [], "paper": []}
        for seed in range(seeds):
            say(f"E3 {nodes} nodes {seed + 1}/{seeds}")
            instance = generate(Parameters(nodes=nodes, workloads=workloads), seed)
            engines = {"greedy": "least-allocated", "ours": "exact"} | ({"paper": "paper"} if seed < peer_seeds else {})
            for arm, engine in engines.items():

                def measure(engine: str = engine, instance: Instance = instance) -> Figures:
                    return figures(instance, _solved(instance, "balanced", engine, limit_s, workers))

                out[nodes][arm].append(kept.figures(f"E3 {nodes} {arm} {seed} {limit_s:g} {workers}", measure))
    return out

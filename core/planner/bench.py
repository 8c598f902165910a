"""`qtandem plan bench`: generated instances, our engine and the paper's formulation in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from qtandem.core.planner.checker import check
from qtandem.core.planner.generate import generate, preset
from qtandem.core.planner.instance import Instance, Workload
from qtandem.core.planner.lookup import Lookup
from qtandem.core.planner.objective import Objective, objective
from qtandem.core.planner.plan import Plan
from qtandem.core.planner.prepare import prepare
from qtandem.core.planner.solve import replan, solve


@dataclass(frozen=True, slots=True)
class Result:
    """One engine on one instance. `faults` is what the independent checker found.

    Gaps are on cost where everybody is admitted, else on admission.
    """

    family: str
    nodes: int
    workloads: int
    seed: int
    engine: str
    admitted: int
    admission_bound: int
    cost: int
    cost_bound: int
    gap: float
    everybody: bool
    proven: bool
    proven_s: float | None
    first_s: float | None
    one_percent_s: float | None
    seconds: float
    gaps: dict[str, float]
    faults: tuple[str, ...]


def goal_of(family: str) -> Objective:
    return objective("regulated" if family == "risk" else "balanced")


def measure(
    family: str, nodes: int, workloads: int, seed: int, limit_s: float, *, engine: str = "exact", workers: int = 2
) -> Result:
    """Generate one instance, plan it, check the plan."""
    instance, goal = generate(preset(family, nodes, workloads), seed), goal_of(family)
    began = time.monotonic()
    plan = solve(instance, goal, engine=engine, limit_s=limit_s, seed=seed + 1, workers=workers)
    seconds = time.monotonic() - began
    return result(family, instance, goal, seed, plan, seconds)


def result(family: str, instance: Instance, goal: Objective, seed: int, plan: Plan, seconds: float) -> Result:
    everybody = len(plan.placement) == len(instance.workloads)
    gaps = [(m.seconds, m.gap if everybody else m.admission_gap) for m in plan.history]
    within = [at for at, gap in gaps if gap <= 0.01]
    final = plan.gap if everybody else plan.admission_gap
    return Result(
        family=family,
        nodes=len(instance.nodes),
        workloads=len(instance.workloads),
        seed=seed,
        engine=plan.engine,
        admitted=plan.admitted,
        admission_bound=plan.admission_bound,
        cost=plan.cost,
        cost_bound=plan.cost_bound,
        gap=final,
        everybody=everybody,
        proven=plan.proven,
        proven_s=plan.proven_at(),
        first_s=plan.first_s,
        one_percent_s=within[0] if within and final <= 0.01 else None,
        seconds=seconds,
        gaps={f"{t:g}": _at(gaps, t) for t in (1, 2, 5, 10, 15, 30)},
        faults=tuple(check(instance, goal, plan)),
    )


def _at(gaps: list[tuple[float, float]], seconds: float) -> float:
    """The gap that was known then; 1 before the first plan."""
    known = [gap for at, gap in gaps if at <= seconds]
    return known[-1] if known else 1.0


def run(
    family: str, nodes: int, workloads: int, seeds: int, limit_s: float, *, peer: bool = True, workers: int = 2
) -> Iterator[Result]:
    """Our engine, the greedy baselines, and the paper's formulation on the same seeds."""
    prepare()
    for seed in range(seeds):
        for engine in ("least-allocated", "first-fit", "exact", *(("paper",) if peer else ())):
            yield measure(family, nodes, workloads, seed, limit_s, engine=engine, workers=workers)


def summary(results: list[Result], engine: str) -> dict[str, float | None]:
    """Medians over the seeds of one engine."""
    mine = [r for r in results if r.engine in (engine, f"greedy {engine}")]
    if not mine:
        return {}
    return {
        "runs": len(mine),
        "proven": sum(r.proven for r in mine) / len(mine),
        "proven_s": statistics.median([r.seconds if r.proven_s is None else r.proven_s for r in mine]),
        "first_s": statistics.median([r.seconds if r.first_s is None else r.first_s for r in mine]),
        "gap_median": statistics.median([r.gap for r in mine]),
        "gap_worst": max(r.gap for r in mine),
        "cost": statistics.mean([r.cost for r in mine]),
        "admitted": statistics.mean([r.admitted for r in mine]),
        "overrun": max(0.0, max(r.seconds for r in mine)),
        "faults": sum(len(r.faults) for r in mine),
    }


def lookup_times(nodes: int, seed: int = 0, asks: int = 4000) -> tuple[float, float]:
    """p50 and p99 in seconds of one job against a loaded cluster, half of the jobs with a backend."""
    return _lookup_times(nodes, round(nodes * 8), seed, asks=asks)


def _lookup_times(nodes: int, workloads: int, seed: int, *, asks: int) -> tuple[float, float]:
    parameters = replace(preset("unique", nodes, workloads), quantum=workloads // 2, slots=(workloads, workloads + 1))
    instance = generate(parameters, seed)
    goal = objective("balanced")
    half = replace(instance, workloads=instance.workloads[: workloads // 2])
    plan = solve(half, goal, engine="first-fit")
    lookup = Lookup(instance, goal, plan.placement, plan.backends)
    rest = instance.workloads[workloads // 2 :]
    times = []
    for n in range(asks):
        began = time.perf_counter()
        lookup.ask(rest[n % len(rest)])
        times.append(time.perf_counter() - began)
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


@dataclass(frozen=True, slots=True)
class Churn:
    """One re-plan: its time, what share of the running work it moved, its gap, the checker's faults."""

    seconds: float
    moved: float
    gap: float
    faults: tuple[str, ...]


def churn(nodes: int, workloads: int, seed: int, limit_s: float, *, share: float = 0.03, budget: float = 0.05) -> Churn:
    """Plan, let `share` of the work end and as much new work come, re-plan with `budget` of moves."""
    goal = objective("balanced")
    instance = generate(preset("unique", nodes, workloads), seed)
    before = solve(instance, goal, limit_s=min(8.0, 20 * limit_s), seed=seed + 1)
    changed = churned(instance, before, seed, share, budget)
    began = time.monotonic()
    plan = replan(changed, goal, limit_s)
    seconds = time.monotonic() - began
    running = sum(w.node is not None for w in changed.workloads)
    return Churn(seconds, plan.moved / max(1, running), plan.gap, tuple(check(changed, goal, plan)))


def churned(instance: Instance, plan: Plan, seed: int, share: float, budget: float) -> Instance:
    """The instance after churn: leavers gone, stayers on their nodes, and as many arrivals of the same law."""
    rng = np.random.default_rng(seed)
    placed = [w for w in instance.workloads if w.name in plan.placement]
    gangs = {w.gang for w in placed if w.gang is not None and rng.random() < share}
    leavers = {w.name for w in placed if (w.gang in gangs if w.gang else rng.random() < share)}
    stayers = [replace(w, node=plan.placement[w.name]) for w in placed if w.name not in leavers]
    fresh: list[Workload] = []
    for n, i in enumerate(rng.choice(len(placed), size=len(leavers))):
        fresh.append(replace(placed[i], name=f"new{n}", gang=None, node=None))
    return replace(instance, workloads=(*stayers, *fresh), move_budget=int(budget * len(stayers)))

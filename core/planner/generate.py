"""Random instances with published parameters; docs/planner.md prints this table.

What SQUIRO fixes: five dimensions, four node tiers of 8 to 64 cores at $0.27 to $2.14 an hour, two zones, four security
tiers, a load of 75 % +- 5 %. The rest is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from qtandem.core.planner.instance import GPU, Backend, Instance, Node, Quantum, Vector, Workload

CORES = np.array([8, 16, 32, 64])
PRICE = np.array([0.27, 0.54, 1.07, 2.14])
POWER = np.array([380.0, 470.0, 640.0, 980.0])
GPU_PRICE = 1.40


@dataclass(frozen=True, slots=True)
class Parameters:
    """Everything that shapes an instance, besides its seed."""

    nodes: int = 75
    workloads: int = 400
    tiers: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    zones: tuple[str, ...] = ("a", "b")
    load: tuple[float, float] = (0.70, 0.80)
    memory_load: float = 0.70 / 0.75
    spread: float = 0.8
    memory_spread: float = 0.5
    largest: float = 1.0
    gib_a_core: int = 4
    security: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)
    suffix_load: float = 0.85
    pinned: float = 0.08
    gpu_nodes: float = 0.20
    gpus: int = 4
    gpu_load: float = 0.60
    gangs: float = 0.03
    gang_size: tuple[int, int] = (2, 4)
    templates: bool = False
    replicas: tuple[int, int] = (1, 20)
    active: float = 0.0
    active_use: tuple[float, float] = (0.2, 0.9)
    risk: bool = False
    quantum: int = 0
    backends: int = 6
    slots: tuple[int, int] = (8, 24)
    priorities: tuple[int, ...] = (1,)


def generate(parameters: Parameters, seed: int) -> Instance:
    """The instance of these parameters and this seed."""
    rng = np.random.default_rng([seed, parameters.nodes, parameters.workloads])
    nodes, posture = _nodes(parameters, rng)
    demand, tier = _demands(parameters, rng, nodes, posture)
    zone = rng.integers(len(parameters.zones), size=parameters.workloads)
    pin = (rng.random(parameters.workloads) < parameters.pinned) & _fits_zone(parameters, nodes, demand, tier, zone)
    gang = _gangs(parameters, rng)
    priority = rng.choice(parameters.priorities, size=parameters.workloads)
    if parameters.templates:
        pin, zone, gang = np.zeros_like(pin), zone, [None] * parameters.workloads
    backends, needs = _quantum(parameters, rng)
    risk = _risk(parameters, rng, posture)
    workloads = tuple(
        Workload(
            name=f"w{i}",
            demand=_vector(demand[i]),
            priority=int(priority[i]),
            gang=gang[i],
            zone=parameters.zones[zone[i]] if pin[i] else None,
            posture=float(tier[i]),
            risk=i if parameters.risk else None,
            quantum=needs.get(i),
        )
        for i in range(parameters.workloads)
    )
    return Instance(nodes=nodes, workloads=workloads, backends=backends, risk=risk)


def _fits_zone(
    parameters: Parameters,
    nodes: tuple[Node, ...],
    demand: NDArray[np.int64],
    tier: NDArray[np.int64],
    zone: NDArray[np.int64],
) -> NDArray[np.bool_]:
    fits = np.zeros(len(demand), dtype=bool)
    for node in nodes:
        here = (node.posture >= tier) & (zone == parameters.zones.index(node.zone))
        fits |= here & (demand <= np.array(node.capacity)).all(axis=1)
    return fits


def _vector(row: NDArray[np.int64]) -> Vector:
    a, b, c, d, e = (int(v) for v in row)
    return a, b, c, d, e


def _nodes(parameters: Parameters, rng: Generator) -> tuple[tuple[Node, ...], NDArray[np.int64]]:
    count = parameters.nodes
    tier = rng.choice(4, size=count, p=parameters.tiers)
    posture = rng.permutation((np.arange(count) + 0.5) / count)
    edges = np.cumsum(parameters.security)[:-1]
    security = np.searchsorted(edges, posture, side="right")
    nodes = []
    for j in range(count):
        cores = int(CORES[tier[j]])
        gpus = parameters.gpus if cores >= 32 and rng.random() < parameters.gpu_nodes else 0
        capacity = np.array([cores * 10, cores * parameters.gib_a_core * 4, cores * 40, cores * 400, gpus])
        active = bool(rng.random() < parameters.active)
        if active:
            left = 1 - rng.uniform(*parameters.active_use, size=5)
            left[:2] = np.clip(left[0] + rng.normal(0, 0.1, size=2), 0.02, 1)
            capacity = (capacity * left).astype(np.int64)
        nodes.append(
            Node(
                name=f"n{j}",
                capacity=_vector(capacity),
                cost=float(PRICE[tier[j]] + (GPU_PRICE if gpus else 0.0)),
                power=float(POWER[tier[j]] + (250.0 if gpus else 0.0)),
                zone=parameters.zones[j % len(parameters.zones)],
                posture=float(security[j]),
                active=active,
            )
        )
    return tuple(nodes), security


def _demands(
    parameters: Parameters, rng: Generator, nodes: tuple[Node, ...], security: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count = parameters.workloads
    cap = np.array([n.capacity for n in nodes], dtype=float)
    template = _templates(parameters, rng)
    kinds = int(template.max()) + 1
    size = rng.lognormal(0, parameters.spread, size=kinds)[template]
    ratio = rng.lognormal(0, parameters.memory_spread, size=kinds)[template]
    load = rng.uniform(*parameters.load)
    cpu = size * load * cap[:, 0].sum() / size.sum()
    memory = cpu * ratio
    memory *= load * parameters.memory_load * cap[:, 1].sum() / memory.sum()
    tier = _tiers(parameters, rng, template, cpu, cap, security)
    biggest = np.array([cap[security >= t].max(axis=0, initial=0) for t in range(len(parameters.security))])
    grain = 5 if parameters.templates else 1
    demand = np.zeros((count, 5), dtype=np.int64)
    demand[:, 0] = np.clip(np.rint(cpu / grain) * grain, grain, parameters.largest * biggest[tier, 0])
    demand[:, 1] = np.clip(np.rint(memory / grain) * grain, grain, parameters.largest * biggest[tier, 1])
    storage = rng.lognormal(0, 1.0, size=kinds)[template]
    net = rng.lognormal(0, 1.0, size=kinds)[template]
    demand[:, 2] = np.clip(np.rint(storage / storage.sum() * 0.3 * cap[:, 2].sum()), 0, biggest[tier, 2])
    demand[:, 3] = np.clip(np.rint(net / net.sum() * 0.3 * cap[:, 3].sum()), 0, biggest[tier, 3])
    _gpus(parameters, rng, demand, tier, cap, security)
    return demand, tier


def _templates(parameters: Parameters, rng: Generator) -> NDArray[np.int64]:
    if not parameters.templates:
        return np.arange(parameters.workloads)
    out: list[int] = []
    while len(out) < parameters.workloads:
        kind = out[-1] + 1 if out else 0
        out += [kind] * int(rng.integers(parameters.replicas[0], parameters.replicas[1] + 1))
    return np.array(out[: parameters.workloads])


def _tiers(
    parameters: Parameters,
    rng: Generator,
    template: NDArray[np.int64],
    cpu: NDArray[np.float64],
    cap: NDArray[np.float64],
    security: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Security tiers, lowered from the top until the demand of each suffix is at most suffix_load of its nodes."""
    kinds = int(template.max()) + 1
    tier = rng.choice(len(parameters.security), size=kinds, p=parameters.security)[template]
    for level in range(len(parameters.security) - 1, 0, -1):
        nodes = security >= level
        room = parameters.suffix_load * cap[nodes, 0].sum()
        largest = cap[nodes, 0].max() if nodes.any() else 0.0
        tier[(tier >= level) & np.isin(template, template[cpu > largest])] = level - 1
        for kind in rng.permutation(kinds):
            if cpu[tier >= level].sum() <= room:
                break
            members = (template == kind) & (tier >= level)
            tier[members] = level - 1
    return tier


def _gpus(
    parameters: Parameters,
    rng: Generator,
    demand: NDArray[np.int64],
    tier: NDArray[np.int64],
    cap: NDArray[np.float64],
    security: NDArray[np.int64],
) -> None:
    """GPU needs for small workloads, up to gpu_load of the devices in every security suffix."""
    wanted = parameters.gpu_load * cap[:, GPU].sum()
    for i in rng.permutation(len(demand)):
        if demand[:, GPU].sum() >= wanted:
            return
        nodes = (cap[:, GPU] > 0) & (security >= tier[i])
        if not nodes.any() or demand[i, 0] > cap[nodes, 0].max() / 4 or demand[i, 1] > cap[nodes, 1].max() / 4:
            continue
        peers = (tier >= tier[i]) & (demand[:, GPU] > 0)
        if demand[peers, GPU].sum() + 1 <= parameters.gpu_load * cap[nodes, GPU].sum():
            demand[i, GPU] = int(rng.choice([1, 1, 2]))


def _gangs(parameters: Parameters, rng: Generator) -> list[str | None]:
    gang: list[str | None] = [None] * parameters.workloads
    i = number = 0
    while i < parameters.workloads:
        if rng.random() < parameters.gangs / np.mean(parameters.gang_size):
            size = int(rng.integers(parameters.gang_size[0], parameters.gang_size[1] + 1))
            gang[i : i + size] = [f"g{number}"] * min(size, parameters.workloads - i)
            number += 1
            i += size
        else:
            i += 1
    return gang


def _risk(parameters: Parameters, rng: Generator, security: NDArray[np.int64]) -> tuple[tuple[float, ...], ...]:
    """All-distinct r_ij = 1 - Phi/100: a node's posture, a workload's stringency, and noise of the pair."""
    if not parameters.risk:
        return ()
    node = 60 + 8 * security + rng.normal(0, 8, size=parameters.nodes)
    strict = rng.uniform(0, 20, size=(parameters.workloads, 1))
    fit = np.clip(
        node[None, :] - strict * 0.5 + rng.normal(0, 4, size=(parameters.workloads, parameters.nodes)), 0, 100
    )
    return tuple(tuple(row) for row in (1 - fit / 100).round(4).tolist())


def _quantum(parameters: Parameters, rng: Generator) -> tuple[tuple[Backend, ...], dict[int, Quantum]]:
    if not parameters.quantum:
        return (), {}
    backends = tuple(
        Backend(
            name=f"q{b}",
            slots=int(rng.integers(parameters.slots[0], parameters.slots[1] + 1)),
            distance={zone: int(rng.integers(0, 4)) for zone in parameters.zones},
        )
        for b in range(parameters.backends)
    )
    quality = rng.uniform(50, 95, size=parameters.backends)
    needs = {}
    for i in rng.choice(parameters.workloads, size=parameters.quantum, replace=False):
        eligible = np.flatnonzero(rng.random(parameters.backends) < 0.7)
        if not len(eligible):
            eligible = np.array([int(rng.integers(parameters.backends))])
        scores = np.clip(quality[eligible] + rng.normal(0, 5, size=len(eligible)), 0, 100).astype(int)
        needs[int(i)] = Quantum({f"q{b}": int(s) for b, s in zip(eligible, scores, strict=True)})
    return backends, needs


PRESETS = {
    "unique": Parameters(),
    "templates": Parameters(templates=True),
    "live": Parameters(active=0.5, load=(0.62, 0.68)),
    "risk": Parameters(risk=True, load=(0.50, 0.60)),
    "quantum": Parameters(quantum=1),
}


def preset(name: str, nodes: int, workloads: int) -> Parameters:
    """The published parameters of one bench family at a size; `quantum` gives 15 % of the workloads a backend."""
    parameters = replace(PRESETS[name], nodes=nodes, workloads=workloads)
    return replace(parameters, quantum=round(workloads * 0.15)) if name == "quantum" else parameters

"""What the planner decides over: nodes, workloads and backends at one moment, as plain data.

Sources: SQUIRO VI.2 (descriptors, masks a^k and a^s, gangs) and VI.3 (backends). Precedence and start times are
not part of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from qtandem.core.errors import QtandemError

DIMENSIONS = ("cpu", "mem", "storage", "net", "gpu")
GPU = DIMENSIONS.index("gpu")
Vector = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Node:
    """A node with what is left of it.

    `capacity` is free for the workloads of the instance, in DIMENSIONS order (100 millicores, 256 MiB, GiB, Mbit/s,
    devices). `cost` is $/h, `power` W. `posture` is a score or tier S_j. `active`: it runs something that is not
    in the instance, so that its cost is sunk.
    """

    name: str
    capacity: Vector
    cost: float
    power: float
    zone: str = ""
    posture: float = 0.0
    active: bool = False


@dataclass(frozen=True, slots=True)
class Backend:
    """A quantum resource with free slots; `distance` is the locality penalty for each zone (0 if not named)."""

    name: str
    slots: int
    distance: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quantum:
    """A workload's need of a backend: slots, and a score in 0..100 for each backend that is eligible."""

    scores: dict[str, int]
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """One schedulable unit.

    `priority` is pi_i >= 1; `deadline` is in seconds from now, and one inside the accounting interval doubles
    pi_i. `gang`: members are admitted together or not at all. `zone` pins, `posture` is the floor min_score_i,
    `mask` an index into `Instance.masks` (the manager's own answer). `risk` is a row of `Instance.risk`.
    `node` names where it runs already; `movable` says whether it may run elsewhere.
    """

    name: str
    demand: Vector
    priority: int = 1
    deadline: float | None = None
    gang: str | None = None
    zone: str | None = None
    posture: float = 0.0
    mask: int | None = None
    risk: int | None = None
    node: str | None = None
    movable: bool = True
    quantum: Quantum | None = None


@dataclass(frozen=True)
class Instance:
    """Everything of one decision.

    `masks[m]` lists the nodes that the manager permits. `risk[row][node]` is r_ij in 0..1. `move_budget` bounds
    how many running workloads may end elsewhere or nowhere; None means no bound. `interval_h` is T of equation 13.
    """

    nodes: tuple[Node, ...]
    workloads: tuple[Workload, ...]
    backends: tuple[Backend, ...] = ()
    masks: tuple[frozenset[str], ...] = ()
    risk: tuple[tuple[float, ...], ...] = ()
    move_budget: int | None = None
    interval_h: float = 1.0

    def __post_init__(self) -> None:
        problem = _fault(self)
        if problem:
            raise QtandemError("bad-plan", problem)

    @cached_property
    def node_index(self) -> dict[str, int]:
        return {node.name: j for j, node in enumerate(self.nodes)}

    @cached_property
    def backend_index(self) -> dict[str, int]:
        return {backend.name: b for b, backend in enumerate(self.backends)}

    @cached_property
    def capacity(self) -> NDArray[np.int64]:
        return np.array([node.capacity for node in self.nodes], dtype=np.int64).reshape(-1, len(DIMENSIONS))

    @cached_property
    def demand(self) -> NDArray[np.int64]:
        return np.array([w.demand for w in self.workloads], dtype=np.int64).reshape(-1, len(DIMENSIONS))

    @cached_property
    def risk_matrix(self) -> NDArray[np.float64]:
        return np.array(self.risk, dtype=np.float64).reshape(len(self.risk), len(self.nodes))

    def weight(self, workload: Workload) -> int:
        """pi_i: the priority, twice where the deadline falls inside the accounting interval."""
        urgent = workload.deadline is not None and workload.deadline <= self.interval_h * 3600
        return workload.priority * (2 if urgent else 1)


def _fault(instance: Instance) -> str | None:
    names = [n.name for n in instance.nodes]
    if len(set(names)) != len(names):
        return "two nodes have one name"
    if not names:
        return "there is no node"
    jobs = [w.name for w in instance.workloads]
    if len(set(jobs)) != len(jobs):
        return "two workloads have one name"
    known, backends = set(names), {b.name for b in instance.backends}
    if any(len(row) != len(names) for row in instance.risk):
        return "a row of risk has not one value a node"
    if any(v < 0 for n in instance.nodes for v in n.capacity):
        return "a capacity is negative"
    for w in instance.workloads:
        if w.priority < 1 or min(w.demand) < 0:
            return f"workload {w.name}: priority must be >= 1 and demand >= 0"
        if w.node is not None and w.node not in known:
            return f"workload {w.name} runs on {w.node}, which is not in the instance"
        if w.mask is not None and not 0 <= w.mask < len(instance.masks):
            return f"workload {w.name} names a mask that is not there"
        if w.risk is not None and not 0 <= w.risk < len(instance.risk):
            return f"workload {w.name} names a row of risk that is not there"
        if w.quantum is not None and not set(w.quantum.scores) <= backends:
            return f"workload {w.name} scores a backend that is not in the instance"
    running: dict[str, bool] = {}
    for w in instance.workloads:
        if w.gang is not None and running.setdefault(w.gang, w.node is not None) != (w.node is not None):
            return f"gang {w.gang} runs in part"
    return _overfull(instance)


def _overfull(instance: Instance) -> str | None:
    left = {node.name: list(node.capacity) for node in instance.nodes}
    for w in instance.workloads:
        if w.node is not None:
            left[w.node] = [room - amount for room, amount in zip(left[w.node], w.demand, strict=True)]
            if min(left[w.node]) < 0:
                return f"{w.node} has not the capacity for what runs on it"
    return None


_ADAPTER: TypeAdapter[Instance] = TypeAdapter(Instance)


def load(path: Path) -> Instance:
    """Read an instance from JSON; raises `bad-plan` with the first fault and its place."""
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise QtandemError("bad-plan", f"{path}: {place}: {first['msg']}") from error


def dump(instance: Instance) -> bytes:
    return _ADAPTER.dump_json(instance)

"""An instance and an objective as arrays: the form that every engine works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.instance import Instance, Workload
from qtandem.core.planner.objective import Objective, backend_cost, move_cost, node_weights, pair_costs

Ints = NDArray[np.int64]
NOT_ELIGIBLE = -1


@dataclass(frozen=True)
class Problem:
    """Shapes: I workloads, J nodes, K dimensions, S mask rows, Q quantum workloads, Z zones, B backends.

    `rows[row_of[i]]` is the mask a^k a^s of workload i. `home[i]` is where i runs, or -1. `unit[i]` numbers its
    gang (a lone workload is a unit of its own). `quantum[i]` is its row in `backend_costs[q, z, b]`, or -1.
    """

    instance: Instance
    goal: Objective
    demand: Ints
    capacity: Ints
    weight: Ints
    rows: NDArray[np.bool_]
    row_of: Ints
    priority: Ints
    unit: Ints
    home: Ints
    fixed: NDArray[np.bool_]
    move_cost: int
    move_budget: int
    pair: NDArray[np.int32] | None
    quantum: Ints
    quantum_slots: Ints
    backend_costs: Ints
    slots: Ints
    zone: Ints

    @property
    def total_priority(self) -> int:
        return int(self.priority.sum())

    @property
    def quantum_jobs(self) -> Ints:
        return np.flatnonzero(self.quantum >= 0)

    def allowed(self) -> NDArray[np.bool_]:
        """The pairs that mask, empty node, backend's eligibility and immovability permit (I, J)."""
        fits = np.ones((len(self.demand), len(self.capacity)), dtype=bool)
        for k in range(self.demand.shape[1]):
            fits &= self.demand[:, k, None] <= self.capacity[None, :, k]
        fits &= self.rows[self.row_of]
        for i in self.quantum_jobs:
            fits[i] &= (self.backend_costs[self.quantum[i]] >= 0).any(axis=1)[self.zone]
        for i in np.flatnonzero(self.fixed):
            only = fits[i, self.home[i]]
            fits[i] = False
            fits[i, self.home[i]] = only
        return fits

    def cost(self, assign: Ints, backend: Ints) -> int:
        """Everything of the objective but admission; `assign` and `backend` hold -1 for none."""
        placed = np.flatnonzero(assign >= 0)
        used = np.zeros(len(self.capacity), dtype=bool)
        used[assign[placed]] = True
        total = int(self.weight[used].sum()) + self.move_cost * self.moved(assign)
        if self.pair is not None:
            total += int(self.pair[placed, assign[placed]].sum())
        for i in self.quantum_jobs:
            if assign[i] >= 0:
                total += int(self.backend_costs[self.quantum[i], self.zone[assign[i]], backend[i]])
        return total

    def moved(self, assign: Ints) -> int:
        return int(((self.home >= 0) & (assign != self.home)).sum())

    def admitted(self, assign: Ints) -> int:
        return int(self.priority[assign >= 0].sum())


def compile_problem(instance: Instance, goal: Objective) -> Problem:
    rows, row_of = _masks(instance)
    zones = sorted({n.zone for n in instance.nodes})
    zone = np.array([zones.index(n.zone) for n in instance.nodes], dtype=np.int64)
    quantum = np.full(len(instance.workloads), -1, dtype=np.int64)
    needs = [i for i, w in enumerate(instance.workloads) if w.quantum is not None]
    quantum[needs] = np.arange(len(needs))
    home = [-1 if w.node is None else instance.node_index[w.node] for w in instance.workloads]
    budget = len(instance.workloads) if instance.move_budget is None else instance.move_budget
    return Problem(
        instance=instance,
        goal=goal,
        demand=instance.demand,
        capacity=instance.capacity,
        weight=node_weights(instance, goal),
        rows=rows,
        row_of=row_of,
        priority=np.array([instance.weight(w) for w in instance.workloads], dtype=np.int64),
        unit=_units(instance.workloads),
        home=np.array(home, dtype=np.int64),
        fixed=np.array([w.node is not None and not w.movable for w in instance.workloads], dtype=bool),
        move_cost=move_cost(goal),
        move_budget=budget,
        pair=pair_costs(instance, goal),
        quantum=quantum,
        quantum_slots=np.array([instance.workloads[i].quantum.slots for i in needs], dtype=np.int64),  # type: ignore[union-attr]
        backend_costs=_backend_costs(instance, goal, needs, zones),
        slots=np.array([b.slots for b in instance.backends], dtype=np.int64),
        zone=zone,
    )


def _masks(instance: Instance) -> tuple[NDArray[np.bool_], Ints]:
    keys: dict[tuple[str | None, float, int | None], int] = {}
    row_of = [keys.setdefault((w.zone, w.posture, w.mask), len(keys)) for w in instance.workloads]
    zones = np.array([n.zone for n in instance.nodes])
    posture = np.array([n.posture for n in instance.nodes])
    rows = np.ones((len(keys), len(instance.nodes)), dtype=bool)
    for (zone, floor, mask), row in keys.items():
        rows[row] &= posture >= floor
        if zone is not None:
            rows[row] &= zones == zone
        if mask is not None:
            permitted = instance.masks[mask]
            rows[row] &= np.array([n.name in permitted for n in instance.nodes])
    return rows, np.array(row_of, dtype=np.int64)


def _units(workloads: tuple[Workload, ...]) -> Ints:
    gangs: dict[str, int] = {}
    units: list[int] = []
    count = 0
    for w in workloads:
        if w.gang is not None and w.gang in gangs:
            units.append(gangs[w.gang])
            continue
        if w.gang is not None:
            gangs[w.gang] = count
        units.append(count)
        count += 1
    return np.array(units, dtype=np.int64)


def _backend_costs(instance: Instance, goal: Objective, needs: list[int], zones: list[str]) -> Ints:
    costs = np.full((len(needs), len(zones), len(instance.backends)), NOT_ELIGIBLE, dtype=np.int64)
    for q, i in enumerate(needs):
        quantum = instance.workloads[i].quantum
        assert quantum is not None
        for name, score in quantum.scores.items():
            b = instance.backend_index[name]
            for z, zone in enumerate(zones):
                costs[q, z, b] = backend_cost(goal, score, instance.backends[b].distance.get(zone, 0))
    return costs

"""Quantum workloads: the cheapest pairing with zones and backends, apart from nodes; a bound, and pins for packing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.lp import INF, Program
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search


@dataclass(frozen=True, slots=True)
class Pairing:
    """`zone[i]` and `backend[i]` of each quantum workload (-1 elsewhere), at this total cost; `bound` is proven."""

    zone: Ints
    backend: Ints
    bound: int

    def pinned(self, problem: Problem, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The pairs that keep every quantum workload in its zone."""
        pinned = allowed.copy()
        for i in problem.quantum_jobs:
            pinned[i] &= problem.zone == self.zone[i]
        return pinned


def pair(problem: Problem, allowed: NDArray[np.bool_], search: Search, seconds: float) -> Pairing | None:
    """Transport tasks to (zone, backend) within the slots; None if not all of them can be served."""
    jobs = problem.quantum_jobs
    reach = np.zeros((len(jobs), problem.backend_costs.shape[1]), dtype=bool)
    for q, i in enumerate(jobs):
        reach[q, np.unique(problem.zone[allowed[i]])] = True
    keys = np.argwhere((problem.backend_costs >= 0) & reach[:, :, None])
    program = Program()
    costs = problem.backend_costs[keys[:, 0], keys[:, 1], keys[:, 2]].astype(float)
    program.add_columns(costs, 0.0, 1.0, integer=True)
    for q in range(len(jobs)):
        index = np.flatnonzero(keys[:, 0] == q)
        if not len(index):
            return None
        program.add_row(index, np.ones(len(index)), 1.0, 1.0)
    for b, slots in enumerate(problem.slots):
        index = np.flatnonzero(keys[:, 2] == b)
        program.add_row(index, problem.quantum_slots[keys[index, 0]].astype(float), -INF, float(slots))
    outcome = program.solve(search.deadline, seconds)
    if not len(outcome.x):
        return None
    zone, backend = np.full(len(problem.demand), -1, dtype=np.int64), np.full(len(problem.demand), -1, dtype=np.int64)
    for q, z, b in keys[outcome.x > 0.5]:
        zone[jobs[q]], backend[jobs[q]] = z, b
    return Pairing(zone, backend, max(0, int(np.ceil(outcome.bound - 1e-6))))

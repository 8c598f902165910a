"""The baselines: first fit and least allocated, as the schedulers of today place one workload after another."""

from __future__ import annotations

import numpy as np

from qtandem.core.planner import kernels
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

RULES = {
    "first-fit": kernels.FIRST_FIT,
    "least-allocated": kernels.LEAST_ALLOCATED,
    "best-fit": kernels.BEST_FIT,
}


def greedy(problem: Problem, rule: str, deadline: Deadline) -> Search:
    """Place by priority, then deadline, then submission; a gang whole or not at all. Running work stays."""
    search = Search(problem, deadline, f"greedy {rule}")
    assign, backend = place(problem, RULES[rule], queue_order(problem))
    deadline.charge(assign.size * len(problem.capacity) / 5e7)
    search.offer(assign, backend)
    search.mark("greedy")
    return search


def queue_order(problem: Problem) -> Ints:
    """The units in the order of a queue: the highest priority in them, the earliest deadline, submission."""
    workloads = problem.instance.workloads
    count = int(problem.unit.max()) + 1 if len(problem.unit) else 0
    priority = np.zeros(count)
    np.maximum.at(priority, problem.unit, problem.priority)
    due = np.full(count, np.inf)
    np.minimum.at(due, problem.unit, [np.inf if w.deadline is None else w.deadline for w in workloads])
    return np.lexsort((np.arange(count), due, -priority)).astype(np.int64)


def place(
    problem: Problem, rule: int, units: Ints, nodes: np.ndarray | None = None, start: Ints | None = None
) -> tuple[Ints, Ints]:
    """Place the units in this order on the nodes of the mask `nodes` (default all), around `start`."""
    count = len(problem.demand)
    assign = np.where(problem.home >= 0, problem.home, -1) if start is None else start.copy()
    free = problem.capacity.copy()
    taken = assign >= 0
    np.subtract.at(free, assign[taken], problem.demand[taken])
    backend, barred = _backends(problem, units, assign)
    order, starts = unit_lists(problem.unit, units[~np.isin(units, barred)])
    used = np.ones(len(free), dtype=bool) if nodes is None else nodes
    if count:
        kernels.place_units(
            order, starts, problem.demand, problem.capacity, free, problem.rows, problem.row_of, used, rule, assign
        )
    backend[assign < 0] = -1
    return assign, backend


def unit_lists(unit: Ints, units: Ints) -> tuple[Ints, Ints]:
    """The members of these units, one unit after another, and where each starts."""
    by_unit = np.argsort(unit, kind="stable")
    sizes = np.bincount(unit, minlength=int(unit.max()) + 1 if len(unit) else 0)
    begins = np.concatenate(([0], np.cumsum(sizes)))
    parts = [by_unit[begins[u] : begins[u + 1]] for u in units]
    order = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum([len(p) for p in parts]))).astype(np.int64)
    return order.astype(np.int64), starts


def _backends(problem: Problem, units: Ints, assign: Ints) -> tuple[Ints, Ints]:
    """The best-scored backend with free slots for each quantum workload in queue order, and the units left out."""
    backend = np.full(len(problem.demand), -1, dtype=np.int64)
    jobs = problem.quantum_jobs
    if not len(jobs):
        return backend, np.zeros(0, dtype=np.int64)
    free = problem.slots.copy()
    rank = np.empty(int(problem.unit.max()) + 1, dtype=np.int64)
    rank[units] = np.arange(len(units))
    barred = set()
    for i in sorted(jobs, key=lambda i: (assign[i] < 0, rank[problem.unit[i]], i)):
        q = problem.quantum[i]
        costs = problem.backend_costs[q].min(axis=0)
        open_ = np.flatnonzero((costs >= 0) & (free >= problem.quantum_slots[q]))
        if not len(open_):
            barred.add(int(problem.unit[i]))
            continue
        best = int(open_[np.argmin(costs[open_])])
        backend[i] = best
        free[best] -= problem.quantum_slots[q]
    return backend, np.array(sorted(barred), dtype=np.int64)

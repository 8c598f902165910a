"""Re-planning after churn: arrivals are placed, then nodes are emptied as far as the move budget goes.

Running work stays where it is unless a move pays: emptying a node must save more than its moves cost, and the number of
moves over the whole re-plan is bounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import greedy, kernels
from qtandem.core.planner.consolidate import Consolidation
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.plan import Plan
from qtandem.core.planner.problem import Ints, Problem, compile_problem
from qtandem.core.planner.state import Search
from qtandem.core.planner.instance import Instance
from qtandem.core.planner.objective import Objective


def replan(instance: Instance, goal: Objective, limit_s: float, *, deterministic: bool = False, seed: int = 1) -> Plan:
    """Plan a cluster that runs already; workloads with `node` are running, the others are new."""
    deadline = Deadline(limit_s, deterministic=deterministic)
    search = Search(compile_problem(instance, goal), deadline, "rolling")
    roll(search, seed)
    return search.plan()


def roll(search: Search, seed: int) -> None:
    """Place arrivals, empty nodes while it pays and the budget lasts, then bound."""
    p = search.problem
    allowed = p.allowed()
    settle(search, allowed)
    run = Consolidation(p, allowed, np.arange(len(p.demand)), search.deadline, lambda _: None, seed=seed)
    run.bound_only(search.deadline.left())
    if not run.infeasible:
        search.raise_bound(run.bound)
    search.mark("bound")


def settle(search: Search, allowed: NDArray[np.bool_]) -> None:
    """The quick part: arrivals placed, nodes emptied."""
    _arrive(search)
    search.mark("arrivals")
    _empty_nodes(search, allowed)
    search.mark("emptying")


def _arrive(search: Search) -> None:
    """Put new work on nodes in use where it fits, else on the cheapest new nodes."""
    p = search.problem
    start = np.where(p.home >= 0, p.home, -1)
    units = greedy.queue_order(p)
    used = np.zeros(len(p.capacity), dtype=bool)
    used[start[start >= 0]] = True
    used |= p.weight == 0
    size = (p.demand / np.maximum(1, p.capacity.max(axis=0))).max(axis=1)
    biggest = np.zeros(len(units))
    np.maximum.at(biggest, p.unit, size)
    priority = np.zeros(len(units))
    np.maximum.at(priority, p.unit, p.priority)
    order = np.lexsort((-biggest, -priority)).astype(np.int64)
    assign, backend = greedy.place(p, kernels.BEST_FIT, order, nodes=used, start=start)
    for j in np.argsort(p.weight / np.maximum(1, p.capacity[:, 0])):
        if (assign >= 0).all():
            break
        if not used[j]:
            used[j] = True
            assign, backend = greedy.place(p, kernels.BEST_FIT, order, nodes=used, start=assign)
    search.offer(assign, backend)


def _empty_nodes(search: Search, allowed: NDArray[np.bool_]) -> None:
    """Close nodes one by one: of those whose work fits on the others, the one that saves most for each move."""
    p = search.problem
    assign, backend = search.assign.copy(), search.backend
    free = p.capacity.copy()
    placed = assign >= 0
    np.subtract.at(free, assign[placed], p.demand[placed])
    budget = p.move_budget - p.moved(assign)
    used = np.zeros(len(p.capacity), dtype=bool)
    used[assign[placed]] = True
    refused: set[int] = set()
    while not search.deadline.expired():
        best = _candidate(p, assign, used, refused, budget)
        if best is None:
            break
        members = np.flatnonzero(assign == best)
        members = members[np.argsort(-p.demand[members, :2].sum(axis=1), kind="stable")]
        target, before = np.empty(len(members), dtype=np.int64), free.copy()
        search.deadline.charge(len(members) * len(free) / 5e7)
        gain = int(p.weight[best])
        if not kernels.evacuate(best, members, p.demand, free, allowed, used, target):
            free[:] = before
            refused.add(best)
            continue
        trial = assign.copy()
        trial[members] = target
        moves = p.moved(trial) - p.moved(assign)
        if p.cost(trial, backend) >= p.cost(assign, backend) or moves > budget or gain <= 0:
            free[:] = before
            refused.add(best)
            continue
        free[best] = p.capacity[best]
        used[best] = False
        assign, budget = trial, budget - moves
        search.offer(assign, backend)


def _candidate(p: Problem, assign: Ints, used: NDArray[np.bool_], refused: set[int], budget: int) -> int | None:
    """The node in use that saves most for each running workload on it, if that is within the budget."""
    running = (p.home >= 0) & (assign == p.home)
    stuck = np.zeros(len(p.capacity), dtype=bool)
    stuck[assign[p.fixed & (assign >= 0)]] = True
    moves = np.bincount(assign[running], minlength=len(p.capacity))
    open_ = used & (p.weight > 0) & (moves <= budget) & ~stuck
    if refused:
        open_[list(refused)] = False
    if not open_.any():
        return None
    worth = np.where(open_, p.weight / (1 + moves), -1.0)
    return int(np.argmax(worth))

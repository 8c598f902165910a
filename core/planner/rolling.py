"""Re-planning after churn: arrivals are placed, then nodes are emptied as far as the move budget goes.

Running work stays where it is unless a move pays: emptying a node must save more than its moves cost, and the number of
moves over the whole re-plan is bounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import greedy, kernels
from qtandem.core.planner.consolidate import Consolidation
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

MOST_REFUSED = 60


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
    empty_nodes(search, allowed)
    search.mark("emptying")


def empty_nodes(search: Search, allowed: NDArray[np.bool_]) -> None:
    """Close nodes of the incumbent while that pays."""
    _Emptying(search, allowed).run()


def _arrive(search: Search) -> None:
    """Running work stays, new work is placed around it."""
    p = search.problem
    search.offer(*complete(p, np.where(p.home >= 0, p.home, -1)))


def complete(p: Problem, start: Ints) -> tuple[Ints, Ints]:
    """Put who has no node yet on nodes in use where that fits, else on new nodes, the cheapest for their size first."""
    used = np.zeros(len(p.capacity), dtype=bool)
    used[start[start >= 0]] = True
    used |= p.weight == 0
    units = greedy.queue_order(p)
    size = (p.demand / np.maximum(1, p.capacity.max(axis=0))).max(axis=1)
    biggest, priority = np.zeros(len(units)), np.zeros(len(units))
    np.maximum.at(biggest, p.unit, size)
    np.maximum.at(priority, p.unit, p.priority)
    order = np.lexsort((-biggest, -priority)).astype(np.int64)
    waiting = order[np.isin(order, p.unit[start < 0])]
    assign, backend = _place(p, waiting, used, start)
    for j in np.argsort(p.weight / np.maximum(1, p.capacity[:, 0])):
        waiting = waiting[np.isin(waiting, p.unit[assign < 0])]
        if not len(waiting):
            break
        if not used[j]:
            used[j] = True
            assign, backend = _place(p, waiting, used, assign)
    return assign, backend


def _place(p: Problem, units: Ints, used: NDArray[np.bool_], start: Ints) -> tuple[Ints, Ints]:
    return greedy.place(p, kernels.BEST_FIT, units, nodes=used, start=start)


class _Emptying:
    """The incumbent with its free capacity, and how many moves are left."""

    def __init__(self, search: Search, allowed: NDArray[np.bool_]) -> None:
        self.search, self.allowed, p = search, allowed, search.problem
        self.assign, self.backend = search.assign.copy(), search.backend
        placed = self.assign >= 0
        self.free = p.capacity.copy()
        np.subtract.at(self.free, self.assign[placed], p.demand[placed])
        self.used = np.zeros(len(p.capacity), dtype=bool)
        self.used[self.assign[placed]] = True
        self.used |= p.weight == 0
        self.budget = p.move_budget - p.moved(self.assign)

    def run(self) -> None:
        """Close nodes one by one while it pays."""
        refused: set[int] = set()
        while not self.search.deadline.expired() and len(refused) < MOST_REFUSED:
            node = self._candidate(refused)
            if node is None:
                return
            if not self._empty(node):
                refused.add(node)

    def _candidate(self, refused: set[int]) -> int | None:
        """The node in use that saves most for each running workload on it, if that is within the budget."""
        p, assign = self.search.problem, self.assign
        running = (p.home >= 0) & (assign == p.home)
        stuck = np.zeros(len(p.capacity), dtype=bool)
        stuck[assign[p.fixed & (assign >= 0)]] = True
        moves = np.bincount(assign[running], minlength=len(p.capacity))
        open_ = self.used & (p.weight > p.move_cost * moves) & (moves <= self.budget) & ~stuck
        if refused:
            open_[list(refused)] = False
        if not open_.any():
            return None
        return int(np.argmax(np.where(open_, p.weight / (1 + moves), -1.0)))

    def _empty(self, node: int) -> bool:
        p = self.search.problem
        members = np.flatnonzero(self.assign == node)
        members = members[np.argsort(-p.demand[members, :2].sum(axis=1), kind="stable")]
        if len(p.quantum_jobs) and (p.quantum[members] >= 0).any():
            return False
        target, before = np.empty(len(members), dtype=np.int64), self.free.copy()
        self.search.deadline.charge(len(members) * len(before) / 5e7)
        if kernels.evacuate(node, members, p.demand, self.free, self.allowed, self.used, target):
            trial = self.assign.copy()
            trial[members] = target
            moves = p.moved(trial) - p.moved(self.assign)
            if moves <= self.budget and p.cost(trial, self.backend) < p.cost(self.assign, self.backend):
                self.free[node] = p.capacity[node]
                self.used[node] = False
                self.assign, self.budget = trial, self.budget - moves
                self.search.offer(trial, self.backend)
                return True
        self.free[:] = before
        return False

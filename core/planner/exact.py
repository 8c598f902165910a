"""The exact engine: anytime, with a bound; the strategy follows from the size and the terms of the problem."""

from __future__ import annotations

import numpy as np

from qtandem.core.planner import greedy, monolith
from qtandem.core.planner.consolidate import Consolidation
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

SMALL = 1500
MEDIUM = 5000


def exact(problem: Problem, deadline: Deadline, *, seed: int = 1, workers: int = 1) -> Search:
    """Plan within the deadline: never worse than greedy, with a proven bound on admission and on cost."""
    search = Search(problem, deadline, "exact")
    _baselines(search)
    pairs = len(problem.demand) * len(problem.capacity)
    if pairs <= SMALL:
        monolith.refine(search, deadline.left(), workers=workers, seed=seed)
        search.mark("monolith")
        if search.proven:
            return search
    if problem.pair is None and not len(problem.quantum_jobs) and not (problem.home >= 0).any():
        _plain(search, seed, workers)
    if not search.proven and pairs <= MEDIUM:
        monolith.refine(search, deadline.left(), workers=workers, seed=seed)
        search.mark("monolith")
    return search


def _baselines(search: Search) -> None:
    p = search.problem
    units = greedy.queue_order(p)
    for rule in ("best-fit", "first-fit", "least-allocated"):
        search.offer(*greedy.place(p, greedy.RULES[rule], units))
        search.deadline.charge(len(p.demand) * len(p.capacity) / 5e7)
    search.mark("greedy")


def _plain(search: Search, seed: int, workers: int) -> None:
    p = search.problem
    items = np.arange(len(p.demand))
    none = np.full(len(p.demand), -1, dtype=np.int64)

    def report(assign: Ints) -> None:
        search.offer(assign, none)

    run = Consolidation(p, p.allowed(), items, search.deadline, report, seed=seed, workers=workers)
    run.run(search.cost if search.complete else None)
    search.raise_bound(run.bound)
    search.mark("consolidation")

"""The exact engine: anytime, with a bound; the strategy follows from the size and the terms of the problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import backends, greedy, joint, monolith, rolling
from qtandem.core.planner.admission import admit, cost_bound
from qtandem.core.planner.consolidate import Consolidation
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

SMALL = 1500
MEDIUM = 6000


def exact(problem: Problem, deadline: Deadline, *, seed: int = 1, workers: int = 1) -> Search:
    """Plan within the deadline: never worse than greedy, with a proven bound on admission and on cost."""
    search = Search(problem, deadline, "exact")
    _baselines(search)
    pairs = len(problem.demand) * len(problem.capacity)
    if pairs <= SMALL:
        monolith.refine(search, 0.5 * deadline.left(), workers=workers, seed=seed)
        search.mark("monolith")
    if not search.proven and len(problem.demand):
        _decompose(search, seed, workers)
    if not search.proven and pairs <= MEDIUM:
        monolith.refine(search, deadline.left(), workers=workers, seed=seed)
        search.mark("monolith")
    return search


def _baselines(search: Search) -> None:
    p = search.problem
    units = greedy.queue_order(p)
    for rule in ("best-fit", "first-fit", "least-allocated"):
        if search.cost is None or not search.deadline.expired():
            search.offer(*greedy.place(p, greedy.RULES[rule], units))
            search.deadline.charge(len(p.demand) * len(p.capacity) / 5e7)
    if (p.home >= 0).any():
        rolling.settle(search, p.allowed())
    search.mark("greedy")


def _decompose(search: Search, seed: int, workers: int) -> None:
    """Backends, then nodes with quantum workloads pinned to zones, then admission or pair costs where they matter."""
    p = search.problem
    allowed = p.allowed()
    base, pinned, pairing = 0, allowed, None
    if len(p.quantum_jobs):
        pairing = backends.pair(p, allowed, search, 0.1 * search.deadline.left())
        search.mark("backends")
        if pairing is None:
            _partial(search, allowed, seed, workers)
            return
        base, pinned = pairing.bound, pairing.pinned(p, allowed)
    priced = p.pair is not None or bool((p.home >= 0).any())
    node_bound = 0
    if pairing is not None:
        node_bound = _node_bound(search, allowed)
        search.raise_bound(node_bound + base)
    run = _consolidate(search, pinned, pairing, seed, workers, share=0.25 if priced else 1.0)
    if pairing is None:
        node_bound = run.bound
        search.raise_bound(node_bound)
    if not search.complete:
        _partial(search, allowed, seed, workers)
    elif priced:
        joint.improve(search, pinned, node_bound, seed, search.deadline.left(), base=base)


def _consolidate(
    search: Search,
    allowed: NDArray[np.bool_],
    pairing: backends.Pairing | None,
    seed: int,
    workers: int,
    share: float,
) -> Consolidation:
    p = search.problem
    backend = np.full(len(p.demand), -1, dtype=np.int64) if pairing is None else pairing.backend
    limit = search.deadline.part(share * search.deadline.left())

    def report(assign: Ints) -> None:
        if p.moved(assign) <= p.move_budget:
            search.offer(assign, backend)

    on_bound = search.raise_bound if pairing is None else int
    run = Consolidation(p, allowed, np.arange(len(p.demand)), limit, report, on_bound, seed=seed, workers=workers)
    plain = pairing is None and p.pair is None and not (p.home >= 0).any()
    run.run(search.cost if search.complete and plain else None)
    search.mark("consolidation")
    return run


def _node_bound(search: Search, allowed: NDArray[np.bool_]) -> int:
    """The bound on node cost without the pins that a pairing chose."""
    run = Consolidation(search.problem, allowed, np.arange(len(allowed)), search.deadline, lambda _: None)
    run.bound_only(0.1 * search.deadline.left())
    return run.bound


def _partial(search: Search, allowed: NDArray[np.bool_], seed: int, workers: int) -> None:
    """Not everybody can be admitted (or it is not known how): bound and raise the admission, then save cost."""
    p = search.problem
    relaxed = admit(search, allowed, seed, 0.6 * search.deadline.left())
    if not search.complete:
        search.cost_bound = cost_bound(relaxed, search.admitted, search)
    items = np.flatnonzero(search.assign >= 0)
    if len(p.quantum_jobs) or p.pair is not None or (p.home >= 0).any() or not len(items):
        return
    backend = np.full(len(p.demand), -1, dtype=np.int64)
    run = Consolidation(
        p, allowed, items, search.deadline, lambda a: search.offer(a, backend), seed=seed, workers=workers
    )
    run.run(search.cost)
    search.mark("consolidation")

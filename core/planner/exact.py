"""The exact engine: anytime, with a bound; the strategy follows from the size and the terms of the problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import backends, greedy, joint, monolith, rolling
from qtandem.core.planner.admission import admit, cost_bound
from qtandem.core.planner.consolidate import Consolidation
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.fillings import Fillings
from qtandem.core.planner.problem import Ints, Problem, compile_problem
from qtandem.core.planner.state import Search

SMALL = 1500
MEDIUM = 6000
FEW_A_NODE = 6
GLANCE_S = 0.3


def exact(
    problem: Problem,
    deadline: Deadline,
    *,
    seed: int = 1,
    workers: int = 1,
    whole: bool = False,
    start: tuple[Ints, Ints] | None = None,
) -> Search:
    """Plan within the deadline: never worse than greedy, with a proven bound on admission and on cost.

    `whole`: the caller has left out already who cannot be admitted; if not all can be, that is not looked into again.
    `start` is an assignment that is known to be feasible.
    """
    search = Search(problem, deadline, "exact")
    _baselines(search)
    if start is not None:
        search.offer(*start)
    pairs = len(problem.demand) * len(problem.capacity)
    floor = _glance(search, seed, workers) if pairs <= SMALL else 0
    if pairs <= SMALL and not search.proven:
        monolith.refine(search, 0.5 * deadline.left(), workers=workers, seed=seed, floor=floor)
        search.mark("monolith")
    if not search.proven and len(problem.demand):
        allowed = problem.allowed()
        impossible = np.flatnonzero(np.isin(problem.unit, problem.unit[~allowed.any(axis=1)]))
        if len(impossible) and not whole:
            _without_impossible(search, impossible, seed, workers)
            return search
        _decompose(search, allowed, seed, workers, whole=whole)
    if not search.proven and pairs <= MEDIUM:
        monolith.refine(search, deadline.left(), workers=workers, seed=seed)
        search.mark("monolith")
    return search


def _glance(search: Search, seed: int, workers: int) -> int:
    """Nodes alone, for a moment: mostly proves a small instance at once, where CP-SAT takes seconds with bad luck.

    Returns a bound on the cost of plans that admit everybody.
    """
    p, allowed = search.problem, search.problem.allowed()
    if len(p.quantum_jobs) or _priced(p) or not allowed.any(axis=1).all() or not len(p.demand):
        return 0
    left = search.deadline.left()
    run = _consolidate(search, allowed, None, seed, workers, share=min(0.1, GLANCE_S / left) if left else 0.0)
    search.cost_bound = run.bound if search.complete else 0
    return run.bound


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


def _decompose(search: Search, allowed: NDArray[np.bool_], seed: int, workers: int, *, whole: bool) -> None:
    """Backends, then nodes with quantum workloads pinned to zones, then admission or pair costs where they matter."""
    p = search.problem
    base, pinned, pairing = 0, allowed, None
    if len(p.quantum_jobs):
        pairing = backends.pair(p, allowed, search, 0.1 * search.deadline.left())
        search.mark("backends")
        if pairing is None:
            if not whole:
                _partial(search, allowed, seed, workers)
            return
        base, pinned = pairing.bound, pairing.pinned(p, allowed)
    priced = _priced(p)
    node_bound = 0
    if pairing is not None:
        node_bound = _node_bound(search, allowed)
        search.raise_bound(node_bound + base)
    coarse = Fillings.usable(p)
    run = _consolidate(search, pinned, pairing, seed, workers, share=0.1 if priced else 0.3 if coarse else 1.0)
    if pairing is None:
        node_bound = run.bound
        search.raise_bound(node_bound)
    if not (search.complete or run.infeasible or priced) and coarse:
        Fillings(search, pinned, priced=False).improve(
            0.3 * search.deadline.left(), base, bounding=pairing is None, backend=_backend(search, pairing), seed=seed
        )
    if not search.complete:
        search.cost_bound = 0
        if whole:
            return
        _partial(search, allowed, seed, workers)
        if not search.complete:
            return
        search.raise_bound(node_bound + base)
    if search.proven:
        return
    rolling.empty_nodes(search, pinned)
    fillings = _worthwhile(search, pinned, priced) if coarse else None
    if fillings is not None:
        share = 0.6 if priced else 0.3 if fillings.templates else 0.1
        seconds = share * search.deadline.left()
        fillings.improve(seconds, base, bounding=pairing is None, backend=search.backend, seed=seed)
    if priced:
        joint.improve(search, pinned, node_bound, seed, search.deadline.left(), base=base)
    elif fillings is not None and fillings.templates and not search.proven:
        fillings.count_up(base, bounding=pairing is None, backend=search.backend, workers=workers, seed=seed)
    elif not search.proven:
        share = 1.0 if len(search.assign) * len(p.capacity) > MEDIUM else 0.7
        run.resume(
            search.deadline.part(share * search.deadline.left()), (search.cost or 0) - base, search.cost_bound - base
        )
        search.mark("consolidation")


def _priced(problem: Problem) -> bool:
    """Whether more than the nodes in use costs something."""
    return problem.pair is not None or bool((problem.home >= 0).any())


def _worthwhile(search: Search, allowed: NDArray[np.bool_], priced: bool) -> Fillings | None:
    """Column generation, unless so many items share a node that splitting them loses nothing."""
    fillings = Fillings(search, allowed, priced=priced)
    few = len(search.assign) <= FEW_A_NODE * len(np.unique(search.assign))
    return fillings if priced or few or fillings.templates else None


def _backend(search: Search, pairing: backends.Pairing | None) -> Ints:
    return np.full(len(search.problem.demand), -1, dtype=np.int64) if pairing is None else pairing.backend


def _consolidate(
    search: Search,
    allowed: NDArray[np.bool_],
    pairing: backends.Pairing | None,
    seed: int,
    workers: int,
    share: float,
) -> Consolidation:
    p = search.problem
    backend = _backend(search, pairing)
    limit = search.deadline.part(share * search.deadline.left())

    def report(assign: Ints) -> None:
        if p.moved(assign) <= p.move_budget:
            search.offer(assign, backend)

    on_bound = search.raise_bound if pairing is None else int
    run = Consolidation(p, allowed, np.arange(len(p.demand)), limit, report, on_bound, seed=seed, workers=workers)
    plain = pairing is None and not _priced(p)
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
    relaxed = admit(search, allowed, seed, 0.5 * search.deadline.left())
    if not search.complete:
        search.cost_bound = cost_bound(relaxed, search.admitted, search)
    rejected = np.flatnonzero(search.assign < 0)
    if len(rejected) < len(search.assign):
        _without(search, rejected, seed, workers, whole=True)


def _without(search: Search, rejected: Ints, seed: int, workers: int, *, whole: bool) -> Search:
    """Plan again without the rejected, and take the plan over; returns the other search, for its bounds."""
    p, instance = search.problem, search.problem.instance
    kept = np.setdiff1d(np.arange(len(p.demand)), rejected)
    gone = int((p.home[rejected] >= 0).sum())
    smaller = replace(
        instance,
        workloads=tuple(instance.workloads[i] for i in kept),
        move_budget=None if instance.move_budget is None else max(0, instance.move_budget - gone),
    )
    began, known = search.deadline.spent(), (search.assign[kept], search.backend[kept])
    other = exact(
        compile_problem(smaller, p.goal), search.deadline.rest(), seed=seed, workers=workers, whole=whole, start=known
    )
    assign, backend = np.full(len(p.demand), -1, dtype=np.int64), np.full(len(p.demand), -1, dtype=np.int64)
    assign[kept], backend[kept] = other.assign, other.backend
    if p.moved(assign) <= p.move_budget:
        search.inherit(other, began, gone * p.move_cost)
        search.offer(assign, backend)
    search.mark("without the rejected")
    return other


def _without_impossible(search: Search, rejected: Ints, seed: int, workers: int) -> None:
    """Who fits nowhere takes no part, so that the bounds of the rest are bounds of the whole."""
    p = search.problem
    if len(rejected) == len(p.demand):
        search.admission_bound = 0
        return
    other = _without(search, rejected, seed, workers, whole=False)
    search.admission_bound = min(search.admission_bound, other.admission_bound)
    if search.admitted == other.admitted:
        search.raise_bound(other.cost_bound + p.move_cost * int((p.home[rejected] >= 0).sum()))
    search.mark("without the impossible")

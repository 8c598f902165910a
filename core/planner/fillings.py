"""Column generation applied to a problem: its bound to the search, its dives as plans."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import rolling
from qtandem.core.planner.classes import classify
from qtandem.core.planner.compact import place_counts
from qtandem.core.planner.joint import pair_cost
from qtandem.core.planner.patterns import Patterns
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

MOST_PAIRS = 400_000


class Fillings:
    """Types are items that are alike, classes nodes that are alike; with pair costs every item and node is its own."""

    def __init__(self, search: Search, allowed: NDArray[np.bool_], *, priced: bool) -> None:
        self.search, p = search, search.problem
        items = np.arange(len(p.demand))
        if priced:
            self.type_of, self.class_of = items, np.arange(len(p.capacity))
            count, size = np.ones(len(items), dtype=np.int64), np.ones(len(p.capacity), dtype=np.int64)
            demand, capacity, weight, pairs = p.demand, p.capacity, p.weight, pair_cost(p)
            permitted = allowed
        else:
            c = classify(p, allowed, items)
            key = np.column_stack([c.signature_of, c.demand])
            types, type_of, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
            self.type_of, self.class_of = type_of.reshape(-1).astype(np.int64), c.of_node
            demand, capacity, weight, size = np.ascontiguousarray(types[:, 1:]), c.capacity, c.weight, c.size
            permitted, pairs = c.signatures[types[:, 0]], np.zeros((1, 1))
        self.patterns = Patterns(
            demand, count.astype(np.int64), capacity, weight, size.astype(np.int64), np.ascontiguousarray(permitted),
            pairs, search.deadline,
        )  # fmt: skip

    @staticmethod
    def usable(problem: Problem) -> bool:
        return 0 < len(problem.demand) * len(problem.capacity) <= MOST_PAIRS

    def improve(self, seconds: float, base: int, *, bounding: bool, backend: Ints, seed: int) -> None:
        """Generate, bound (base is what the rest of the objective costs at least), dive; then with chance."""
        limit, patterns = self.search.deadline.part(seconds), self.patterns
        self.learn()
        patterns.start(0.3 * limit.left())
        self._tell(base, bounding)
        rng, chance, share = np.random.default_rng(seed), None, 0.25
        while not limit.expired() and not self.search.proven:
            patterns.run(share * limit.left())
            self._tell(base, bounding)
            fixed = patterns.dive(limit.left(), chance)
            self._offer(fixed, backend)
            self.learn()
            self.search.mark("fillings")
            chance, share = rng, 0.15
            if self.templates and patterns.converged:
                return

    @property
    def templates(self) -> bool:
        """Whether most items have others alike, so that counts are the better variables."""
        return 2 * len(self.patterns.count) <= len(self.type_of)

    def count_up(self, base: int, *, bounding: bool, backend: Ints, workers: int, seed: int) -> None:
        """CP-SAT over counts from the incumbent, until proven or time is up."""
        p, patterns = self.search.problem, self.patterns
        allowed = patterns.allowed[:, self.class_of]
        start = np.zeros(allowed.shape, dtype=np.int64)
        np.add.at(start, (self.type_of, self.search.assign), 1)

        def report(counts: Ints) -> None:
            self._offer([(j, counts[:, j]) for j in range(len(p.capacity))], backend, by_node=True)

        bound = place_counts(
            patterns.demand, patterns.count, p.capacity, p.weight, self.class_of, allowed, start,
            max(0, int(np.ceil(patterns.bound - 1e-6))), self.search.deadline, report, workers=workers, seed=seed,
        )  # fmt: skip
        if bounding:
            self.search.raise_bound(base + bound)
        self.search.mark("counts")

    def _tell(self, base: int, bounding: bool) -> None:
        if bounding and self.patterns.bound > 0:
            self.search.raise_bound(base + int(np.ceil(self.patterns.bound - 1e-6)))

    def learn(self) -> None:
        """The incumbent's fillings as columns."""
        assign = self.search.assign
        for j in np.unique(assign[assign >= 0]):
            taken = np.bincount(self.type_of[assign == j], minlength=len(self.patterns.count))
            self.patterns.add(int(self.class_of[j]), taken.astype(np.int64))

    def _offer(self, fixed: list[tuple[int, Ints]], backend: Ints, *, by_node: bool = False) -> None:
        """Offer fillings of classes (or of nodes, by number) as an assignment."""
        p = self.search.problem
        waiting = [np.flatnonzero(self.type_of == t).tolist() for t in range(len(self.patterns.count))]
        nodes = [np.flatnonzero(self.class_of == c).tolist() for c in range(len(self.patterns.size))]
        assign = np.full(len(p.demand), -1, dtype=np.int64)
        for c, taken in fixed:
            j = c if by_node else nodes[c].pop()
            for t in np.flatnonzero(taken):
                for _ in range(int(taken[t])):
                    assign[waiting[t].pop()] = j
        if (assign < 0).any() and not len(p.quantum_jobs):
            assign, _ = rolling.complete(p, assign)
        if (assign >= 0).all() and p.moved(assign) <= p.move_budget:
            self.search.offer(assign, backend)

"""Who is admitted when not everybody can be: a bound on the admitted priority, and plans close to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import greedy, kernels
from qtandem.core.planner.anneal import Annealer
from qtandem.core.planner.classes import classify
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.lp import INF, Program
from qtandem.core.planner.master import unions
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

ROUNDS = 12


@dataclass
class Admission:
    """The relaxation: units z in 0..1, all nodes open, one Gale row a union of classes and dimension."""

    problem: Problem
    allowed: NDArray[np.bool_]
    rows: list[tuple[NDArray[np.float64], float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        p = self.problem
        self.items = np.flatnonzero(self.allowed.any(axis=1))
        self.classes = classify(p, self.allowed, self.items)
        self.unions = unions(self.classes)
        outside = self.classes.signatures.astype(np.float32) @ (~self.unions).T.astype(np.float32)
        self.inside = (outside <= 0).T
        self.units = int(p.unit.max()) + 1
        self.pi = np.bincount(p.unit, weights=p.priority, minlength=self.units)
        self.possible = np.ones(self.units, dtype=bool)
        self.possible[p.unit[~self.allowed.any(axis=1)]] = False
        self.measures = self._all_measures()
        self._seen: set[tuple[int, int]] = set()
        self._backend_rows()

    def _all_measures(self) -> list[tuple[Ints, Ints]]:
        """(amount of each item, capacity of each class), raw and floored."""
        c = self.classes
        found = [(c.demand[:, k], c.capacity[:, k]) for k in range(c.demand.shape[1]) if c.demand[:, k].any()]
        for k in range(2):
            top = int(c.capacity[:, k].max(initial=0))
            sizes = {int(cap) // parts + 1 for cap in np.unique(c.capacity[:, k])[-4:] for parts in (2, 3)}
            found += [(c.demand[:, k] // t, c.capacity[:, k] // t) for t in sorted(sizes) if 1 < t <= top]
        return found

    def _backend_rows(self) -> None:
        p = self.problem
        for i in p.quantum_jobs:
            if not (p.backend_costs[p.quantum[i]] >= 0).any():
                self.possible[p.unit[i]] = False
        for chosen in _backend_sets(p):
            inside = [i for i in p.quantum_jobs if not (p.backend_costs[p.quantum[i]] >= 0).any(axis=0)[~chosen].any()]
            row = np.zeros(self.units)
            for i in inside:
                row[p.unit[i]] += p.quantum_slots[p.quantum[i]]
            if row.sum() > p.slots[chosen].sum():
                self.rows.append((row, float(p.slots[chosen].sum())))

    def separate(self, z: NDArray[np.float64]) -> int:
        c, p, added = self.classes, self.problem, 0
        part = z[p.unit[self.items]]
        for m, (amount, capacity) in enumerate(self.measures):
            needs = self.inside @ np.bincount(c.signature_of, amount * part, minlength=len(c.signatures))
            room = self.unions @ (capacity * c.size)
            for u in np.argsort(room - needs)[:3]:
                if needs[u] > room[u] + 1e-6 * max(1, room[u]) and (m, int(u)) not in self._seen:
                    self._seen.add((m, int(u)))
                    row = np.zeros(self.units)
                    within = self.inside[u][c.signature_of]
                    np.add.at(row, p.unit[self.items[within]], amount[within])
                    self.rows.append((row, float(room[u])))
                    added += 1
        return added

    def solve(self, search: Search, seconds: float, *, integer: bool, spare: float = 0.0) -> NDArray[np.float64] | None:
        """The best z with `spare` of every row kept free; without spare its bound is reported to the search."""
        z: NDArray[np.float64] = self.possible.astype(float)
        limit = search.deadline.part(seconds)
        for _ in range(ROUNDS):
            if not self.separate(z) and self.rows and _ > 0:
                break
            program = Program()
            program.add_columns(-self.pi, 0.0, self.possible.astype(float), integer=integer)
            for row, room in self.rows:
                index = np.flatnonzero(row)
                program.add_row(index, row[index], -INF, room * (1 - spare))
            outcome = program.solve(limit, limit.left(), gap=1e-4 if integer else 0.0)
            if not spare and np.isfinite(outcome.bound):
                search.admission_bound = min(search.admission_bound, int(np.floor(-outcome.bound + 1e-6)))
            if not len(outcome.x):
                return None
            z = outcome.x
        return z


def _backend_sets(problem: Problem) -> list[NDArray[np.bool_]]:
    """The distinct sets of eligible backends, and all of them together."""
    eligible = {tuple((problem.backend_costs[q] >= 0).any(axis=0)) for q in range(len(problem.backend_costs))}
    sets = [np.array(e) for e in eligible if any(e)]
    return [*sets, np.ones(len(problem.slots), dtype=bool)] if len(problem.slots) else []


def admit(search: Search, allowed: NDArray[np.bool_], seed: int, seconds: float) -> Admission:
    """Bound the admission, then close in on it by packing relaxed choices, annealing, and filling up."""
    p = search.problem
    relaxed = Admission(p, allowed)
    relaxed.solve(search, 0.15 * search.deadline.left(), integer=False)
    relaxed.solve(search, 0.2 * search.deadline.left(), integer=True)
    search.mark("admission bound")
    for spare in (0.0, 0.01, 0.02, 0.04, 0.07):
        if search.admitted >= search.admission_bound or search.deadline.expired():
            break
        z = relaxed.solve(search, 0.1 * search.deadline.left(), integer=True, spare=spare)
        if z is not None:
            _pack_chosen(search, allowed, z > 0.5)
    search.mark("admission packing")
    _anneal(search, allowed, seed, search.deadline.part(seconds))
    search.mark("admission annealing")
    return relaxed


def _pack_chosen(search: Search, allowed: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> None:
    """Best fit for the chosen units, large and confined ones first; then whoever still fits."""
    p = search.problem
    size = (p.demand / np.maximum(1, p.capacity.max(axis=0))).max(axis=1)
    freedom = allowed.sum(axis=1)
    units = np.arange(len(chosen))
    largest, least = np.zeros(len(chosen)), np.full(len(chosen), np.inf)
    np.maximum.at(largest, p.unit, size)
    np.minimum.at(least, p.unit, freedom)
    order = units[np.lexsort((-largest, least, ~chosen))].astype(np.int64)
    search.offer(*greedy.place(p, kernels.BEST_FIT, order))


def _anneal(search: Search, allowed: NDArray[np.bool_], seed: int, limit: Deadline) -> None:
    """Anneal with rejection as a place to be; gangs that end in part are put out, then the rest is filled up."""
    p = search.problem
    if len(p.quantum_jobs):
        return
    effort, most = 4_000_000, float(p.priority.max(initial=1))
    item = p.priority / np.bincount(p.unit)[p.unit]
    while search.admitted < search.admission_bound and not limit.expired():
        annealer = Annealer(
            p.demand, p.capacity, np.zeros(len(p.capacity), dtype=np.int64), allowed,
            np.zeros(allowed.shape, dtype=np.float32), item.astype(np.float32), scale=60.0 * most, seed=seed,
        )  # fmt: skip
        found = annealer.run(search.assign, limit, effort)
        if found is None or not search.offer(*_whole_gangs(p, found)):
            effort *= 2
        seed += 1


def _whole_gangs(problem: Problem, assign: Ints) -> tuple[Ints, Ints]:
    broken = np.unique(problem.unit[assign < 0])
    kept = np.where(np.isin(problem.unit, broken), -1, assign)
    return greedy.place(problem, kernels.BEST_FIT, greedy.queue_order(problem), start=kept)


def cost_bound(relaxed: Admission, admitted: int, search: Search) -> int:
    """A bound on node cost over all plans that admit at least this much: the relaxation with nodes priced."""
    c, z, n = relaxed.classes, relaxed.possible.astype(float), np.zeros(len(relaxed.classes.size))
    rows: set[tuple[int, int]] = set()
    best = 0.0
    for _ in range(ROUNDS):
        if search.deadline.expired():
            break
        before = len(rows)
        part = z[relaxed.problem.unit[relaxed.items]]
        for m, (amount, capacity) in enumerate(relaxed.measures):
            needs = relaxed.inside @ np.bincount(c.signature_of, amount * part, minlength=len(c.signatures))
            room = relaxed.unions @ (capacity * n)
            rows |= {(m, int(u)) for u in np.argsort(room - needs)[:3] if needs[u] > room[u] + 1e-6}
        if len(rows) == before:
            break
        program = Program()
        program.add_columns(np.zeros(relaxed.units), 0.0, relaxed.possible.astype(float))
        program.add_columns(
            c.weight.astype(float), np.where(c.weight == 0, c.size, 0).astype(float), c.size.astype(float)
        )
        program.add_row(np.arange(relaxed.units), relaxed.pi, float(admitted), INF)
        for m, u in rows:
            amount, capacity = relaxed.measures[m]
            within = relaxed.inside[u][c.signature_of]
            use = np.zeros(relaxed.units)
            np.add.at(use, relaxed.problem.unit[relaxed.items[within]], amount[within])
            line = np.concatenate([-use, np.where(relaxed.unions[u], capacity, 0)])
            index = np.flatnonzero(line)
            program.add_row(index, line[index].astype(float), 0.0, INF)
        outcome = program.solve(search.deadline, search.deadline.left())
        if not outcome.optimal:
            break
        best, z, n = outcome.objective, outcome.x[: relaxed.units], outcome.x[relaxed.units :]
    return int(np.ceil(best - 1e-6))

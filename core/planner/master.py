"""The projected master: how many nodes of each class to open, whatever the size of the instance.

Variables n_c only. Every plan satisfies, for each set U of classes and each dimension k,

  Gale   sum_{c in U} cap_ck n_c             >= sum_{i: sig(i) in U} d_ik
  floor  sum_{c in U} floor(cap_ck/t) n_c    >= sum_{i: sig(i) in U} floor(d_ik/t)      for every t

(the second because floor is superadditive; with t just over half a capacity it counts the large items). U runs over
unions of two signatures. Cuts are separated as they are violated; the integer program is solved by CP-SAT, so the
bound is exact in integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from qtandem.core.planner import cpsat
from qtandem.core.planner.classes import Classes
from qtandem.core.planner.columns import Columns, widen
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.lp import INF, Program
from qtandem.core.planner.problem import Ints
from qtandem.core.planner.weights import ItemProgram

SLACK_SCALE = 10_000
MOST_SIGNATURES = 150
MOST_SIZES = 40
# A cut over less than this share of a dimension's demand says nothing about how hard the packing is.
BROAD = 0.1
# Room beyond this share of a cut's demand no longer makes the packing easier.
MOST_SPARE = 400
Sum = cp_model.LinearExpr.weighted_sum


@dataclass
class Master:
    """`infeasible` once even all nodes together break a cut. `exclude` holds no-goods (see `forbid`)."""

    plain: Classes
    deadline: Deadline
    columns: Columns = field(init=False)
    unions: NDArray[np.bool_] = field(init=False)
    cuts: list[tuple[Ints, int, bool]] = field(default_factory=list)
    nogoods: list[tuple[Ints, Ints]] = field(default_factory=list)
    infeasible: bool = False

    def __post_init__(self) -> None:
        self._items: ItemProgram | None = None
        self._seen: set[tuple[int, int]] = set()
        self.columns = widen(self.plain)
        self.classes = self.columns.wide
        self.unions = unions(self.classes)
        inside = ~((self.classes.signatures.astype(np.float32) @ (~self.unions).T.astype(np.float32)) > 0)
        c = self.classes
        caps, amounts = [], []
        dims = np.flatnonzero(c.demand.any(axis=0)).tolist()
        divisors = [(k, 1) for k in dims] + [(k, t) for k in dims for t in _thresholds(c, k)]
        for k, t in divisors:
            caps.append(c.capacity[:, k] // t)
            amounts.append(np.bincount(c.signature_of, c.demand[:, k] // t, minlength=len(c.signatures)))
        self._raw = len(dims)
        self._caps = np.array(caps, dtype=np.int64).reshape(len(caps), len(c.size)).T
        needs = np.array(amounts, dtype=float).reshape(len(amounts), len(c.signatures)).T
        self._needs = np.rint(inside.T.astype(float) @ needs)
        self._member = self.unions.astype(float)
        self.infeasible = bool((self._needs > self._member @ (self._caps * c.size[:, None]) + 0.5).any())

    def separate(self, n: NDArray[np.float64], most: int = 40) -> int:
        """Add the cuts that n violates, the worst of each measure first; returns how many."""
        gap = self._needs - self._member @ (self._caps * n[:, None])
        relative = gap / np.maximum(self._needs, 1)
        rows = min(3, len(gap))
        worst = np.argpartition(-relative, rows - 1, axis=0)[:rows]
        added = 0
        for m in np.argsort(-relative.max(axis=0)):
            for u in worst[:, m]:
                if gap[u, m] > 1e-4 and (int(m), int(u)) not in self._seen and added < most:
                    self._seen.add((int(m), int(u)))
                    broad = m < self._raw and self._needs[u, m] >= BROAD * self._needs[:, m].max()
                    coefficients = np.where(self.unions[u], self._caps[:, m], 0)
                    self.cuts.append((coefficients, round(self._needs[u, m]), bool(broad)))
                    added += 1
        return added

    def relax(self) -> NDArray[np.float64] | None:
        """Cut the LP relaxation until nothing is violated; returns its n."""
        n: NDArray[np.float64] | None = None
        while not self.deadline.expired():
            if n is not None and not self.separate(n):
                return n
            program = Program()
            program.add_columns(self.classes.weight.astype(float), 0.0, self.classes.size.astype(float))
            for index, low, high in self._structure():
                program.add_row(index, np.ones(len(index)), float(low), float(high))
            for coefficients, rhs, _ in self.cuts:
                index = np.flatnonzero(coefficients)
                program.add_row(index, coefficients[index].astype(float), float(rhs), INF)
            outcome = program.solve(self.deadline, self.deadline.left())
            if not outcome.optimal:
                return None
            n = outcome.x
        return None

    def _structure(self) -> Iterator[tuple[Ints, int, int]]:
        """Rows low <= sum of these columns <= high: nodes of a class, all of them if it costs nothing; giants."""
        for c, size in enumerate(self.plain.size):
            yield np.flatnonzero(self.columns.parent == c), int(size) if self.plain.weight[c] == 0 else 0, int(size)
        for g, count in enumerate(self.columns.giants):
            yield np.flatnonzero(self.columns.giant == g), int(count), int(count)

    def probe(self, n: Ints, seconds: float) -> bool:
        """Add the cut of the item relaxation that these columns violate; False if they hold all in fractions."""
        if self._items is None:
            self._items = ItemProgram(self.classes)
        if not self._items.usable:
            return False
        cut = self._items.cut(n, self.deadline, seconds)
        if cut is None:
            return False
        self.cuts.append((*cut, True))
        return True

    def cheapest(self, seconds: float, *, gap: float = 0.0) -> tuple[Ints | None, int]:
        """The cheapest columns that keep all cuts, and a proven bound on the cost of any."""
        limit, best = self.deadline.part(seconds), 0
        while not limit.expired():
            model, n = self._model()
            cost = Sum(n, self.classes.weight.tolist())
            model.minimize(cost)
            if best:
                model.add(cost >= best)
            answer = cpsat.solve(model, limit, limit.left(), gap=gap)
            self.infeasible = self.infeasible or answer.infeasible
            if answer.value is None:
                return None, max(best, answer.bound)
            best = max(best, answer.bound)
            found = np.array([answer.value(v) for v in n], dtype=np.int64)
            if not self.separate(found.astype(float)):
                return found, best
        return None, best

    def slackest(self, cost: int, seconds: float, wanted: Sequence[tuple[Ints, int]] = ()) -> Ints | None:
        """Among the columns that cost at most `cost`, those whose broad cuts have most to spare.

        `wanted` are rows (coefficients, at least) that are no cuts, but experience of what does not pack.
        """
        limit = self.deadline.part(seconds)
        while not limit.expired():
            model, n = self._model()
            model.add(Sum(n, self.classes.weight.tolist()) <= cost)
            for coefficients, least in wanted:
                index = np.flatnonzero(coefficients)
                model.add(Sum([n[i] for i in index], coefficients[index].tolist()) >= least)
            spare = []
            for coefficients, rhs, broad in self.cuts:
                if broad:
                    index = np.flatnonzero(coefficients)
                    slack = model.new_int_var(0, MOST_SPARE, "")
                    expression = Sum([n[i] for i in index], (coefficients[index] * SLACK_SCALE).tolist())
                    model.add(expression >= rhs * SLACK_SCALE + rhs * slack)
                    spare.append(slack)
            least = model.new_int_var(0, MOST_SPARE, "")
            for slack in spare:
                model.add(least <= slack)
            model.maximize(sum(spare) + len(spare) * least)
            answer = cpsat.solve(model, limit, min(0.5, limit.left()), gap=0.1)
            if answer.value is None:
                return None
            found = np.array([answer.value(v) for v in n], dtype=np.int64)
            if not self.separate(found.astype(float)):
                return found
        return None

    def forbid(self, classes: Ints, n: Ints) -> None:
        """Exclude n and all below it on these (plain) classes: what must go there does not pack (proven elsewhere)."""
        self.nogoods.append((classes, n[classes].copy()))

    def _model(self) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
        model, c = cp_model.CpModel(), self.classes
        n = [model.new_int_var(0, int(s), "") for s in c.size]
        for index, low, high in self._structure():
            if len(index) > 1 or low > 0:
                model.add_linear_constraint(sum(n[i] for i in index), low, high)
        for coefficients, rhs, _ in self.cuts:
            index = np.flatnonzero(coefficients)
            model.add(Sum([n[i] for i in index], coefficients[index].tolist()) >= rhs)
        for where, levels in self.nogoods:
            above = []
            for index, level in zip(where, levels, strict=True):
                if level < self.plain.size[index]:
                    more = model.new_bool_var("")
                    total = sum(n[x] for x in np.flatnonzero(self.columns.parent == index))
                    model.add(total >= int(level) + 1).only_enforce_if(more)
                    above.append(more)
            model.add_bool_or(above)
        return model, n


def unions(c: Classes) -> NDArray[np.bool_]:
    """Signatures and their unions in pairs; of too many signatures only those with most demand are paired."""
    mass = np.bincount(c.signature_of, c.demand[:, 0] + c.demand[:, 1], minlength=len(c.signatures))
    heavy = np.argsort(-mass)[:MOST_SIGNATURES]
    signatures = c.signatures[c.signatures.any(axis=1)]
    paired = c.signatures[heavy]
    pairs = (paired[:, None, :] | paired[None, :, :]).reshape(-1, c.signatures.shape[1])
    everything = np.ones((1, c.signatures.shape[1]), dtype=bool)
    return np.unique(np.concatenate([signatures, pairs, everything]), axis=0)


def _thresholds(c: Classes, k: int) -> list[int]:
    """Divisors worth trying: the sizes of large items, and just over a half and a third of the large capacities."""
    top = int(c.capacity[c.weight > 0, k].max(initial=0))
    sizes = np.unique(c.demand[c.demand[:, k] > top // 12, k])
    if len(sizes) > MOST_SIZES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, MOST_SIZES).astype(int)]
    caps = np.unique(c.capacity[c.weight > 0, k])[-6:]
    found = {int(s) for s in sizes} | {int(cap) // parts + 1 for cap in caps for parts in (2, 3)}
    return sorted(t for t in found if t > 1)

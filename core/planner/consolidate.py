"""The cheapest nodes for items that all have to be placed: the master's bound, then packings along its frontier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.classes import Classes, classify
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.fixed import fixed_packing
from qtandem.core.planner.master import Master, unions
from qtandem.core.planner.packing import Packer, Packing
from qtandem.core.planner.problem import Ints, Problem

MOVES = 1_500_000
EXTRAS = (0.015, 0.03, 0.05, 0.1, 0.2, 0.4)
PROVABLE_ITEMS = 420
# So few items that whether they pack at n is mostly decided in a fraction of a second: n after n is excluded.
REFUTABLE_ITEMS = 150
STRONGER_S = 0.1
LARGE = 150
# Sets of nodes that are tried at one cost, each with more of what the one before it lacked: worth it where nodes are
# partly taken, each its own way, for then the one with most room to spare says little of the others.
LESSONS = 4
# Moves from the best packing, for each move from scratch.
WARM_SHARE = 0.25


@dataclass
class Consolidation:
    """One run; `bound` is proven, `best` a packing with its cost, `infeasible` that not all items can be placed."""

    problem: Problem
    allowed: NDArray[np.bool_]
    items: Ints
    deadline: Deadline
    report: Callable[[Ints], object]
    on_bound: Callable[[int], object] = int
    seed: int = 1
    workers: int = 1
    bound: int = 0
    cost: int | None = None
    infeasible: bool = False
    classes: Classes = field(init=False)

    def __post_init__(self) -> None:
        self.classes = classify(self.problem, self.allowed, self.items)
        self.master = Master(self.classes, self.deadline)
        self.packer = Packer(self.classes, self.problem.capacity, self.seed)
        self._best: Ints | None = None
        self._failed: dict[bytes, tuple[Ints, int]] = {}
        self._unions: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
        self.scale = max(1.0, len(self.problem.capacity) / 75)
        self.large = len(self.problem.capacity) > LARGE
        self.infeasible = self.master.infeasible

    @property
    def proven(self) -> bool:
        return self.infeasible or (self.cost is not None and self.cost <= self.bound)

    def run(self, known: int | None = None) -> None:
        """Bound, first plan, frontier, proof. `known` is the cost of a plan that is there already."""
        self.cost = known
        if self.infeasible:
            return
        self.master.relax()
        n, lower = self.master.cheapest(0.3 * self.deadline.left(), gap=0.0)
        self._raise(lower)
        self.infeasible = self.master.infeasible
        if self.proven:
            return
        if n is not None and not self.large and self._tight(lower, n):
            return
        if n is not None:
            n = self._probe(n)
            if self.infeasible or (
                not self.large and n is not None and self.bound > lower and self._tight(self.bound, n)
            ):
                return
        self._first()
        if n is not None and self.cost is not None:
            self._narrow(n)

    def resume(self, deadline: Deadline, cost: int, bound: int) -> None:
        """Go on with more time, and with the cost and the bound that others have found meanwhile."""
        self.deadline = self.master.deadline = deadline
        self.cost, self.bound = cost, max(self.bound, bound)
        n = self._choose(0.3 * deadline.left())
        if n is not None and not self.proven:
            self._narrow(n)

    def _choose(self, seconds: float) -> Ints | None:
        """The master's choice that holds all items at least in fractions; None if proven, or out of time."""
        found, lower = self.master.cheapest(seconds)
        self._raise(lower)
        return None if found is None or self.proven else self._probe(found)

    def _probe(self, n: Ints) -> Ints | None:
        """Cut off what cannot hold all items even in fractions."""
        limit, found = self.deadline.part(0.2 * self.deadline.left()), n
        while not limit.expired() and self.master.probe(found, limit.left()):
            again, lower = self.master.cheapest(limit.left())
            self._raise(lower)
            if again is None:
                break
            found = again
        self.infeasible = self.master.infeasible
        return None if self.infeasible else found

    def _narrow(self, n: Ints) -> None:
        """Close the gap from both sides until it is closed or time is up."""
        effort, found = 2.0, n
        while not (self.proven or self.deadline.expired()):
            again = self._refute(found, effort)
            if again is None:
                return
            found, before = again, self.cost
            self._frontier(effort)
            effort *= 2 if self.cost == before else 1
            again = self._again(found)
            if again is None:
                return
            found = again

    def _refute(self, n: Ints, effort: float) -> Ints | None:
        """Exclude the master's choice; where that is quick, also those that follow. Returns the choice that is left."""
        few = len(self.items) <= REFUTABLE_ITEMS
        limit = self.deadline.part((0.6 if few else 0.1) * self.deadline.left() + 0.3)
        while self._prove(n, effort, limit) and few and not limit.expired():
            again = self._choose(limit.left())
            if again is None:
                break
            n = again
        return None if self.proven or self.master.infeasible else n

    def bound_only(self, seconds: float) -> None:
        """Only the master's bound."""
        if self.infeasible:
            return
        self.master.relax()
        _, lower = self.master.cheapest(seconds)
        self._raise(lower)
        self.infeasible = self.master.infeasible

    def _raise(self, lower: int) -> None:
        if lower > self.bound:
            self.bound = lower
            self.on_bound(lower)

    def _again(self, n: Ints) -> Ints | None:
        """The master once more, with what has been excluded since."""
        found = self._choose(0.3 * self.deadline.left())
        if found is None or self.large or np.array_equal(found, n):
            return found
        if int(self.classes.weight @ self.master.columns.totals(found)) == self.bound:
            self._tight(self.bound, found)
        return found

    def _tight(self, cost: int, n: Ints) -> bool:
        """Try to pack at the bound itself, where it leaves most room."""
        self._failed.clear()
        return self._level(cost, 1.0) or self._try(n, 1.0)

    def _first(self) -> None:
        """A first plan with all items, from ever more money; falls back on all nodes."""
        for extra in EXTRAS:
            cost = round(self.bound * (1 + extra))
            if self.deadline.expired() or (self.cost is not None and cost >= self.cost):
                return
            if self._level(cost, 0.3, tries=1):
                return
        if self.cost is None:
            self._try(self.master.columns.whole(), 2.0)

    def _frontier(self, effort: float) -> None:
        """Bisect between a cost at which nothing packs and the cost of the best plan."""
        low = self.bound
        self._failed.clear()
        while self.cost is not None and self.cost - low > 1 and not (self.proven or self.deadline.expired()):
            middle = (low + self.cost) // 2
            if not self._level(middle, effort):
                low = middle
            if self.cost - low < 2e-4 * self.cost:
                break

    def _level(self, cost: int, effort: float, tries: int = LESSONS) -> bool:
        """Try nodes of this cost, and again with more of what the last ones lacked."""
        wanted: list[tuple[Ints, int]] = []
        for _ in range(tries if not self.large or (self.classes.weight == 0).any() else 1):
            n = self.master.slackest(cost, 1.0, wanted)
            if n is None:
                return False
            lesson = self._failed.get(n.tobytes())
            if lesson is None:
                packing = self._packed(n, effort)
                if packing.feasible:
                    return self._take(packing)
                lesson = self._lesson(n, packing)
                if lesson is None:
                    return False
                self._failed[n.tobytes()] = lesson
            if self.deadline.expired():
                return False
            wanted.append(lesson)
        return False

    def _lesson(self, n: Ints, packing: Packing) -> tuple[Ints, int] | None:
        """A row that asks for what overflowed, in the classes where the work on the overfull nodes could go."""
        if not np.isfinite(packing.overflow):
            return None
        c, capacity = self.classes, self.problem.capacity[packing.nodes]
        load = np.zeros_like(capacity)
        np.add.at(load, packing.node_of, c.demand)
        over = np.maximum(0, load - capacity)
        k = int(np.argmax((over / np.maximum(1, capacity.max(axis=0))).sum(axis=0)))
        overfull = np.flatnonzero(over[:, k])
        items = np.isin(packing.node_of, overfull)
        if not items.any():
            return None
        union: NDArray[np.bool_] = np.logical_or.reduce(c.signatures[c.signature_of[items]])
        columns = self.master.columns
        coefficients = np.where(union[columns.parent], columns.wide.capacity[:, k], 0)
        return coefficients, int(coefficients @ n) + int(over[:, k].sum())

    def _try(self, n: Ints, effort: float) -> bool:
        packing = self._packed(n, effort)
        return packing.feasible and self._take(packing)

    def _packed(self, n: Ints, effort: float) -> Packing:
        """From the best packing so far, which large instances leave it at; else from scratch."""
        totals = self.master.columns.totals(n)
        nodes = self.packer.open_nodes(totals)
        layout, moves = self.master.columns.layout(n, nodes), MOVES * self.scale * effort
        if self._best is not None:
            packing = self.packer.repack(self._best, nodes, layout, self.deadline, int(WARM_SHARE * moves))
            if packing.feasible or self.large:
                return packing
        return self.packer.pack(nodes, self.deadline, int(moves), restarts=1, layout=layout)

    def _take(self, packing: Packing) -> bool:
        full = np.full(len(self.problem.demand), -1, dtype=np.int64)
        full[self.items] = packing.assign()
        used = np.unique(packing.assign())
        cost = int(self.problem.weight[used].sum())
        if self.cost is None or cost < self.cost:
            self.cost, self._best = cost, packing.assign()
        self.report(full)
        return True

    def _prove(self, columns: Ints, effort: float, limit: Deadline) -> bool:
        """Look for a set of classes whose own items cannot be packed at n, the smallest first, and exclude it.

        Whether one was excluded. On the way all items may turn out to pack at n.
        """
        c, n = self.classes, self.master.columns.totals(columns)
        seconds = (0.5 if len(c.demand) <= REFUTABLE_ITEMS else 0.25) * effort
        excluded = False
        for union in self._tight_unions(n, 0.02):
            if limit.expired():
                break
            within: NDArray[np.bool_] = ~np.any(c.signatures & ~union, axis=1)
            items = np.flatnonzero(within[c.signature_of])
            if not 0 < len(items) <= PROVABLE_ITEMS:
                continue
            whole, level = len(items) == len(c.demand), np.where(union, n, 0)
            packing, none = self._shortly(items, level, limit), False
            if packing is None:
                packing, none = self._solve_fixed(items, level, limit.share(seconds))
            if none and union.all():
                # True, but of this n alone: a smaller set that does not pack either, found at once, says more.
                self.master.forbid(np.flatnonzero(union), n)
                excluded, seconds, limit = True, STRONGER_S, limit.part(4 * STRONGER_S)
            elif none:
                self.master.forbid(np.flatnonzero(union), self._lift(items, union, n, limit))
                return True
            elif packing is not None and whole:
                self._take(packing)
                break
            elif whole:
                seconds = STRONGER_S
        return excluded

    def _shortly(self, items: Ints, n: Ints, limit: Deadline) -> Packing | None:
        """A packing of these items at n by a short annealing."""
        part = replace(self.classes, demand=self.classes.demand[items], signature_of=self.classes.signature_of[items])
        packer = Packer(part, self.problem.capacity, self.seed)
        nodes = packer.open_nodes(n)
        packing = packer.pack(nodes, limit, 200_000) if len(nodes) else None
        return packing if packing is not None and packing.feasible else None

    def _tight_unions(self, n: Ints, spare: float) -> list[NDArray[np.bool_]]:
        """The unions of classes in which n leaves less than `spare` of some dimension, fewest items first.

        Of few items, all classes come before them.
        """
        c = self.classes
        if self._unions is None:
            family = unions(c)
            outside = c.signatures.astype(np.float32) @ (~family).T.astype(np.float32)
            self._unions = family, (outside <= 0).T
        family, inside = self._unions
        counts = np.bincount(c.signature_of, minlength=len(c.signatures))
        found = np.zeros(len(family), dtype=bool)
        for k in np.flatnonzero(c.demand.any(axis=0)):
            needs = inside @ np.bincount(c.signature_of, c.demand[:, k], minlength=len(c.signatures))
            found |= (needs > 0) & (family @ (c.capacity[:, k] * n) < needs * (1 + spare))
        items = inside @ counts
        tight = [family[u] for u in np.argsort(items) if found[u]]
        return [np.ones_like(family[0]), *tight] if len(c.demand) <= REFUTABLE_ITEMS else tight

    def _lift(self, items: Ints, union: NDArray[np.bool_], n: Ints, limit: Deadline) -> Ints:
        """Raise n on the classes of the union as long as the items still provably do not pack."""
        level = n.copy()
        for c in np.flatnonzero(union):
            while level[c] < self.classes.size[c] and not limit.expired():
                level[c] += 1
                _, none = self._solve_fixed(items, np.where(union, level, 0), 0.1)
                if not none:
                    level[c] -= 1
                    break
        return level

    def _solve_fixed(self, items: Ints, n: Ints, seconds: float) -> tuple[Packing | None, bool]:
        c = self.classes
        nodes = self.packer.open_nodes(n)
        if not len(nodes):
            return None, True
        cap, of_node = self.problem.capacity[nodes], c.of_node[nodes]
        order = np.argsort(of_node, kind="stable")
        nodes, cap, of_node = nodes[order], cap[order], of_node[order]
        demand = c.demand[items]
        if (demand.sum(axis=0) > cap.sum(axis=0)).any():
            return None, True
        found, none = fixed_packing(
            demand, cap, c.signatures[:, of_node], c.signature_of[items], of_node, self.deadline, seconds,
            workers=self.workers,
        )  # fmt: skip
        return (None if found is None else Packing(nodes, found, 0.0)), none

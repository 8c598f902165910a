"""The master's columns: a class's plain nodes, and its nodes that host one giant.

Giants are items of which no two fit together on any node. Relaxations that may split items miss what a giant leaves
unusable on its node; so each giant is placed in integers: a column (c, g) is a node of class c with the capacity that g
leaves, and each giant has exactly one. The other items are relaxed over plain and hosting columns alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.classes import Classes
from qtandem.core.planner.problem import Ints

MOST_COLUMNS = 600
MOST_OTHERS = 40


@dataclass(frozen=True, slots=True)
class Layout:
    """What may go where on given open nodes: `rows[row_of[p]]` for item p; `seat[p]` where it sits, or -1."""

    rows: NDArray[np.bool_]
    row_of: Ints
    seat: Ints


@dataclass(frozen=True)
class Columns:
    """`wide` has one class a column, and only the items that are no giants; `parent[x]` is the class of column x.

    `giant[x]` numbers the giants' kind that column x hosts (-1: plain), `giants[g]` how many of that kind there are,
    `members[g]` which items of `plain` they are.
    """

    plain: Classes
    wide: Classes
    parent: Ints
    giant: Ints
    giants: Ints
    members: tuple[Ints, ...]

    def layout(self, n: Ints, nodes: Ints) -> Layout:
        """Seat the giants of the hosting columns on open `nodes`, and bar those nodes to what does not fit beside."""
        count = len(self.plain.demand)
        seat = np.full(count, -1, dtype=np.int64)
        column = self.plain.of_node[nodes].copy()
        taken: dict[int, int] = {}
        waiting = [list(m) for m in self.members]
        for x in np.flatnonzero((self.giant >= 0) & (n > 0)):
            c = int(self.parent[x])
            here = np.flatnonzero(self.plain.of_node[nodes] == c)
            for _ in range(int(n[x])):
                spot = here[taken.get(c, 0)]
                taken[c] = taken.get(c, 0) + 1
                seat[waiting[self.giant[x]].pop()] = spot
                column[spot] = x
        giants = np.concatenate([seat[:0], *self.members])
        own = self.plain.signatures[self.plain.signature_of[giants]][:, self.plain.of_node[nodes]]
        for row, spot in zip(own, seat[giants], strict=True):
            if spot >= 0:
                row[:] = False
                row[spot] = True
        row_of = np.zeros(count, dtype=np.int64)
        row_of[np.setdiff1d(np.arange(count), giants)] = self.wide.signature_of
        row_of[giants] = len(self.wide.signatures) + np.arange(len(giants))
        return Layout(np.vstack([self.wide.signatures[:, column], own]), row_of, seat)

    def totals(self, n: Ints) -> Ints:
        """Nodes of each class, from nodes of each column."""
        return np.bincount(self.parent, weights=n, minlength=len(self.plain.size)).astype(np.int64)

    def whole(self) -> Ints:
        """All nodes of every class, as plain columns."""
        return np.where(self.giant < 0, self.wide.size, 0)


def widen(plain: Classes) -> Columns:
    chosen = _giants(plain)
    kinds: list[tuple[int, Ints]] = []
    counts: list[int] = []
    demand, signature = plain.demand[chosen], plain.signature_of[chosen]
    key = np.column_stack([signature, demand]) if len(chosen) else np.zeros((0, 1), dtype=np.int64)
    unique, which = np.unique(key, axis=0, return_inverse=True)
    members = tuple(chosen[which.reshape(-1) == g] for g in range(len(unique)))
    for row, of_kind in zip(unique, members, strict=True):
        kinds.append((int(row[0]), row[1:]))
        counts.append(len(of_kind))
    capacity, parent, giant = [plain.capacity], [np.arange(len(plain.size))], [np.full(len(plain.size), -1)]
    size = [plain.size]
    for g, (s, needs) in enumerate(kinds):
        hosts = np.flatnonzero(plain.signatures[s])
        capacity.append(plain.capacity[hosts] - needs)
        parent.append(hosts)
        giant.append(np.full(len(hosts), g))
        size.append(np.minimum(plain.size[hosts], counts[g]))
    caps, parents = np.vstack(capacity), np.concatenate(parent)
    small = np.setdiff1d(np.arange(len(plain.demand)), chosen)
    fits = plain.signatures[plain.signature_of[small]][:, parents]
    for k in range(caps.shape[1]):
        fits &= plain.demand[small, k, None] <= caps[None, :, k]
    signatures, signature_of = np.unique(fits, axis=0, return_inverse=True)
    wide = Classes(
        of_node=plain.of_node,
        size=np.concatenate(size),
        capacity=caps,
        weight=plain.weight[parents],
        signatures=signatures,
        signature_of=signature_of.reshape(-1).astype(np.int64),
        demand=plain.demand[small],
        items=plain.items[small],
    )
    return Columns(plain, wide, parents, np.concatenate(giant), np.array(counts, dtype=np.int64), members)


def _giants(c: Classes) -> Ints:
    """A set of items of which no two fit on one node, those that leave the most lopsided rest first."""
    if not len(c.demand):
        return np.zeros(0, dtype=np.int64)
    top = np.maximum(1, c.capacity.max(axis=0))
    share = c.demand / top
    lopsided = share[:, :4].max(axis=1) - share[:, :2].min(axis=1)
    large = [np.flatnonzero(2 * c.demand[:, k] > top[k]) for k in range(4)]
    main = max(large, key=lambda items: float(lopsided[items].sum()))
    others = np.flatnonzero((share[:, :4].max(axis=1) > 0.45) & ~np.isin(np.arange(len(share)), main))
    chosen: list[int] = []
    columns = 0
    for i in [*main[np.argsort(-lopsided[main])], *others[np.argsort(-lopsided[others])][:MOST_OTHERS]]:
        hosts = int(c.signatures[c.signature_of[i]].sum())
        if columns + hosts <= MOST_COLUMNS and all(_conflict(c, i, other) for other in chosen):
            chosen.append(int(i))
            columns += hosts
    return np.array(sorted(chosen), dtype=np.int64)


def _conflict(c: Classes, i: int, other: int) -> bool:
    both = c.signatures[c.signature_of[i]] & c.signatures[c.signature_of[other]]
    return bool((c.demand[i] + c.demand[other] > c.capacity[both]).any(axis=1).all())

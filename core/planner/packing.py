"""Putting items on a given set of open nodes: best fit decreasing, then annealing of the overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import kernels
from qtandem.core.planner.classes import Classes
from qtandem.core.planner.deadline import MOVES_PER_SECOND, Deadline
from qtandem.core.planner.problem import Ints

CHUNK = 400_000
HOT, COLD = 0.02, 2e-4


@dataclass(frozen=True, slots=True)
class Packing:
    """`node_of[p]` is the open node (index into `nodes`) of item p; `overflow` is 0 for a feasible packing."""

    nodes: Ints
    node_of: Ints
    overflow: float

    @property
    def feasible(self) -> bool:
        return self.overflow <= 0

    def assign(self) -> Ints:
        return self.nodes[self.node_of]


class Packer:
    """Packs the items of `classes` at any n; keeps the generator's state, so that restarts differ."""

    def __init__(self, classes: Classes, capacity: Ints, seed: int) -> None:
        self.classes = classes
        self.capacity = capacity
        self.state = np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64 or 1], dtype=np.uint64)
        total = classes.demand.sum(axis=0).astype(float)
        room = (classes.capacity * classes.size[:, None]).sum(axis=0).astype(float)
        tight = np.divide(total, room, out=np.zeros(len(total)), where=room > 0)
        order = np.argsort(-tight)
        self.dims = np.sort(order[tight[order] > 0.6 * tight.max()]) if len(classes.demand) else order[:1]
        self.none = np.zeros((1, 1), dtype=np.float32)

    def open_nodes(self, n: Ints) -> Ints:
        """The first n_c nodes of every class."""
        return np.sort(np.concatenate([self.classes.nodes_of(c)[:count] for c, count in enumerate(n)]))

    def best_fit(self, nodes: Ints, seats: Ints | None = None) -> tuple[Ints, int]:
        """Best fit decreasing around the seats, by the open capacity that each item may use; node indices, misses."""
        c = self.classes
        demand, cap = c.demand, self.capacity[nodes]
        rows = c.signatures[:, c.of_node[nodes]]
        usable = rows @ cap[:, 0]
        size = (demand / np.maximum(1, cap.max(axis=0))).max(axis=1)
        best, misses = None, len(demand) + 1
        for key in (usable[c.signature_of], np.round(usable[c.signature_of] / max(1, usable.max()), 1)):
            order = np.lexsort((-size, key)).astype(np.int64)
            assign = np.full(len(demand), -1, dtype=np.int64) if seats is None else seats.copy()
            free, seated = cap.copy(), assign >= 0
            np.subtract.at(free, assign[seated], demand[seated])
            starts = np.arange(len(demand) + 1, dtype=np.int64)
            used = np.ones(len(nodes), dtype=bool)
            kernels.place_units(order, starts, demand, cap, free, rows, c.signature_of, used, kernels.BEST_FIT, assign)
            missed = int((assign < 0).sum())
            if missed < misses:
                best, misses = assign, missed
            if not misses:
                break
        assert best is not None
        return best, misses

    def pack(
        self, nodes: Ints, deadline: Deadline, moves: int, restarts: int = 1, seats: Ints | None = None
    ) -> Packing:
        """Best fit, then up to `restarts` annealings of `moves` moves each, from what best fit left."""
        start, misses = self.best_fit(nodes, seats)
        deadline.charge(len(start) * len(nodes) / 5e7)
        if not misses:
            return Packing(nodes, start, 0.0)
        best: Packing | None = None
        for _ in range(restarts):
            if deadline.expired() and best is not None:
                break
            packing = self.anneal(nodes, start, deadline, moves)
            if packing is None:
                return Packing(nodes, start, np.inf)
            if best is None or packing.overflow < best.overflow:
                best = packing
            if best.feasible:
                break
        assert best is not None
        return best

    def anneal(self, nodes: Ints, start: Ints, deadline: Deadline, moves: int) -> Packing | None:
        """Anneal from `start`; None if some item has no permitted node among these."""
        c = self.classes
        rows = c.signatures[:, c.of_node[nodes]]
        counts = rows.sum(axis=1)
        if (counts[c.signature_of] == 0).any():
            return None
        options = np.argsort(~rows, axis=1, kind="stable").astype(np.int32)
        cap = self.capacity[nodes]
        assign = self._spread(start, cap, rows)
        dims = self.dims
        overflow = self._run(assign, cap, rows, options, counts, dims, deadline, moves)
        if overflow <= 0 and len(dims) < cap.shape[1]:
            dims = np.arange(cap.shape[1])
            overflow = self._run(assign, cap, rows, options, counts, dims, deadline, moves)
        return Packing(nodes, assign, overflow)

    def _spread(self, start: Ints, cap: Ints, rows: NDArray[np.bool_]) -> Ints:
        """Give each item without a node the permitted node that is least full."""
        c, assign = self.classes, start.copy()
        load = np.zeros_like(cap)
        placed = assign >= 0
        np.add.at(load, assign[placed], c.demand[placed])
        scale = 1 / np.maximum(1, cap)
        for p in np.flatnonzero(~placed):
            full = ((load + c.demand[p]) * scale)[:, :2].max(axis=1)
            full[~rows[c.signature_of[p]]] = np.inf
            assign[p] = int(np.argmin(full))
            load[assign[p]] += c.demand[p]
        return assign

    def _run(
        self,
        assign: Ints,
        cap: Ints,
        rows: NDArray[np.bool_],
        options: NDArray[np.int32],
        counts: Ints,
        dims: Ints,
        deadline: Deadline,
        moves: int,
    ) -> float:
        demand = np.ascontiguousarray(self.classes.demand[:, dims])
        room = np.ascontiguousarray(cap[:, dims])
        inverse = 1.0 / np.maximum(1, room.max(axis=0))
        chunks = max(1, round(moves / CHUNK))
        ratio = (COLD / HOT) ** (1 / chunks)
        hot, overflow = HOT, np.inf
        for _ in range(chunks):
            overflow, done = kernels.anneal(
                demand, room, inverse, options, counts, rows, self.classes.signature_of, assign, moves // chunks, hot,
                hot * ratio, self.state, self.none, 0.0, 4,
            )  # fmt: skip
            deadline.charge(done / MOVES_PER_SECOND)
            hot *= ratio
            if overflow <= 0 or deadline.expired():
                break
        return float(overflow)

"""Putting items on a given set of open nodes: best fit decreasing, then annealing of the overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import kernels
from qtandem.core.planner.classes import Classes
from qtandem.core.planner.columns import Layout
from qtandem.core.planner.deadline import MOVES_PER_SECOND, Deadline
from qtandem.core.planner.problem import Ints

CHUNK = 400_000
COLD = 2e-4
# From each temperature down to COLD, for this share of the moves; the rest is left out where much still overflows.
SCHEDULE = ((0.02, 1.0), (0.004, 0.5), (0.002, 0.5), (0.001, 0.5))
# From a packing for almost the same nodes: heat would only undo what it has found.
WARM = ((0.0005, 1.0),)
HOPELESS = 0.08


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
        share = (classes.demand / np.maximum(1, classes.capacity.max(axis=0, initial=0))).max(axis=0, initial=0)
        matters = (tight > 0.6 * tight.max(initial=0)) | (share > 0.3)
        self.dims = np.flatnonzero(matters) if matters.any() else order[:1]
        self.free = np.zeros(1, dtype=np.float64)
        self.none = np.zeros((1, 1), dtype=np.float32)

    def open_nodes(self, n: Ints) -> Ints:
        """The first n_c nodes of every class."""
        return np.sort(np.concatenate([self.classes.nodes_of(c)[:count] for c, count in enumerate(n)]))

    def layout(self, nodes: Ints) -> Layout:
        """No seats: what the signatures permit."""
        c = self.classes
        nobody = np.full(len(c.demand), -1, dtype=np.int64)
        return Layout(c.signatures[:, c.of_node[nodes]], c.signature_of, nobody)

    def best_fit(self, nodes: Ints, layout: Layout) -> tuple[Ints, int]:
        """Best fit decreasing around the seats, by the open capacity that each item may use; node indices, misses."""
        demand, cap = self.classes.demand, self.capacity[nodes]
        usable = (layout.rows @ cap[:, 0])[layout.row_of]
        size = (demand / np.maximum(1, cap.max(axis=0))).max(axis=1)
        best, misses = layout.seat, len(demand) + 1
        for key in (usable, np.round(usable / max(1, usable.max()), 1)):
            order = np.lexsort((-size, key)).astype(np.int64)
            assign, free = layout.seat.copy(), cap.copy()
            seated = assign >= 0
            np.subtract.at(free, assign[seated], demand[seated])
            starts = np.arange(len(demand) + 1, dtype=np.int64)
            used = np.ones(len(nodes), dtype=bool)
            kernels.place_units(
                order, starts, demand, cap, free, layout.rows, layout.row_of, used, kernels.BEST_FIT, assign
            )
            missed = int((assign < 0).sum())
            if missed < misses:
                best, misses = assign, missed
            if not misses:
                break
        return best, misses

    def pack(
        self, nodes: Ints, deadline: Deadline, moves: int, restarts: int = 1, layout: Layout | None = None
    ) -> Packing:
        """Best fit, then up to `restarts` annealings of `moves` moves each, from what best fit left."""
        layout = layout or self.layout(nodes)
        start, misses = self.best_fit(nodes, layout)
        deadline.charge(len(start) * len(nodes) / 5e7)
        if not misses:
            return Packing(nodes, start, 0.0)
        best = Packing(nodes, start, np.inf)
        for _ in range(restarts):
            packing = self.anneal(nodes, start, layout, deadline, moves)
            if packing is not None and packing.overflow < best.overflow:
                best = packing
            if packing is None or best.feasible or deadline.expired():
                break
        return best

    def repack(self, before: Ints, nodes: Ints, layout: Layout, deadline: Deadline, moves: int) -> Packing:
        """Anneal what a feasible packing on other nodes (`before`: node of each item) leaves to do on these."""
        index = np.full(len(self.capacity), -1, dtype=np.int64)
        index[nodes] = np.arange(len(nodes))
        start = index[before]
        stays = (start >= 0) & layout.rows[layout.row_of, start]
        start = np.where(layout.seat >= 0, layout.seat, np.where(stays, start, -1))
        packing = self.anneal(nodes, start, layout, deadline, moves, WARM)
        return packing or Packing(nodes, start, np.inf)

    def anneal(
        self,
        nodes: Ints,
        start: Ints,
        layout: Layout,
        deadline: Deadline,
        moves: int,
        schedule: tuple[tuple[float, float], ...] = SCHEDULE,
    ) -> Packing | None:
        """Anneal from `start`, seated items staying; None if some item has no permitted node among these."""
        rows, row_of = layout.rows, layout.row_of
        counts = rows.sum(axis=1)
        if (counts[row_of] == 0).any():
            return None
        options = np.argsort(~rows, axis=1, kind="stable").astype(np.int32)
        cap = self.capacity[nodes]
        assign = self._spread(start, cap, rows, row_of)
        dims = self.dims
        overflow = self._run(assign, cap, rows, row_of, options, counts, dims, deadline, moves, schedule)
        if overflow <= 0 and len(dims) < cap.shape[1]:
            dims = np.arange(cap.shape[1])
            overflow = self._run(assign, cap, rows, row_of, options, counts, dims, deadline, moves, schedule)
        return Packing(nodes, assign, overflow)

    def _spread(self, start: Ints, cap: Ints, rows: NDArray[np.bool_], row_of: Ints) -> Ints:
        """Give each item without a node the permitted node that is least full."""
        c, assign = self.classes, start.copy()
        load = np.zeros_like(cap)
        placed = assign >= 0
        np.add.at(load, assign[placed], c.demand[placed])
        scale = 1 / np.maximum(1, cap)
        for p in np.flatnonzero(~placed):
            full = ((load + c.demand[p]) * scale)[:, :2].max(axis=1)
            full[~rows[row_of[p]]] = np.inf
            assign[p] = int(np.argmin(full))
            load[assign[p]] += c.demand[p]
        return assign

    def _run(
        self,
        assign: Ints,
        cap: Ints,
        rows: NDArray[np.bool_],
        row_of: Ints,
        options: NDArray[np.int32],
        counts: Ints,
        dims: Ints,
        deadline: Deadline,
        moves: int,
        schedule: tuple[tuple[float, float], ...],
    ) -> float:
        demand = np.ascontiguousarray(self.classes.demand[:, dims])
        room = np.ascontiguousarray(cap[:, dims])
        inverse = 1.0 / np.maximum(1, room.max(axis=0))
        overflow = np.inf
        for hot, share in schedule:
            chunks = max(1, round(moves * share / CHUNK))
            ratio = (COLD / hot) ** (1 / chunks)
            for _ in range(chunks):
                overflow, done = kernels.anneal(
                    demand, room, inverse, options, counts, rows, row_of, assign, int(moves * share) // chunks, hot,
                    hot * ratio, self.state, self.none, self.free, 0.0, 4,
                )  # fmt: skip
                deadline.charge(done / MOVES_PER_SECOND)
                hot *= ratio
                if overflow <= 0 or deadline.expired():
                    return float(overflow)
            if overflow > HOPELESS:
                break
        return float(overflow)

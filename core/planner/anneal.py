"""Annealing of the whole objective: overflow, nodes in use, pair costs, and rejection as a node that always fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import kernels
from qtandem.core.planner.deadline import MOVES_PER_SECOND, Deadline
from qtandem.core.planner.problem import Ints

CHUNK = 300_000


@dataclass
class Annealer:
    """Anneals assignments of these items over these nodes; `allowed` is (items, nodes).

    `reject`: what leaving an item out costs, per item; None where all must be placed. Costs are in units of the
    objective, and `scale` is how many of them weigh as much as overflowing the largest node once.
    """

    demand: Ints
    capacity: Ints
    weight: Ints
    allowed: NDArray[np.bool_]
    pair: NDArray[np.float32]
    reject: NDArray[np.float32] | None
    scale: float
    seed: int = 1

    def __post_init__(self) -> None:
        self.state = np.array([self.seed * 0x9E3779B97F4A7C15 % 2**64 or 1], dtype=np.uint64)
        allowed, cap, pair = self.allowed, self.capacity, self.pair
        weight = self.weight.astype(np.float64)
        if self.reject is not None:
            allowed = np.column_stack([allowed, np.ones(len(allowed), dtype=bool)])
            cap = np.vstack([cap, np.full((1, cap.shape[1]), 2**40)])
            pair = np.column_stack([pair, self.reject])
            weight = np.append(weight, 0.0)
        rows, row_of = np.unique(allowed, axis=0, return_inverse=True)
        self._rows, self._row_of = rows, row_of.reshape(-1).astype(np.int64)
        self._counts = rows.sum(axis=1)
        self._options = np.argsort(~rows, axis=1, kind="stable").astype(np.int32)
        self._weight, self._pair = weight, np.ascontiguousarray(pair, dtype=np.float32)
        share = (self.demand / np.maximum(1, self.capacity.max(axis=0))).max(axis=0)
        total = self.demand.sum(axis=0) / np.maximum(1, self.capacity.sum(axis=0))
        self._dims = (
            np.flatnonzero(share > 0) if len(self.demand) < 1500 else np.flatnonzero((total > 0.3) | (share > 0.3))
        )
        self._inverse = 1.0 / np.maximum(1, self.capacity.max(axis=0)).astype(float)
        self._cap = cap

    def run(self, assign: Ints, deadline: Deadline, moves: int, hot: float = 0.02, cold: float = 2e-4) -> Ints | None:
        """Anneal from `assign` (-1: rejected); returns a feasible assignment, or None if none was met."""
        reject = len(self.capacity)
        if self.reject is None and (assign < 0).any():
            return None
        work = np.where(assign < 0, reject, assign).astype(np.int64)
        demand = np.ascontiguousarray(self.demand[:, self._dims])
        cap = np.ascontiguousarray(self._cap[:, self._dims])
        inverse = np.ascontiguousarray(self._inverse[self._dims])
        chunks = max(1, round(moves / CHUNK))
        ratio = (cold / hot) ** (1 / chunks)
        overflow = np.inf
        for _ in range(chunks):
            if deadline.expired():
                break
            overflow, done = kernels.anneal(
                demand, cap, inverse, self._options, self._counts, self._rows, self._row_of, work, moves // chunks, hot,
                hot * ratio, self.state, self._pair, self._weight, 1.0 / self.scale, 4,
            )  # fmt: skip
            deadline.charge(done / MOVES_PER_SECOND)
            hot *= ratio
        if overflow > 0 or not self._fits(work):
            return None
        return np.where(work == reject, -1, work)

    def _fits(self, work: Ints) -> bool:
        load = np.zeros_like(self._cap)
        np.add.at(load, work, self.demand)
        return bool((load <= self._cap).all())

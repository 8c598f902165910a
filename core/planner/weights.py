"""Cuts for the master from the linear relaxation over items and classes, made exact in integers.

For non-negative integer prices pi_ck of a class's capacity, an item is worth v_i = min(h_i, min_{c in sig(i)} pi_c d_i)
and a node of class c holds at most pi_c cap_c of worth, so that every plan satisfies

  sum_c (pi_c cap_c) n_c >= sum_i v_i.

The prices come from the dual of a linear program; being only prices, their rounding cannot make the cut wrong.
"""

from __future__ import annotations

import highspy
import numpy as np

from qtandem.core.planner.classes import Classes
from qtandem.core.planner.deadline import ITERATIONS_PER_SECOND, Deadline
from qtandem.core.planner.lp import new_solver
from qtandem.core.planner.problem import Ints

PRICE_SCALE = 1_000_000
MOST_COLUMNS = 120_000


class ItemProgram:
    """min sum h_i u_i: the worth of what does not fit n even in fractions. Warm from one n to the next."""

    def __init__(self, classes: Classes) -> None:
        self.classes = c = classes
        key = np.column_stack([c.signature_of, c.demand])
        groups, self.count = np.unique(key, axis=0, return_counts=True)
        self.signature, self.demand = groups[:, 0], groups[:, 1:]
        self.dims = np.flatnonzero(c.demand.any(axis=0))
        self.pairs = np.argwhere(c.signatures[self.signature])
        self.worth = (self.demand / np.maximum(1, c.capacity.max(axis=0))).max(axis=1)
        self._solver: highspy.Highs | None = None

    @property
    def usable(self) -> bool:
        return 0 < len(self.pairs) <= MOST_COLUMNS

    def cut(self, n: Ints, deadline: Deadline, seconds: float) -> tuple[Ints, int] | None:
        """A cut that n violates, or None where everything fits in fractions (or time is short)."""
        allowed = deadline.share(seconds)
        if allowed <= 0:
            return None
        solver = self._solver = self._solver or self._build()
        c, dims = self.classes, self.dims
        high = (c.capacity[:, dims] * n[:, None]).astype(float).reshape(-1)
        rows = len(self.count) + np.arange(len(high), dtype=np.int32)
        solver.changeRowsBounds(len(rows), rows, np.full(len(high), -highspy.kHighsInf), high)
        if deadline.deterministic:
            solver.setOptionValue("simplex_iteration_limit", int(allowed * ITERATIONS_PER_SECOND))
        else:
            solver.setOptionValue("time_limit", solver.getRunTime() + allowed)
        solver.run()
        deadline.charge(max(0, solver.getInfo().simplex_iteration_count) / ITERATIONS_PER_SECOND)
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        if solver.getInfo().objective_function_value < 1e-7:
            return None
        duals = -np.array(solver.getSolution().row_dual)[len(self.count) :].reshape(len(c.size), len(dims))
        return self._priced(np.maximum(0.0, duals), n)

    def _priced(self, prices: np.ndarray, n: Ints) -> tuple[Ints, int] | None:
        c = self.classes
        pi = np.rint(prices * PRICE_SCALE).astype(np.int64)
        worth = np.rint(self.worth * PRICE_SCALE).astype(np.int64)
        value = pi @ self.demand[:, self.dims].T
        value[~c.signatures[self.signature].T] = np.iinfo(np.int64).max
        value = np.minimum(worth, value.min(axis=0))
        coefficients = (pi * c.capacity[:, self.dims]).sum(axis=1)
        right = int(value @ self.count)
        # A power of two off both sides keeps CP-SAT's numbers small: up on the left, down on the right.
        shift = max(0, int(right).bit_length() - 24)
        coefficients, right = -((-coefficients) >> shift), right >> shift
        return (coefficients, right) if int(coefficients @ n) < right else None

    def _build(self) -> highspy.Highs:
        c, dims, groups = self.classes, self.dims, len(self.count)
        model = highspy.HighsLp()
        pairs, columns = self.pairs, len(self.pairs)
        model.num_col_, model.num_row_ = columns + groups, groups + len(c.size) * len(dims)
        model.col_cost_ = np.concatenate([np.zeros(columns), self.worth])
        model.col_lower_ = np.zeros(model.num_col_)
        model.col_upper_ = np.full(model.num_col_, highspy.kHighsInf)
        upper = np.full(len(c.size) * len(dims), highspy.kHighsInf)
        model.row_lower_ = np.concatenate([self.count.astype(float), np.full(len(upper), -highspy.kHighsInf)])
        model.row_upper_ = np.concatenate([self.count.astype(float), upper])
        size = 1 + len(dims)
        index = np.empty((columns, size), dtype=np.int32)
        value = np.empty((columns, size))
        index[:, 0], value[:, 0] = pairs[:, 0], 1.0
        for position, k in enumerate(dims):
            index[:, 1 + position] = groups + pairs[:, 1] * len(dims) + position
            value[:, 1 + position] = self.demand[pairs[:, 0], k]
        keep = value != 0
        starts = np.concatenate(([0], np.cumsum(keep.sum(axis=1)), keep.sum() + 1 + np.arange(groups)))
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = starts.astype(np.int32)
        model.a_matrix_.index_ = np.concatenate([index[keep], np.arange(groups, dtype=np.int32)])
        model.a_matrix_.value_ = np.concatenate([value[keep], np.ones(groups)])
        solver = new_solver()
        solver.passModel(model)
        return solver

"""One way to state and run a linear or mixed-integer program in HiGHS."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.deadline import ITERATIONS_PER_SECOND, Deadline

Floats = NDArray[np.float64]
INF = highspy.kHighsInf


@dataclass(frozen=True, slots=True)
class Outcome:
    """`bound` is HiGHS's own dual bound; `x` and `duals` are empty where there is none."""

    optimal: bool
    infeasible: bool
    objective: float
    bound: float
    x: Floats
    duals: Floats
    reduced: Floats


def new_solver() -> highspy.Highs:
    """A HiGHS of one thread that prints nothing."""
    _first_solver()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 1)
    return solver


@cache
def _first_solver() -> None:
    """HiGHS prints its banner from the first constructor, before any option can forbid it: standard output is away."""
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
        libc.fflush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class Program:
    """min c x, rows lower <= A x <= upper, columns within bounds; blocks of columns and rows are added as arrays."""

    def __init__(self) -> None:
        self._cost: list[Floats] = []
        self._low: list[Floats] = []
        self._high: list[Floats] = []
        self._integer: list[NDArray[np.bool_]] = []
        self.columns = 0
        self._row_low: list[float] = []
        self._row_high: list[float] = []
        self._index: list[NDArray[np.int32]] = []
        self._value: list[Floats] = []

    def add_columns(
        self, cost: NDArray[Any], low: float | NDArray[Any], high: float | NDArray[Any], *, integer: bool = False
    ) -> int:
        """Append columns; returns the number of the first."""
        first, count = self.columns, len(cost)
        self._cost.append(np.asarray(cost, dtype=float))
        self._low.append(np.broadcast_to(np.asarray(low, dtype=float), count))
        self._high.append(np.broadcast_to(np.asarray(high, dtype=float), count))
        self._integer.append(np.full(count, integer))
        self.columns += count
        return first

    def add_row(
        self, index: NDArray[np.integer] | list[int], value: NDArray[Any] | list[float], low: float, high: float
    ) -> int:
        self._index.append(np.asarray(index, dtype=np.int32))
        self._value.append(np.asarray(value, dtype=float))
        self._row_low.append(low)
        self._row_high.append(high)
        return len(self._row_low) - 1

    def solve(
        self, deadline: Deadline, seconds: float, *, gap: float = 0.0, threads: int = 1, ipm: bool = False
    ) -> Outcome:
        empty = np.zeros(0)
        allowed = deadline.share(seconds)
        if allowed <= 0.001:
            return Outcome(False, False, 0.0, -np.inf, empty, empty, empty)
        solver = new_solver()
        solver.setOptionValue("threads", threads)
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("mip_abs_gap", 0.999 if gap == 0 else 1e-6)
        if ipm:
            solver.setOptionValue("solver", "ipm")
        if deadline.deterministic:
            solver.setOptionValue("simplex_iteration_limit", int(allowed * ITERATIONS_PER_SECOND))
            solver.setOptionValue("mip_max_nodes", int(allowed * 200))
        else:
            solver.setOptionValue("time_limit", allowed)
        solver.passModel(self._model())
        solver.run()
        return self._outcome(solver, deadline)

    def _model(self) -> highspy.HighsLp:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.columns, len(self._row_low)
        model.col_cost_ = np.concatenate(self._cost)
        model.col_lower_, model.col_upper_ = np.concatenate(self._low), np.concatenate(self._high)
        model.row_lower_, model.row_upper_ = np.array(self._row_low), np.array(self._row_high)
        starts = np.concatenate(([0], np.cumsum([len(i) for i in self._index]))).astype(np.int32)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = starts
        model.a_matrix_.index_ = np.concatenate(self._index) if self._index else np.zeros(0, dtype=np.int32)
        model.a_matrix_.value_ = np.concatenate(self._value) if self._value else np.zeros(0)
        integer = np.concatenate(self._integer)
        if integer.any():
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[int(i)] for i in integer]
        return model

    def _outcome(self, solver: highspy.Highs, deadline: Deadline) -> Outcome:
        status, info, solution = solver.getModelStatus(), solver.getInfo(), solver.getSolution()
        deadline.charge(max(0, info.simplex_iteration_count) / ITERATIONS_PER_SECOND + 1e-4)
        integer = any(block.any() for block in self._integer)
        optimal = status == highspy.HighsModelStatus.kOptimal
        usable = info.primal_solution_status == 2
        return Outcome(
            optimal=optimal,
            infeasible=status == highspy.HighsModelStatus.kInfeasible,
            objective=info.objective_function_value if usable else np.inf,
            bound=info.mip_dual_bound if integer else (info.objective_function_value if optimal else -np.inf),
            x=np.array(solution.col_value) if usable else np.zeros(0),
            duals=np.array(solution.row_dual) if usable and not integer else np.zeros(0),
            reduced=np.array(solution.col_dual) if usable and not integer else np.zeros(0),
        )

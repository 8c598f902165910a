"""Column generation over fillings of nodes: the bound of the configuration program, and plans from its columns.

min sum w_p l_p over fillings p of classes c, every type t covered b_t times, at most N_c fillings of class c. For any
worth pi >= 0 of the types

  sum_t b_t pi_t + sum_c N_c min(0, w_c - K_c(pi))

is a bound, where K_c is what one node of class c can hold at most (knapsack.fill; its upper bound if it is cut short).
This sees what fractions of items hide: coarse items, small residuals, and pair costs that all differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import knapsack
from qtandem.core.planner.deadline import ITERATIONS_PER_SECOND, Deadline
from qtandem.core.planner.lp import INF, Program, new_solver
from qtandem.core.planner.problem import Ints

STEPS = 8_000
SMOOTH = 0.6
# HiGHS's simplex strategies: columns were added, or right-hand sides have changed.
PRIMAL, DUAL = 4, 1
# What a second buys where work is counted.
RANKED_PER_SECOND = 500_000
STEPS_PER_SECOND = 1_000_000
MOST_FIXED = 4
NEARLY = 0.7
DIVE_ROUNDS = 3
MOST_IN_DIVE = 1500


@dataclass
class Patterns:
    """T types with counts, C classes; `allowed` and `pair` are (T, C)."""

    demand: Ints
    count: Ints
    capacity: Ints
    weight: Ints
    size: Ints
    allowed: NDArray[np.bool_]
    pair: NDArray[np.float64]
    deadline: Deadline
    bound: float = 0.0
    converged: bool = False
    columns: list[tuple[int, Ints]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._known: set[tuple[int, bytes]] = set()
        self._solver = self._master()
        self._pi = np.zeros(len(self.count))
        self._limit = STEPS
        self._floors = self.weight.astype(float)
        self._mixes = np.full(self.capacity.shape, 1.0 / self.capacity.shape[1])

    def cost_of(self, c: int, taken: Ints) -> float:
        """A filling's cost: the node, and the pair costs of what it holds."""
        pairs = float(taken @ self.pair[:, c]) if self.pair.shape[0] > 1 else 0.0
        return float(self.weight[c]) + pairs

    def add(self, c: int, taken: Ints) -> bool:
        """Add a filling as a column; False if it is known."""
        key = (c, taken.tobytes())
        if key in self._known or not taken.any():
            return False
        self._known.add(key)
        self.columns.append((c, taken.copy()))
        index = np.append(np.flatnonzero(taken), len(self.count) + c).astype(np.int32)
        value = np.append(taken[taken > 0].astype(float), 1.0)
        self._solver.addCol(self.cost_of(c, taken), 0.0, INF, len(index), index, value)
        return True

    def _master(self) -> highspy.Highs:
        """Covering rows with a dear slack each, and one row a class."""
        types, classes = len(self.count), len(self.size)
        solver = new_solver()
        model = highspy.HighsLp()
        dear = 3.0 * float(self.weight.max(initial=1)) + 1000.0
        model.num_col_, model.num_row_ = types, types + classes
        model.col_cost_ = np.full(types, dear)
        model.col_lower_, model.col_upper_ = np.zeros(types), np.full(types, INF)
        model.row_lower_ = np.concatenate([self.count.astype(float), np.full(classes, -INF)])
        model.row_upper_ = np.concatenate([np.full(types, INF), self.size.astype(float)])
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.arange(types + 1, dtype=np.int32)
        model.a_matrix_.index_ = np.arange(types, dtype=np.int32)
        model.a_matrix_.value_ = np.ones(types)
        solver.passModel(model)
        return solver

    def start(self, seconds: float) -> None:
        """First worths: duals of the relaxation that lets items be split."""
        program = Program()
        pairs = np.argwhere(self.allowed)
        program.add_columns(
            self.pair[pairs[:, 0], pairs[:, 1]] if self.pair.shape[0] > 1 else np.zeros(len(pairs)), 0.0, INF
        )
        first = program.add_columns(self.weight.astype(float), 0.0, self.size.astype(float))
        by_type = np.argsort(pairs[:, 0], kind="stable")
        for t, index in enumerate(
            np.split(by_type, np.cumsum(np.bincount(pairs[:, 0], minlength=len(self.count)))[:-1])
        ):
            program.add_row(index, np.ones(len(index)), float(self.count[t]), INF)
        by_class = np.argsort(pairs[:, 1], kind="stable")
        groups = np.split(by_class, np.cumsum(np.bincount(pairs[:, 1], minlength=len(self.size)))[:-1])
        rows: list[tuple[int, int]] = []
        for c, index in enumerate(groups):
            for k in range(self.capacity.shape[1]):
                amounts = self.demand[pairs[index, 0], k]
                if amounts.any():
                    rows.append((c, k))
                    column, room = np.append(index, first + c), -float(self.capacity[c, k])
                    program.add_row(column, np.append(amounts.astype(float), room), -INF, 0.0)
        outcome = program.solve(self.deadline, seconds)
        if len(outcome.duals):
            self._pi = np.maximum(0.0, outcome.duals[: len(self.count)])
            prices = np.zeros(self.capacity.shape)
            for (c, k), dual in zip(rows, outcome.duals[len(self.count) :], strict=True):
                prices[c, k] = max(0.0, -dual) * self.capacity[c, k]
            total = prices.sum(axis=1, keepdims=True)
            self._mixes = np.where(total > 0, prices / np.maximum(total, 1e-12), self._mixes)
            self._price(self._pi)

    def _price(self, pi: NDArray[np.float64]) -> int:
        """Fill every class at these worths: raises the bound, adds columns that pay; returns how many."""
        added, upper = self._fill(pi, self.count, self.size)
        value = float(self.count @ pi + self.size @ np.minimum(0.0, self.weight - upper)) - 1e-6
        if value > self.bound:
            self.bound, self._pi = value, pi.copy()
        return added

    def _fill(self, pi: NDArray[np.float64], count: Ints, room: Ints) -> tuple[int, NDArray[np.float64]]:
        """The best filling of each class with room; how many are new columns, and the upper bounds."""
        classes = len(self.size)
        best, upper = np.empty(classes), np.empty(classes)
        taken = np.zeros((classes, len(self.count)), dtype=np.int64)
        steps = knapsack.fill_all(
            pi,
            self.pair,
            self.allowed,
            self.demand,
            count,
            self.capacity,
            self._mixes,
            self._floors,
            self._limit,
            best,
            upper,
            taken,
        )
        self.deadline.charge(1e-3 + classes * len(self.count) / RANKED_PER_SECOND + steps / STEPS_PER_SECOND)
        pays = (best > self._floors * (1 + 1e-9)) & (room > 0)
        return sum(self.add(c, taken[c]) for c in np.flatnonzero(pays).tolist()), upper

    def run(self, seconds: float, gap: float = 1e-4) -> None:
        """Generate columns until bound and program meet, nothing pays, or time is up."""
        limit = self.deadline.part(seconds)
        while not limit.expired():
            if not self._solve(limit, PRIMAL):
                return
            value = self._solver.getInfo().objective_function_value
            if value - self.bound <= gap * abs(value):
                self.converged = True
                return
            duals = np.maximum(0.0, np.array(self._solver.getSolution().row_dual)[: len(self.count)])
            added = self._price(SMOOTH * self._pi + (1 - SMOOTH) * duals)
            if not added and not self._price(duals):
                if self._limit > 60 * STEPS:
                    return
                self._limit *= 4

    def dive(self, seconds: float, rng: np.random.Generator | None = None) -> list[tuple[int, Ints]]:
        """Fix the fillings that the program likes most, price again for what is left, and so on to the end.

        With `rng` a filling that is liked nearly as much may be fixed instead. What is not covered when time is up is
        not in the answer.
        """
        limit = self.deadline.part(seconds)
        left, room = self.count.copy(), self.size.copy()
        fixed: list[tuple[int, Ints]] = []
        if not self._solve(limit, PRIMAL):
            return fixed
        barred = self._bar()
        try:
            return self._dive(left, room, fixed, limit, rng)
        finally:
            self._restrict(self.count, self.size)
            self._allow(barred, INF)

    def _bar(self) -> Ints:
        """Put the columns away that the program likes least; returns their numbers."""
        reduced = np.array(self._solver.getSolution().col_dual)[len(self.count) :]
        barred = np.argsort(reduced)[MOST_IN_DIVE:].astype(np.int64)
        self._allow(barred, 0.0)
        return barred

    def _allow(self, columns: Ints, most: float) -> None:
        index = (columns + len(self.count)).astype(np.int32)
        if len(index):
            self._solver.changeColsBounds(len(index), index, np.zeros(len(index)), np.full(len(index), most))

    def _dive(
        self, left: Ints, room: Ints, fixed: list[tuple[int, Ints]], limit: Deadline, rng: np.random.Generator | None
    ) -> list[tuple[int, Ints]]:
        while left.any():
            x = self._residual(left, room, limit)
            if x is None:
                return fixed
            before = len(fixed)
            for number in self._liked(x, rng):
                c, taken = self.columns[number]
                useful = np.minimum(taken, left)
                if room[c] > 0 and useful.any():
                    fixed.append((c, useful))
                    room[c] -= 1
                    left -= useful
            if len(fixed) == before:
                return fixed
        return fixed

    def _liked(self, x: NDArray[np.float64], rng: np.random.Generator | None) -> list[int]:
        """The columns to fix next: all that are nearly whole, at least the largest."""
        order = np.argsort(-x)
        whole = [int(n) for n in order for _ in range(int(x[n] + 1e-6)) if x[n] > 0.999]
        nearly = [int(n) for n in order[:MOST_FIXED] if NEARLY < x[n] <= 0.999]
        if whole or nearly:
            return whole + nearly
        if rng is None:
            return [int(order[0])]
        close = order[: int((x > 0.6 * x[order[0]]).sum())][:MOST_FIXED]
        return [int(rng.choice(close, p=x[close] / x[close].sum()))]

    def _residual(self, left: Ints, room: Ints, limit: Deadline) -> NDArray[np.float64] | None:
        self._restrict(left, room)
        for attempt in range(DIVE_ROUNDS):
            if limit.expired() or not self._solve(limit, DUAL):
                return None
            solution = self._solver.getSolution()
            x = np.array(solution.col_value)[len(self.count) :]
            if attempt == DIVE_ROUNDS - 1:
                break
            worth = np.where(left > 0, np.maximum(0.0, np.array(solution.row_dual)[: len(self.count)]), 0.0)
            if not self._fill(worth, left, room)[0]:
                break
        slack = np.array(solution.col_value)[: len(self.count)]
        return x if len(x) and x.max(initial=0) > 1e-6 and slack.sum() < left.sum() else None

    def _restrict(self, left: Ints, room: Ints) -> None:
        for t, amount in enumerate(left):
            self._solver.changeRowBounds(t, float(amount), INF)
        for c, amount in enumerate(room):
            self._solver.changeRowBounds(len(left) + c, -INF, float(amount))

    def _solve(self, limit: Deadline, strategy: int) -> bool:
        self._solver.setOptionValue("simplex_strategy", strategy)
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + max(0.01, limit.left()))
        self._solver.run()
        self.deadline.charge(1e-3 + max(0, self._solver.getInfo().simplex_iteration_count) / ITERATIONS_PER_SECOND)
        return bool(self._solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)

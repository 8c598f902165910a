"""Node cost and pair costs (risk, fragmentation, moves) together: a relaxation as bound, annealing as plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.anneal import Annealer
from qtandem.core.planner.lp import INF, Outcome, Program
from qtandem.core.planner.problem import Problem
from qtandem.core.planner.state import Search

MOST_PAIRS = 60_000


class Relaxation:
    """x_ij continuous, y_j in 0..1 (or integer); x <= y is added where it is violated."""

    def __init__(self, problem: Problem, allowed: NDArray[np.bool_], node_bound: int) -> None:
        self.problem = problem
        self.pairs = np.argwhere(allowed)
        self.cost = pair_cost(problem)[self.pairs[:, 0], self.pairs[:, 1]]
        self.node_bound = node_bound
        self._linked: set[int] = set()

    def solve(self, search: Search, seconds: float, *, integer: bool, rounds: int = 15) -> Outcome | None:
        limit, best = search.deadline.part(seconds), None
        for _ in range(rounds if not integer else 1):
            outcome = self._program(integer).solve(limit, limit.left(), gap=2e-3 if integer else 0.0)
            if not np.isfinite(outcome.bound):
                return best
            search.raise_bound(int(np.ceil(outcome.bound - 1e-6)))
            if len(outcome.x):
                best = outcome
            if integer or not len(outcome.x) or not self._link(outcome.x):
                break
        return best

    def _link(self, x: NDArray[np.float64]) -> int:
        count = len(self.pairs)
        excess = x[:count] - x[count + self.pairs[:, 1]]
        worst = [int(n) for n in np.argsort(-excess)[:4000] if excess[n] > 1e-4 and int(n) not in self._linked]
        self._linked.update(worst)
        return len(worst)

    def _program(self, integer: bool) -> Program:
        p, program, count = self.problem, Program(), len(self.pairs)
        program.add_columns(self.cost, 0.0, 1.0)
        low = (p.weight == 0).astype(float)
        program.add_columns(p.weight.astype(float), low, 1.0, integer=integer)
        by_item = np.argsort(self.pairs[:, 0], kind="stable")
        for index in np.split(by_item, np.flatnonzero(np.diff(self.pairs[by_item, 0])) + 1):
            program.add_row(index, np.ones(len(index)), 1.0, 1.0)
        by_node = np.argsort(self.pairs[:, 1], kind="stable")
        for index in np.split(by_node, np.flatnonzero(np.diff(self.pairs[by_node, 1])) + 1):
            j = int(self.pairs[index[0], 1])
            for k in range(p.capacity.shape[1]):
                amounts = p.demand[self.pairs[index, 0], k]
                if amounts.sum() > p.capacity[j, k]:
                    columns = np.append(index, count + j)
                    program.add_row(columns, np.append(amounts.astype(float), -float(p.capacity[j, k])), -INF, 0.0)
        for n in self._linked:
            program.add_row([n, count + int(self.pairs[n, 1])], [1.0, -1.0], -INF, 0.0)
        program.add_row(count + np.arange(len(p.weight)), p.weight.astype(float), float(self.node_bound), INF)
        return program


def pair_cost(problem: Problem) -> NDArray[np.float64]:
    """Pair costs with moves, as a dense (I, J) array."""
    total = np.zeros((len(problem.demand), len(problem.capacity)))
    if problem.pair is not None:
        total += problem.pair
    for i in np.flatnonzero(problem.home >= 0):
        total[i] += problem.move_cost
        total[i, problem.home[i]] -= problem.move_cost
    return total


def improve(
    search: Search, allowed: NDArray[np.bool_], node_bound: int, seed: int, seconds: float, *, base: int = 0
) -> None:
    """Bound by the relaxation plus `base`, then anneal from the incumbent and from the relaxation's choice of nodes."""
    p, limit = search.problem, search.deadline.part(seconds)
    if allowed.sum() <= MOST_PAIRS and base == 0:
        relaxation = Relaxation(p, allowed, node_bound)
        relaxation.solve(search, 0.25 * limit.left(), integer=False)
        search.mark("joint relaxation")
    costs = pair_cost(p).astype(np.float32)
    scale = 15.0 * max(1.0, float(p.weight[p.weight > 0].mean())) if p.weight.any() else 1000.0
    effort = 3_000_000
    while not (search.proven or limit.expired()):
        annealer = Annealer(p.demand, p.capacity, p.weight, allowed, costs, None, scale, seed)
        found = annealer.run(search.assign, limit, effort, hot=0.01, cold=2e-5)
        before = search.cost
        if found is not None and p.moved(found) <= p.move_budget:
            search.offer(found, search.backend)
        if search.cost == before:
            effort = min(effort * 2, 40_000_000)
        seed += 1
    search.mark("joint annealing")

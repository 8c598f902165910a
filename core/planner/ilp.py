"""The whole model as a mixed-integer program in HiGHS: a check on the exact engine by another solver."""

from __future__ import annotations

import numpy as np

from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.lp import INF, Outcome, Program
from qtandem.core.planner.monolith import unit_priorities
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search


def ilp(problem: Problem, deadline: Deadline, *, threads: int = 1) -> Search:
    """Admission first, then cost among the plans that admit as much."""
    search = Search(problem, deadline, "ilp")
    model = _Ilp(problem)
    search.mark("model")
    first = model.run(deadline, admission=None, threads=threads)
    if len(first.x):
        search.offer(*model.read(first.x))
    if np.isfinite(first.bound):
        search.admission_bound = min(search.admission_bound, int(np.floor(-first.bound + 1e-6)))
    search.mark("admission")
    if search.admitted < search.admission_bound or not len(problem.demand):
        return search
    second = model.run(deadline, admission=search.admitted, threads=threads)
    if len(second.x):
        search.offer(*model.read(second.x))
    if np.isfinite(second.bound):
        search.raise_bound(max(0, int(np.ceil(second.bound - 1e-6))))
    search.mark("cost")
    return search


class _Ilp:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.pairs = np.argwhere(problem.allowed()).reshape(-1, 2)
        self.x = {(int(i), int(j)): n for n, (i, j) in enumerate(self.pairs)}
        self.nodes = len(self.pairs)
        self.units = self.nodes + len(problem.capacity)
        self.pi = np.array(unit_priorities(problem), dtype=float)
        jobs = problem.quantum_jobs
        eligible = np.argwhere(problem.backend_costs >= 0)
        self.v = {tuple(map(int, key)): self.units + len(self.pi) + n for n, key in enumerate(eligible)}
        self.jobs = jobs

    def run(self, deadline: Deadline, *, admission: int | None, threads: int) -> Outcome:
        p, program = self.problem, Program()
        pair = np.zeros(len(self.pairs))
        for n, (i, j) in enumerate(self.pairs):
            pair[n] = (0 if p.pair is None else p.pair[i, j]) - (p.move_cost if p.home[i] == j else 0)
        priced = admission is not None
        for block in (
            pair if priced else np.zeros(len(pair)),
            p.weight.astype(float) if priced else np.zeros(len(p.weight)),
            np.zeros(len(self.pi)) if priced else -self.pi,
            np.array([float(p.backend_costs[k]) if priced else 0.0 for k in self.v]),
        ):
            program.add_columns(block, 0.0, 1.0, integer=True)
        if admission is not None:
            constant = p.move_cost * int((p.home >= 0).sum())
            program.add_columns(np.array([float(constant)]), 1.0, 1.0)
            program.add_row(self.units + np.arange(len(self.pi)), self.pi, float(admission), INF)
        self._rows(program)
        return program.solve(deadline, deadline.left(), threads=threads)

    def _rows(self, program: Program) -> None:
        p = self.problem
        of_item: list[list[int]] = [[] for _ in p.demand]
        of_node: list[list[int]] = [[] for _ in p.capacity]
        for (i, j), n in self.x.items():
            of_item[i].append(n)
            of_node[j].append(n)
            program.add_row([n, self.nodes + j], [1.0, -1.0], -INF, 0.0)
        for i, columns in enumerate(of_item):
            unit = self.units + int(p.unit[i])
            program.add_row([*columns, unit], [1.0] * len(columns) + [-1.0], 0.0, 0.0)
        for j, columns in enumerate(of_node):
            here = self.pairs[np.array(columns, dtype=np.int64), 0]
            for k in range(p.capacity.shape[1]):
                amounts = [float(a) for a in p.demand[here, k]]
                program.add_row([*columns, self.nodes + j], [*amounts, -float(p.capacity[j, k])], -INF, 0.0)
        homes = [(i, int(p.home[i])) for i in np.flatnonzero(p.home >= 0).tolist()]
        running = [self.x[pair] for pair in homes if pair in self.x]
        stay = int((p.home >= 0).sum()) - p.move_budget
        if stay > 0:
            program.add_row(running, [1.0] * len(running), float(stay), INF)
        for i in np.flatnonzero(p.fixed).tolist():
            program.add_row(of_item[i], [1.0] * len(of_item[i]), 1.0, 1.0)
        self._backend_rows(program, of_item)

    def _backend_rows(self, program: Program, of_item: list[list[int]]) -> None:
        p = self.problem
        for q, i in enumerate(self.jobs):
            for zone in range(p.backend_costs.shape[1]):
                placed = [n for n in of_item[i] if p.zone[self.pairs[n, 1]] == zone]
                chosen = [n for (other, z, _), n in self.v.items() if other == q and z == zone]
                if placed or chosen:
                    program.add_row([*placed, *chosen], [1.0] * len(placed) + [-1.0] * len(chosen), 0.0, 0.0)
        for b, slots in enumerate(p.slots):
            users = [(n, float(p.quantum_slots[q])) for (q, _, other), n in self.v.items() if other == b]
            program.add_row([n for n, _ in users], [s for _, s in users], -INF, float(slots))

    def read(self, x: np.ndarray) -> tuple[Ints, Ints]:
        p = self.problem
        assign, backend = np.full(len(p.demand), -1, dtype=np.int64), np.full(len(p.demand), -1, dtype=np.int64)
        chosen = self.pairs[x[: len(self.pairs)] > 0.5]
        assign[chosen[:, 0]] = chosen[:, 1]
        for (q, _, b), n in self.v.items():
            if x[n] > 0.5:
                backend[self.jobs[q]] = b
        return assign, backend

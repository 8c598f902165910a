"""CP-SAT over all variables at once: the paper's own formulation (the peer), and ours with every term.

Ours drops what the mask forbids, gives units one admission variable, links x to y, and orders identical nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python import cp_model

from qtandem.core.planner import cpsat
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.problem import Ints, Problem
from qtandem.core.planner.state import Search

Sum = cp_model.LinearExpr.weighted_sum


@dataclass
class Model:
    """The variables of one model; `x[i]` maps a node to its variable."""

    problem: Problem
    model: cp_model.CpModel
    x: list[dict[int, cp_model.IntVar]]
    y: list[cp_model.IntVar]
    z: list[cp_model.IntVar]
    v: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    terms: list[cp_model.IntVar] = field(default_factory=list)
    coefficients: list[int] = field(default_factory=list)

    def cost(self) -> cp_model.LinearExprT:
        return Sum(self.terms, self.coefficients) + self.constant

    @property
    def constant(self) -> int:
        return self.problem.move_cost * int((self.problem.home >= 0).sum())

    def read(self, value) -> tuple[Ints, Ints]:  # type: ignore[no-untyped-def]
        count = len(self.problem.demand)
        assign, backend = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        for i, options in enumerate(self.x):
            for j, var in options.items():
                if value(var):
                    assign[i] = j
        jobs = self.problem.quantum_jobs
        for (q, _, b), var in self.v.items():
            if value(var):
                backend[jobs[q]] = b
        return assign, backend

    def hint(self, assign: Ints, backend: Ints) -> None:
        self.model.clear_hints()
        for i, options in enumerate(self.x):
            for j, var in options.items():
                self.model.add_hint(var, int(assign[i] == j))
        used = set(assign[assign >= 0].tolist())
        for j, var in enumerate(self.y):
            self.model.add_hint(var, int(j in used))
        for u, var in enumerate(self.z):
            self.model.add_hint(var, int(assign[self.problem.unit == u].min() >= 0))
        jobs = self.problem.quantum_jobs
        for (q, zone, b), var in self.v.items():
            i = jobs[q]
            here = assign[i] >= 0 and self.problem.zone[assign[i]] == zone
            self.model.add_hint(var, int(here and backend[i] == b))


def build(problem: Problem) -> Model:
    """Our formulation: every term of the objective, masked variables absent, identical nodes ordered."""
    model = cp_model.CpModel()
    allowed = problem.allowed()
    x = [{int(j): model.new_bool_var("") for j in np.flatnonzero(row)} for row in allowed]
    y = [model.new_bool_var("") for _ in problem.capacity]
    z = [model.new_bool_var("") for _ in range(int(problem.unit.max()) + 1 if len(problem.unit) else 0)]
    m = Model(problem, model, x, y, z)
    for i, options in enumerate(x):
        model.add_exactly_one([*options.values(), ~z[problem.unit[i]]])
        for j, var in options.items():
            model.add_implication(var, y[j])
    _capacity(m)
    _order_identical(m)
    _backends(m)
    _moves(m)
    _costs(m)
    return m


def _capacity(m: Model) -> None:
    demand, cap = m.problem.demand, m.problem.capacity
    for j, open_ in enumerate(m.y):
        here = [i for i, options in enumerate(m.x) if j in options]
        variables = [m.x[i][j] for i in here]
        for k in range(cap.shape[1]):
            amounts = demand[here, k]
            if amounts.sum() > cap[j, k]:
                m.model.add(Sum([*variables, open_], [*amounts.tolist(), -int(cap[j, k])]) <= 0)


def _order_identical(m: Model) -> None:
    p = m.problem
    last: dict[bytes, int] = {}
    homes = set(p.home[p.home >= 0].tolist())
    for j in range(len(p.capacity)):
        if j in homes:
            continue
        parts = [p.capacity[j], p.weight[j : j + 1], p.rows[:, j], p.zone[j : j + 1]]
        if p.pair is not None:
            parts.append(p.pair[:, j])
        key = b"|".join(part.tobytes() for part in parts)
        if key in last:
            m.model.add_implication(m.y[j], m.y[last[key]])
        last[key] = j


def _backends(m: Model) -> None:
    p = m.problem
    jobs = p.quantum_jobs
    for q, i in enumerate(jobs):
        for zone in range(p.backend_costs.shape[1]):
            here = [var for j, var in m.x[i].items() if p.zone[j] == zone]
            options = []
            for b in np.flatnonzero(p.backend_costs[q, zone] >= 0).tolist():
                var = m.model.new_bool_var("")
                m.v[q, zone, b] = var
                options.append(var)
            m.model.add(sum(options) == sum(here))
    for b, slots in enumerate(p.slots):
        users = [(var, int(p.quantum_slots[q])) for (q, _, other), var in m.v.items() if other == b]
        if users:
            m.model.add(Sum([var for var, _ in users], [n for _, n in users]) <= int(slots))


def _moves(m: Model) -> None:
    p = m.problem
    running = np.flatnonzero(p.home >= 0)
    stay = [m.x[i][int(p.home[i])] for i in running if int(p.home[i]) in m.x[i]]
    if p.move_budget < len(running):
        m.model.add(sum(stay) >= len(running) - p.move_budget)
    for i in np.flatnonzero(p.fixed):
        m.model.add(sum(m.x[i].values()) == 1)


def _costs(m: Model) -> None:
    p = m.problem

    def term(var: cp_model.IntVar, amount: int) -> None:
        if amount:
            m.terms.append(var)
            m.coefficients.append(int(amount))

    for j, var in enumerate(m.y):
        term(var, int(p.weight[j]))
    for i, options in enumerate(m.x):
        for j, var in options.items():
            here = 0 if p.pair is None else int(p.pair[i, j])
            term(var, here - (p.move_cost if p.home[i] == j else 0))
    for (q, zone, b), var in m.v.items():
        term(var, int(p.backend_costs[q, zone, b]))


def unit_priorities(problem: Problem) -> list[int]:
    return [int(total) for total in np.bincount(problem.unit, weights=problem.priority)]


def refine(
    search: Search, seconds: float, *, workers: int = 1, seed: int = 1, built: Model | None = None, floor: int = 0
) -> None:
    """Run our monolith from the incumbent: admission first unless all are admitted, then cost, until proven.

    `floor` is a bound on the cost of plans that admit everybody.
    """
    p = search.problem
    m = built or build(p)
    if not m.z:
        return
    limit = search.deadline.part(seconds)
    pi = unit_priorities(p)
    admission = Sum(m.z, pi)
    if search.admitted < search.admission_bound:
        m.model.maximize(admission)
        _run(search, m, limit, workers, seed, None)
    if search.admitted < search.admission_bound:
        return
    if search.complete:
        search.raise_bound(floor)
    m.model.add(admission >= search.admitted)
    m.model.minimize(m.cost())
    _run(search, m, limit, workers, seed, search.cost_bound)


def _run(search: Search, m: Model, limit: Deadline, workers: int, seed: int, floor: int | None) -> None:
    if search.cost is not None:
        m.hint(search.assign, search.backend)
    if floor:
        m.model.add(m.cost() >= floor)
    answer = cpsat.solve(
        m.model, limit, limit.left(), workers=workers, seed=seed, report=lambda s: search.offer(*m.read(s.value))
    )
    if answer.value is not None:
        search.offer(*m.read(answer.value))
    if floor is None:
        search.admission_bound = (
            min(search.admission_bound, answer.bound) if answer.bound > 0 else search.admission_bound
        )
        if answer.optimal:
            search.admission_bound = answer.objective
    elif answer.found or answer.bound > 0:
        search.raise_bound(answer.objective if answer.optimal else answer.bound)


def paper(problem: Problem, deadline: Deadline, *, workers: int = 2, seed: int = 1) -> Search:
    """SQUIRO VI.2 as printed: x, y, z for every pair, the mask as rows, one objective with a dominant gamma."""
    search = Search(problem, deadline, "paper")
    model = cp_model.CpModel()
    items, nodes = len(problem.demand), len(problem.capacity)
    x = [{j: model.new_bool_var("") for j in range(nodes)} for _ in range(items)]
    y = [model.new_bool_var("") for _ in range(nodes)]
    z = [model.new_bool_var("") for _ in range(items)]
    mask = problem.rows[problem.row_of]
    for i in range(items):
        model.add(sum(x[i].values()) == z[i])
        for j in range(nodes):
            model.add(x[i][j] <= y[j])
            model.add(x[i][j] <= int(mask[i, j]))
    for j in range(nodes):
        for k in range(problem.capacity.shape[1]):
            variables = [x[i][j] for i in range(items)]
            amounts = problem.demand[:, k].tolist()
            model.add(Sum([*variables, y[j]], [*amounts, -int(problem.capacity[j, k])]) <= 0)
    for i in range(1, items):
        first = int(np.flatnonzero(problem.unit == problem.unit[i])[0])
        if first != i:
            model.add(z[first] == z[i])
    m = Model(problem, model, x, y, z)
    _backends(m)
    _costs(m)
    gamma = int(problem.weight.sum()) + 1 + (0 if problem.pair is None else int(problem.pair.max(axis=1).sum()))
    gamma += int(problem.backend_costs.max(initial=0)) * len(problem.quantum_jobs)
    model.minimize(m.cost() - Sum(z, (gamma * problem.priority).tolist()))
    search.mark("model")
    answer = cpsat.solve(
        model, deadline, deadline.left(), workers=workers, seed=seed, report=lambda s: search.offer(*m.read(s.value))
    )
    if answer.value is not None:
        search.offer(*m.read(answer.value))
    search.admission_bound = min(search.admission_bound, (gamma - 1 - answer.bound) // gamma)
    search.raise_bound(max(0, answer.bound + gamma * max(0, search.admitted)))
    if answer.optimal:
        search.admission_bound, search.cost_bound = search.admitted, search.cost or 0
    search.mark("solve")
    return search

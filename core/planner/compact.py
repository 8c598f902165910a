"""CP-SAT over counts: how many items of each type a node takes. For work that comes in templates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from qtandem.core.planner import cpsat
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.problem import Ints

Sum = cp_model.LinearExpr.weighted_sum


def place_counts(
    demand: Ints,
    count: Ints,
    capacity: Ints,
    weight: Ints,
    class_of: Ints,
    allowed: NDArray[np.bool_],
    start: Ints,
    floor: int,
    deadline: Deadline,
    report: Callable[[Ints], object],
    *,
    workers: int,
    seed: int,
) -> int:
    """Cheapest counts (T, J) that place everything; `allowed` is (T, J), `start` a plan, `floor` a proven bound.

    Better plans go to `report`; returns the proven bound.
    """
    model = cp_model.CpModel()
    types, nodes = allowed.shape
    most = np.zeros((types, nodes), dtype=np.int64)
    for t in range(types):
        needs = np.flatnonzero(demand[t])
        fit = (capacity[:, needs] // demand[t, needs]).min(axis=1) if len(needs) else np.full(nodes, count[t])
        most[t] = np.where(allowed[t], np.minimum(fit, count[t]), 0)
    x = {(t, j): model.new_int_var(0, int(most[t, j]), "") for t, j in np.argwhere(most > 0).tolist()}
    y = [model.new_bool_var("") for _ in range(nodes)]
    for t in range(types):
        model.add(sum(x[t, j] for j in np.flatnonzero(most[t]).tolist()) == int(count[t]))
    loads = []
    for j in range(nodes):
        here = np.flatnonzero(most[:, j]).tolist()
        variables = [x[t, j] for t in here]
        for k in range(capacity.shape[1]):
            amounts = demand[here, k].tolist()
            if any(amounts):
                model.add(Sum([*variables, y[j]], [*amounts, -int(capacity[j, k])]) <= 0)
        loads.append(Sum(variables, demand[here, 0].tolist()))
    last: dict[int, int] = {}
    for j in range(nodes):
        before = last.get(int(class_of[j]))
        if before is not None:
            model.add_implication(y[j], y[before])
            model.add(loads[before] >= loads[j])
        last[int(class_of[j])] = j
    cost = Sum(y, weight.tolist())
    model.add(cost >= floor)
    model.minimize(cost)
    ordered = _ordered(start, demand, class_of)
    for (t, j), var in x.items():
        model.add_hint(var, int(ordered[t, j]))
    for j, var in enumerate(y):
        model.add_hint(var, int(ordered[:, j].any()))

    def read(value: Callable[[cp_model.IntVar], int]) -> Ints:
        found = np.zeros((types, nodes), dtype=np.int64)
        for (t, j), var in x.items():
            found[t, j] = value(var)
        return found

    answer = cpsat.solve(
        model, deadline, deadline.left(), workers=workers, seed=seed, report=lambda s: report(read(s.value))
    )
    if answer.value is not None:
        report(read(answer.value))
    return max(floor, answer.objective if answer.optimal else answer.bound)


def _ordered(start: Ints, demand: Ints, class_of: Ints) -> Ints:
    """The plan with interchangeable nodes in order of load, as the model wants them."""
    out = start.copy()
    load = demand[:, 0] @ start
    for c in np.unique(class_of):
        nodes = np.flatnonzero(class_of == c)
        out[:, nodes] = start[:, nodes[np.argsort(-load[nodes], kind="stable")]]
    return out

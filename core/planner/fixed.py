"""CP-SAT on a fixed set of open nodes: a packing, or the proof that there is none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from qtandem.core.planner import cpsat
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.problem import Ints

Sum = cp_model.LinearExpr.weighted_sum


def fixed_packing(
    demand: Ints,
    cap: Ints,
    rows: NDArray[np.bool_],
    row_of: Ints,
    same: Ints,
    deadline: Deadline,
    seconds: float,
    *,
    workers: int = 1,
    hint: Ints | None = None,
) -> tuple[Ints | None, bool]:
    """A node for every item, or None; and whether it is proven that there is none.

    `same[j]` numbers interchangeable nodes: the loads of such neighbours are ordered in the first dimension.
    """
    model = cp_model.CpModel()
    x = [{int(j): model.new_bool_var("") for j in np.flatnonzero(rows[row_of[p]])} for p in range(len(demand))]
    loads = {}
    for p, options in enumerate(x):
        model.add_exactly_one(options.values())
        if hint is not None:
            for j, var in options.items():
                model.add_hint(var, int(hint[p] == j))
    for j in range(len(cap)):
        here = [p for p, options in enumerate(x) if j in options]
        variables = [x[p][j] for p in here]
        for k in range(cap.shape[1]):
            amounts = demand[here, k]
            if k == 0:
                loads[j] = Sum(variables, amounts.tolist())
            if amounts.sum() > cap[j, k]:
                model.add(Sum(variables, amounts.tolist()) <= int(cap[j, k]))
    for j in range(1, len(cap)):
        if same[j] == same[j - 1]:
            model.add(loads[j - 1] >= loads[j])
    answer = cpsat.solve(model, deadline, seconds, workers=workers)
    if answer.value is None:
        return None, answer.infeasible
    value = answer.value
    return np.array([next(j for j, var in options.items() if value(var)) for options in x], dtype=np.int64), False

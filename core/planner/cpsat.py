"""One way to run CP-SAT: inside the deadline, seeded, and deterministic where the deadline is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from qtandem.core.planner.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Answer:
    """`bound` is rounded up to an integer; `value` is a lookup of solution values, None without a solution."""

    found: bool
    optimal: bool
    infeasible: bool
    objective: int
    bound: int
    value: Callable[[cp_model.IntVar], int] | None


class _OnSolution(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
    def __init__(self, report: Callable[[cp_model.CpSolverSolutionCallback], object]) -> None:
        super().__init__()
        self._report = report

    def on_solution_callback(self) -> None:
        self._report(self)


def solve(
    model: cp_model.CpModel,
    deadline: Deadline,
    seconds: float,
    *,
    workers: int = 1,
    seed: int = 1,
    gap: float = 0.0,
    report: Callable[[cp_model.CpSolverSolutionCallback], object] | None = None,
    **parameters: object,
) -> Answer:
    """Solve for at most `seconds` of what the deadline leaves; `parameters` are CP-SAT's own."""
    solver = cp_model.CpSolver()
    allowed = deadline.share(seconds)
    if allowed <= 0:
        return Answer(False, False, False, 0, 0, None)
    if deadline.deterministic:
        solver.parameters.max_deterministic_time = allowed
        solver.parameters.num_workers = 1
    else:
        solver.parameters.max_time_in_seconds = allowed
        solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = gap
    for key, value in parameters.items():
        setattr(solver.parameters, key, value)
    status = solver.solve(model, _OnSolution(report)) if report else solver.solve(model)
    deadline.charge(solver.response_proto.deterministic_time)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    minimised = model.has_objective()
    raw = solver.best_objective_bound if minimised else 0.0
    bound = int(-((-raw + 1e-6) // 1)) if abs(raw) < 1e15 else -(10**15)
    return Answer(
        found=found,
        optimal=status == cp_model.OPTIMAL,
        infeasible=status == cp_model.INFEASIBLE,
        objective=round(solver.objective_value) if found and minimised else 0,
        bound=bound,
        value=(lambda var: int(solver.value(var))) if found else None,
    )

"""The engines against the optimum found by looking at every plan of tiny instances, with all terms at once."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtandem.core.planner import exact
from qtandem.core.planner.checker import check
from qtandem.core.planner.instance import Instance
from qtandem.core.planner.objective import OBJECTIVES, objective
from qtandem.core.planner.solve import solve
from tests.fakes.tiny_plans import instances, optimum

goals = st.sampled_from([*OBJECTIVES.values(), objective("regulated", fragmentation=300.0)])
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quick
@given(instances(), goals)
@pytest.mark.parametrize("engine", ["exact", "ilp", "paper"])
def test_an_exact_engine_finds_and_proves_the_optimum(engine: str, instance: Instance, goal) -> None:
    plan = solve(instance, goal, engine=engine, limit_s=20)
    assert check(instance, goal, plan) == []
    assert plan.proven
    assert (plan.admitted, plan.cost) == optimum(instance, goal)


@quick
@given(instances(), goals, st.integers(0, 2), st.data())
def test_running_work_moves_within_the_budget_and_for_a_gain(instance: Instance, goal, budget: int, data) -> None:
    before = solve(instance, goal, engine="least-allocated")
    kept = tuple(
        replace(w, node=before.placement[w.name], movable=data.draw(st.booleans()))
        for w in instance.workloads
        if w.name in before.placement
    )
    if not kept:
        return
    running = replace(instance, workloads=kept, move_budget=budget)
    plan = solve(running, goal, limit_s=20)
    assert check(running, goal, plan) == []
    assert plan.proven
    assert (plan.admitted, plan.cost) == optimum(running, goal)


@quick
@given(instances(), goals)
@pytest.mark.parametrize("engine", ["first-fit", "least-allocated", "best-fit"])
def test_greedy_is_feasible_and_never_better_than_exact(engine: str, instance: Instance, goal) -> None:
    plan = solve(instance, goal, engine=engine)
    assert check(instance, goal, plan) == []
    best = solve(instance, goal, limit_s=20)
    assert (best.admitted, -best.cost) >= (plan.admitted, -plan.cost)


@quick
@given(instances(), goals, st.booleans())
def test_the_bounds_of_the_decomposition_are_bounds(instance: Instance, goal, running: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "SMALL", 0)
        patch.setattr(exact, "MEDIUM", 0)
        if running:
            placed = solve(instance, goal, engine="least-allocated").placement
            workloads = tuple(replace(w, node=placed.get(w.name)) for w in instance.workloads)
            instance = replace(instance, workloads=workloads, move_budget=1)
        plan = solve(instance, goal, limit_s=0.3)
    assert check(instance, goal, plan) == []
    admitted, cost = optimum(instance, goal)
    assert plan.admitted <= admitted <= plan.admission_bound
    if plan.admitted == admitted:
        assert plan.cost_bound <= cost <= plan.cost

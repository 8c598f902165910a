"""Look-ups, re-planning and causes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from qtandem.core.planner import bench
from qtandem.core.planner.checker import check, cost_of
from qtandem.core.planner.generate import generate, preset
from qtandem.core.planner.instance import Backend, Instance, Node, Quantum, Workload
from qtandem.core.planner.lookup import Lookup
from qtandem.core.planner.objective import objective
from qtandem.core.planner.solve import replan, solve
from tests.fakes.tiny_plans import instances, stated

REGULATED = objective("regulated", fragmentation=200.0)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(instances())
def test_a_look_up_finds_the_cheapest_addition(instance: Instance) -> None:
    *rest, last = (replace(w, gang=None) for w in instance.workloads)
    instance = replace(instance, workloads=(*rest, last))
    before = solve(replace(instance, workloads=tuple(rest)), REGULATED, engine="first-fit")
    choice = Lookup(instance, REGULATED, before.placement, before.backends).ask(last)
    added = {}
    base = cost_of(instance, REGULATED, before)
    for node in instance.nodes:
        for backend in [None, *(b.name for b in instance.backends)]:
            backends = {**before.backends, **({last.name: backend} if backend else {})}
            plan = stated(instance, REGULATED, {**before.placement, last.name: node.name}, backends)
            if not check(instance, REGULATED, plan):
                added[node.name, backend] = plan.cost - base
    if choice is None:
        assert not added
    else:
        assert choice.cost == min(added.values()) == added[choice.node, choice.backend]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_replan_keeps_the_budget_and_the_model(seed: int) -> None:
    goal = objective("balanced")
    instance = generate(preset("unique", 30, 160), seed)
    before = solve(instance, goal, engine="least-allocated")
    changed = bench.churned(instance, before, seed, share=0.1, budget=0.2)
    plan = replan(changed, goal, 1.0)
    assert check(changed, goal, plan) == []
    assert 0 < plan.moved <= changed.move_budget
    stay = replan(replace(changed, move_budget=0), goal, 1.0)
    assert check(replace(changed, move_budget=0), goal, stay) == []
    assert stay.moved == 0
    assert plan.cost < stay.cost


def test_every_rejection_has_its_cause() -> None:
    small = (4, 4, 4, 4, 0)
    instance = Instance(
        nodes=(Node("a1", small, 1, 400, zone="a", posture=1), Node("b1", small, 1, 400, zone="b")),
        workloads=(
            Workload("huge", (9, 1, 1, 1, 0)),
            Workload("safe-in-b", (1, 1, 1, 1, 0), zone="b", posture=1),
            Workload("barred", (1, 1, 1, 1, 0), mask=0),
            Workload("q1", (1, 1, 1, 1, 0), priority=2, quantum=Quantum({"q": 50})),
            Workload("q2", (1, 1, 1, 1, 0), quantum=Quantum({"q": 50})),
            Workload("full1", (3, 1, 1, 1, 0), posture=1, priority=3),
            Workload("full2", (3, 1, 1, 1, 0), posture=1),
        ),
        backends=(Backend("q", 1),),
        masks=(frozenset(),),
    )
    plan = solve(instance, objective("balanced"), limit_s=5, explain=True)
    causes = {cause.workload: cause for cause in plan.causes}
    assert causes["huge"].constraint == "cpu"
    assert causes["safe-in-b"].constraint == "zone+posture"
    assert causes["barred"].constraint == "mask"
    assert causes["q2"].constraint == "slots"
    assert causes["q2"].involved == ("q1",)
    assert causes["full2"].constraint == "capacity"
    assert causes["full2"].involved == ("full1",)
    assert set(causes) == {"huge", "safe-in-b", "barred", "q2", "full2"}

"""The checker finds every kind of lie and fault."""

from dataclasses import replace

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.planner.checker import check
from qtandem.core.planner.instance import Backend, Instance, Node, Quantum, Workload
from qtandem.core.planner.objective import objective
from tests.fakes.tiny_plans import stated

GOAL = objective("balanced")
INSTANCE = Instance(
    nodes=(
        Node("big", (8, 8, 8, 8, 0), 1.0, 500.0, zone="a", posture=2),
        Node("low", (8, 8, 8, 8, 0), 1.0, 500.0, zone="b", posture=0),
    ),
    workloads=(
        Workload("safe", (4, 1, 1, 1, 0), posture=1),
        Workload("one", (4, 1, 1, 1, 0), gang="g"),
        Workload("two", (4, 1, 1, 1, 0), gang="g"),
        Workload("pinned", (1, 1, 1, 1, 0), zone="b", mask=0),
        Workload("quantum", (1, 1, 1, 1, 0), quantum=Quantum({"q0": 90})),
        Workload("running", (1, 1, 1, 1, 0), node="low", movable=False),
    ),
    backends=(Backend("q0", 1), Backend("q1", 1)),
    masks=(frozenset({"low"}),),
    move_budget=0,
)
GOOD = {"safe": "big", "one": "low", "two": "big", "pinned": "low", "quantum": "low", "running": "low"}


def faults(backends: dict[str, str] | None = None, **changes: str | None) -> str:
    placement = {name: node for name, node in {**GOOD, **changes}.items() if node is not None}
    plan = stated(INSTANCE, GOAL, placement, {"quantum": "q0"} if backends is None else backends)
    return "; ".join(check(INSTANCE, GOAL, plan))


def test_a_good_plan_has_no_fault() -> None:
    assert faults() == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"safe": "low"}, "needs posture"),
        ({"one": None}, "admitted in part"),
        ({"pinned": "big"}, "pinned to zone"),
        ({"one": "big"}, "over its cpu"),
        ({"running": "big"}, "may not be moved"),
        ({"running": None}, "budget is 0"),
        ({"backends": {}}, "not both"),
        ({"backends": {"quantum": "q1"}}, "not eligible"),
        ({"backends": {"quantum": "q0", "one": "q0"}}, "needs no backend"),
        ({"safe": "nowhere"}, "not there"),
    ],
)
def test_a_broken_plan_is_named(changes: dict, words: str) -> None:
    assert words in faults(**changes)


def test_wrong_figures_are_named() -> None:
    plan = stated(INSTANCE, GOAL, GOOD, {"quantum": "q0"})
    assert "it costs" in check(INSTANCE, GOAL, replace(plan, cost=plan.cost + 1))[0]
    assert "bound" in check(INSTANCE, GOAL, replace(plan, cost_bound=plan.cost + 1))[0]
    assert "admission bound" in check(INSTANCE, GOAL, replace(plan, admission_bound=0))[0]


def test_a_senseless_instance_is_refused() -> None:
    with pytest.raises(QtandemError, match="one name"):
        replace(INSTANCE, nodes=INSTANCE.nodes * 2)
    with pytest.raises(QtandemError, match="runs in part"):
        replace(INSTANCE, workloads=(*INSTANCE.workloads, Workload("three", (1, 1, 1, 1, 0), gang="g", node="big")))

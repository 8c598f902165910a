"""Generated instances of the bench's families: feasible, bounded, reproducible, in time."""

import time
from dataclasses import replace

import pytest

from qtandem.core.planner.checker import check
from qtandem.core.planner.generate import generate, preset
from qtandem.core.planner.instance import dump, load
from qtandem.core.planner.objective import objective
from qtandem.core.planner.solve import solve

BALANCED = objective("balanced")


@pytest.mark.parametrize("family", ["unique", "templates", "live", "risk", "quantum"])
def test_a_plan_keeps_the_model_and_beats_greedy(family: str) -> None:
    instance, goal = generate(preset(family, 12, 60), 0), objective("regulated")
    plan = solve(instance, goal, limit_s=2)
    assert check(instance, goal, plan) == []
    for rule in ("first-fit", "least-allocated"):
        other = solve(instance, goal, engine=rule)
        assert check(instance, goal, other) == []
        assert (plan.admitted, -plan.cost) >= (other.admitted, -other.cost)
    assert plan.gap < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_the_decomposition_agrees_with_the_whole_model(seed: int) -> None:
    instance = generate(preset("unique", 10, 53), seed)
    assert solve(instance, BALANCED).cost == solve(instance, BALANCED, engine="paper", limit_s=30).cost


def test_counted_work_gives_the_same_plan_twice() -> None:
    instance = generate(preset("unique", 25, 133), 4)
    one, two = (solve(instance, BALANCED, limit_s=1, deterministic=True) for _ in range(2))
    assert one.placement == two.placement
    assert (one.cost, one.cost_bound) == (two.cost, two.cost_bound)


def test_the_deadline_holds() -> None:
    instance = generate(preset("unique", 60, 320), 3)
    solve(instance, BALANCED, limit_s=0.1)
    began = time.monotonic()
    plan = solve(instance, BALANCED, limit_s=0.4)
    assert time.monotonic() - began < 2
    assert plan.cost >= plan.cost_bound
    assert check(instance, BALANCED, plan) == []


def test_an_instance_survives_json(tmp_path) -> None:
    instance = generate(replace(preset("quantum", 6, 20), risk=True), 1)
    (tmp_path / "i.json").write_bytes(dump(instance))
    assert load(tmp_path / "i.json") == instance

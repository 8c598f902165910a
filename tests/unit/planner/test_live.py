"""From an inventory to an instance, and from a plan to what is to be done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from qtandem.core.inventory import Host, Inventory, Shape, Waiting
from qtandem.core.managers import Grant
from qtandem.core.planner.checker import check
from qtandem.core.planner.live import Prices, Situation, build
from qtandem.core.planner.objective import objective
from qtandem.core.planner.proposal import propose
from qtandem.core.planner.service import Service
from qtandem.core.planner.solve import solve
from qtandem.core.runs import JobId

BALANCED = objective("balanced")


def host(name: str, cpus: int = 32, free: int | None = None, gpus: int = 0, memory: int = 64_000) -> Host:
    free = cpus if free is None else free
    share = free / cpus
    return Host(name, cpus, memory, gpus, free, int(memory * share), gpus, int(free < cpus))


def job(number: int, cpus: int, *, mask: int = 0, priority: int = 10, **fields: object) -> Waiting:
    shape = Shape(
        cpus=cpus, memory_mb=1000, **{key: fields.pop(key) for key in ("nodes", "exclusive") if key in fields}
    )
    return Waiting(JobId("slurm", "lab", str(number)), 1, "alice", shape, mask, priority, 0, number, number, **fields)


def cluster(hosts: list[Host], jobs: list[Waiting], *masks: set[str]) -> Inventory:
    every = frozenset(each.name for each in hosts)
    return Inventory(0.0, tuple(hosts), tuple(jobs), (every, *map(frozenset, masks)))


def decisions(situation: Situation, **options: object) -> dict[str, object]:
    found = propose(situation, "balanced", 5.0, **options)
    return {each.job.rpartition(":")[2]: each for each in found.decisions}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_jobs_of_several_nodes_are_planned_where_no_node_takes_two_parts(data: st.DataObject, memory: bool) -> None:
    sizes = st.integers(0, 8)
    rooms = data.draw(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=6))
    hosts = [Host(f"n{i}", 9, 9, 9, *room, 1) for i, room in enumerate(rooms)]
    masks = [set(data.draw(st.sets(st.sampled_from([each.name for each in hosts])))) for _ in range(2)]
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4)), max_size=6))
    jobs = [
        replace(job(i, 1, mask=i % 3), shape=Shape(cpus=cpus, memory_mb=amount, gpus=gpus, nodes=2))
        for i, (cpus, amount, gpus) in enumerate(shapes)
    ]
    inventory = replace(cluster(hosts, jobs, *masks), memory=memory)
    taken_twice = {
        each.id
        for each in jobs
        for host in hosts
        if host.name in inventory.masks[each.mask]
        and host.free_cpus >= 2 * each.shape.cpus
        and host.free_gpus >= 2 * each.shape.gpus
        and (not memory or host.free_memory_mb >= 2 * each.shape.memory_mb)
    }
    assert {each.id for each, _ in build(Situation(inventory)).skipped} == taken_twice


def test_work_goes_to_nodes_in_use_and_is_pinned_where_that_saves() -> None:
    inventory = cluster([host("idle"), host("busy", free=8)], [job(1, 4), job(2, 4)])
    found = propose(Situation(inventory), "balanced", 5.0)
    assert found.worth
    assert (found.planned.nodes, found.unplanned.nodes) == (0, 1)
    assert found.unplanned.cost_h == pytest.approx(32 * Prices().core_h)
    assert {(each.nodes, each.pin) for each in found.decisions} == {(("busy",), True)}


def test_what_the_managers_own_order_does_as_well_is_left_to_it() -> None:
    found = propose(Situation(cluster([host("n1")], [job(1, 4)])), "balanced", 5.0)
    assert not found.worth
    assert not any(each.pin or each.release or each.nice is not None for each in found.decisions)


def test_more_work_is_admitted_and_ordered_before_what_is_left_out() -> None:
    inventory = cluster([host("n1")], [job(1, 20, priority=50), job(2, 16, priority=49), job(3, 16, priority=49)])
    found = decisions(Situation(inventory))
    assert [found[n].nodes for n in "123"] == [(), ("n1",), ("n1",)]
    assert [found[n].nice for n in "123"] == [None, -2, -2], "49 + 2 is before 50"
    assert found["1"].why in ("the room goes to 2", "the room goes to 3"), "the smallest set of causes"


def test_the_order_holds_where_a_priority_is_as_low_as_it_can_be_shown() -> None:
    wide = job(1, 20, nodes=2, priority=100)
    jobs = [
        wide,
        job(2, 4, priority=1),
        replace(job(3, 4, priority=1), nice=50),
        replace(job(4, 4, priority=30), nice=7),
    ]
    found = decisions(Situation(cluster([host("n1"), host("n2", free=16)], jobs)))
    assert found["1"].why == "there are no 2 nodes for it at once"
    assert [found[n].nice for n in "234"] == [-101, -101, 37 - 101]


def test_a_high_priority_is_not_given_up_for_number() -> None:
    inventory = cluster([host("n1")], [job(1, 20, priority=5000), job(2, 16, priority=10), job(3, 16, priority=10)])
    assert decisions(Situation(inventory))["1"].nodes == ("n1",)


def test_masks_are_the_managers_and_are_cut_to_what_reaches_the_qpu() -> None:
    inventory = cluster(
        [host("n1", free=30), host("n2"), host("n3")],
        [job(1, 4, mask=1), job(2, 4, grants=(Grant("fez"),)), job(3, 4, mask=2)],
        {"n2", "n3"},
        set(),
    )
    found = decisions(Situation(inventory, free={"fez": 1}, reach={"fez": ("n3",)}))
    assert found["1"].nodes == found["2"].nodes == ("n3",)
    assert found["2"].backend == "fez"
    assert found["3"].nodes == ()
    assert found["3"].why == "no node that the manager permits takes jobs"


def test_what_is_not_planned_is_said_with_its_reason() -> None:
    jobs = [
        job(1, 4, skipped="it is held"),
        job(2, 4, grants=(Grant("fez"),)),
        job(3, 4, grants=(Grant("fez"), Grant("torino"))),
        job(4, 4, nodes=2),
        job(5, 20, nodes=2),
    ]
    found = propose(Situation(cluster([host("n1"), host("n2")], jobs), free={"fez": 0}), "balanced", 5.0)
    assert dict(found.skipped) == {
        "slurm:lab:1": "it is held",
        "slurm:lab:2": "fez is not open",
        "slurm:lab:3": "it asks for several QPUs",
        "slurm:lab:4": "it takes parts of several nodes",
    }
    [wide] = found.decisions
    assert wide.nodes == ("n1", "n2")
    assert not wide.pin


def test_an_exclusive_job_gets_a_node_without_others_and_stays_alone() -> None:
    inventory = cluster([host("n1", free=31), host("n2")], [job(1, 1, exclusive=True), job(2, 1), job(3, 31)])
    found = decisions(Situation(inventory))
    assert (found["1"].nodes, found["2"].nodes, found["3"].nodes) == (("n2",), (), ("n1",)) or (
        found["1"].nodes == ("n2",) and found["2"].nodes == ("n1",)
    )
    full = decisions(Situation(cluster([host("n1", free=31)], [job(1, 1, exclusive=True)])))
    assert full["1"].why == "no node is without other jobs"


def test_memory_that_is_asked_of_nobody_takes_the_node_where_memory_is_counted() -> None:
    greedy = replace(job(1, 1), shape=Shape(cpus=1))
    busy = cluster([host("n1", free=31)], [greedy])
    assert decisions(Situation(busy))["1"].nodes == ()
    assert decisions(Situation(replace(busy, memory=False)))["1"].nodes == ("n1",)


def test_pins_move_within_the_budget_and_one_that_cannot_be_kept_costs_nothing() -> None:
    hosts = [host("n1"), host("n2"), host("n3"), host("busy", free=24)]
    jobs = [job(n, 8) for n in (1, 2, 3)]
    pins = {"slurm:lab:1": "n1", "slurm:lab:2": "n2", "slurm:lab:3": "n3"}
    for budget in (0, 1, 2, 3):
        for rolling in (False, True):
            found = propose(
                Situation(cluster(hosts, jobs), pins=pins, move_budget=budget), "balanced", 5.0, rolling=rolling
            )
            assert found.moved == budget
            assert sum(each.nodes == ("busy",) for each in found.decisions) == budget
            assert sum(each.pin for each in found.decisions) == budget
    gone = Situation(cluster(hosts[1:], jobs), pins=pins, move_budget=0)
    found = decisions(gone)
    assert found["1"].nodes[0] in ("n2", "n3", "busy")
    assert found["1"].release, "its node takes no jobs, and the manager does as well"
    assert (found["2"].nodes, found["3"].nodes) == (("n2",), ("n3",))


def test_a_pin_of_what_does_not_start_is_released() -> None:
    inventory = cluster([host("n1", free=4)], [job(1, 8)])
    found = decisions(Situation(inventory, pins={"slurm:lab:1": "n1"}))
    assert found["1"].release
    assert found["1"].why == "no node has 8 CPUs free"


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_plan_of_a_live_cluster_is_feasible_and_no_worse_than_the_managers_order(data: st.DataObject) -> None:
    hosts = [
        host(f"n{n}", cpus := data.draw(st.sampled_from([8, 16, 32])), data.draw(st.integers(0, cpus)), gpus=n % 2)
        for n in range(data.draw(st.integers(1, 4)))
    ]
    names = [each.name for each in hosts]
    masks = [set(data.draw(st.lists(st.sampled_from(names)))) for _ in range(2)]
    jobs = [
        job(
            n, data.draw(st.integers(1, 20)), mask=data.draw(st.integers(0, 2)), priority=data.draw(st.integers(1, 9)),
            nodes=data.draw(st.sampled_from([1, 1, 1, 2])), exclusive=data.draw(st.booleans()),
            grants=data.draw(st.sampled_from([(), (), (Grant("fez"),)])),
        )
        for n in range(data.draw(st.integers(0, 7)))
    ]  # fmt: skip
    pins = {str(each.id): data.draw(st.sampled_from(names)) for each in jobs if data.draw(st.booleans())}
    situation = Situation(
        cluster(hosts, jobs, *masks),
        {"fez": data.draw(st.integers(0, 2))},
        {},
        pins,
        move_budget=data.draw(st.integers(0, 3)),
    )
    live = build(situation)
    plan = solve(live.instance, BALANCED, limit_s=5)
    assert check(live.instance, BALANCED, plan) == []
    own = solve(live.instance, BALANCED, engine="first-fit")
    assert (plan.admitted, -plan.cost) >= (own.admitted, -own.cost)
    for name, where in plan.placement.items():
        assert where in situation.inventory.masks[live.jobs[live.members[name]].mask]
    for each in propose(situation, "balanced", 5.0).decisions:
        assert len(set(each.nodes)) == len(each.nodes), "the parts of a job are on different nodes"


def test_the_service_answers_plans_and_look_ups() -> None:
    inventory = cluster([host("idle"), host("idle2"), host("busy", free=8)], [job(1, 8)])
    situation = TypeAdapter(Situation).dump_json(Situation(inventory, free={"fez": 1})).decode()
    service = Service()
    ask = {
        "do": "ask", "shape": {"cpus": 4, "memory_mb": 100}, "grants": [["fez", 1]], "dearer": True,
        "permitted": ["idle", "idle2", "busy"], "job": "",
    }  # fmt: skip
    assert service.answer(ask) == {"ok": True, "value": None}, "nothing is known yet"
    plan = {
        "do": "plan",
        "situation": situation,
        "objective": "balanced",
        "limit_s": 2.0,
        "rolling": False,
        "workers": 1,
    }
    answer = service.answer(plan)
    assert answer["value"]["placement"] == {"slurm:lab:1": "busy"}
    assert service.answer({**plan, "objective": "cheap"})["error"]["code"] == "bad-plan"
    look = {"do": "look", "situation": situation, "objective": "balanced", "placement": {}}
    assert service.answer(look) == {"ok": True, "value": None}
    first = service.answer(ask)["value"]
    assert (first["node"], first["backend"], first["cost"]) == ("busy", "fez", 0)
    assert first["dearer"] == ["idle", "idle2"]
    service.answer({**look, "placement": answer["value"]["placement"]})
    assert service.answer(ask)["value"]["node"] == "idle", "busy is kept for the planned job"
    assert service.answer({**ask, "job": "slurm:lab:1"})["value"]["node"] == "busy", "for itself it is free"
    assert service.answer({**ask, "permitted": []})["value"] is None
    service.answer({**ask, "do": "took", "node": "idle"})
    assert service.answer(ask)["value"]["cost"] == 0, "idle is in use now"


def test_a_wish_beyond_all_measure_fits_nowhere_and_stops_nothing() -> None:
    """Submit hooks are asked before Slurm looks at what a user typed."""
    wish = Shape(cpus=1 << 62, memory_mb=1 << 90, gpus=10**30)
    huge = replace(job(1, 4), shape=wish)
    situation = Situation(cluster([host("n1")], [huge, job(2, 4)]))
    found = decisions(situation)
    assert (found["1"].nodes, found["2"].nodes) == ((), ("n1",))
    service = Service()
    body = TypeAdapter(Situation).dump_json(situation).decode()
    service.answer({"do": "look", "situation": body, "objective": "balanced", "placement": {}})
    shape = TypeAdapter(Shape).dump_python(wish, mode="json")
    asked = {"do": "ask", "shape": shape, "grants": [], "dearer": True, "permitted": ["n1"], "job": ""}
    assert service.answer(asked) == {"ok": True, "value": None}

"""The planner in the daemon: look-ups at submission, plans that are applied, and pins that are taken back."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.inventory import Host, Placed
from qtandem.core.managers import Grant, JobState
from qtandem.core.runs import Run
from qtandem.core.settings import PlannerSettings
from qtandem.core.wire import SubmitCall
from qtandem.daemons.authority import TABLE, Authority, Caller, Event, Right
from qtandem.daemons.placements import Placement, Placements
from qtandem.daemons.planners import Planners, launch_of
from qtandem.daemons.planning import Planning
from tests.fakes.house import House
from tests.fakes.placer import FakePlacer, ServiceHere

pytest.importorskip("ortools")
# The planner's kernels are compiled at their first use.
pytestmark = pytest.mark.timeout(300)
GRANT = (Grant("fez"),)


def host(name: str, free: int = 32) -> Host:
    return Host(name, 32, 64_000, 0, free, free * 2000, 0, int(free < 32))


class Site:
    """A house whose manager can be planned, with a clock of the test's."""

    def __init__(self, house: House, manager: FakePlacer, folder: Path) -> None:
        self.house, self.manager, self.now = house, manager, 1000.0
        house.context.managers = {"fake": manager}
        house.context.clock = lambda: self.now
        self.folder = folder
        self.planning = self.restarted()

    def restarted(self) -> Planning:
        planning = Planning(self.house.context, launch_of(None))
        planning._planners = ServiceHere()  # type: ignore[assignment]
        self.planning = self.house.context.planning = planning
        return planning

    def configure(self, **planner: Any) -> None:
        configuration = self.house.context.configuration
        settings = configuration.settings.model_copy(update={"planner": PlannerSettings(**planner)})
        self.house.context.configuration = replace(configuration, settings=settings)

    async def advise(self, required: tuple[str, ...] = (), **call: Any) -> Any:
        fields = {"tasks": 1, "cpus_per_task": 4, "memory_node_mb": 1000} | call
        return await self.planning.advise(self.manager, SubmitCall(manager="fake", uid=1000, **fields), required, GRANT)


@pytest.fixture
async def site(house: House, tmp_path: Path) -> Site:
    hosts = [host("idle1"), host("idle2"), host("busy", free=8)]
    return Site(house, FakePlacer(hosts, house.context.catalog.natives), tmp_path)


@pytest.mark.parametrize(
    ("policy", "native", "note"),
    [
        ("advise", {}, "advise:busy"),
        ("exclude", {"exc_nodes": "idle1,idle2"}, "exclude:idle1,idle2"),
        ("pin", {"req_nodes": "busy"}, "pin:busy"),
    ],
)
async def test_a_submission_is_placed_by_policy(site: Site, policy: str, native: dict[str, str], note: str) -> None:
    site.configure(enabled=True, at_submit=policy)
    assert await site.advise() is None, "nothing is known of the cluster yet"
    await site.planning.tick()
    found = await site.advise()
    assert (found.native, found.note) == (native, note)


async def test_what_a_look_up_leaves_alone(site: Site) -> None:
    site.configure(enabled=True, at_submit="pin")
    await site.planning.tick()
    assert (await site.advise(required=("idle1",))).native == {}, "its owner has named a node"
    assert (await site.advise(excluded="busy")).native["req_nodes"] in ("idle1", "idle2")
    assert await site.advise(excluded="c[1-") is None
    assert await site.advise(excluded="c[1-99999]") is None, "nobody excludes so many"
    assert await site.advise(min_nodes=2) is None
    assert await site.advise(tasks=0) is None, "an older hook says nothing of the job's shape"
    assert await site.advise(job="17") is None, "a job that is only modified"
    assert await site.advise(cpus_per_task=64) is None, "it fits nowhere now"
    site.planning._planners.late = True  # type: ignore[attr-defined]
    assert await site.advise() is None, "the submission goes on without"
    site.configure(enabled=False, at_submit="pin")
    assert await site.advise() is None


async def test_look_ups_know_what_is_planned_and_what_has_started(site: Site) -> None:
    site.configure(enabled=True, at_submit="pin")
    site.manager.wait("1", 6)
    await site.planning.plan(site.manager)
    assert (await site.advise()).native["req_nodes"] in ("idle1", "idle2"), "busy is kept for job 1"
    run = Run(id=site.manager.id("1").run(0), uid=1000, user="u", nodes=("busy",))
    site.planning.started(site.manager, run, ())
    await asyncio.gather(*site.planning._background)
    text = (await site.house.context.metrics.text(site.house.context)).decode()
    assert 'qtandem_lookups_total{event="start",outcome="same"} 1.0' in text


async def test_a_pin_of_a_submission_is_taken_back_in_time_and_only_if_it_is_still_ours(site: Site) -> None:
    site.configure(enabled=True, pin_s=600)
    note = Placed("pin", ("busy",))
    site.manager.wait("1", 4, at=1000.0, required=("busy",), placed=note)
    site.manager.wait("2", 4, at=1000.0, required=("idle1",), placed=note)
    site.manager.wait("3", 4, at=1000.0, excluded=("idle1", "own"), placed=Placed("exclude", ("idle1",)))
    site.manager.wait("4", 4, at=1000.0, placed=Placed("advise", ("busy",)))
    site.manager.wait("5", 4, at=1500.0, required=("busy",), placed=note)
    site.now = 1599.0
    await site.planning.tick()
    assert site.manager.told == []
    site.now = 1600.0
    await site.planning.tick()
    assert site.manager.told == [("place", "1", ()), ("bar", "3", ("own",))]
    await site.planning.tick()
    assert len(site.manager.told) == 2
    site.now = 2100.0
    await site.planning.tick()
    assert site.manager.told[2:] == [("place", "5", ())]


async def test_what_a_job_got_is_taken_back_too_after_it_started_and_waits_again(site: Site) -> None:
    """Else a user who requeues his job would have its place in front for ever, or be pinned to a node that is gone."""
    site.configure(pin_s=600)
    job = site.manager.wait("1", 4, required=("busy",), nice=-50)
    await site.planning._placements.note([Placement(job, 1000.0, ("busy",), -50, 0)])
    known = site.manager.waiting.pop("1")
    site.manager.add("1", JobState.RUNNING)
    site.now += 3600
    await site.planning.tick()
    site.manager.waiting["1"] = replace(known, eligible_at=site.now)
    site.manager.add("1")
    await site.planning.tick()
    assert site.manager.told == [], "it has its time again"
    site.now += 601
    await site.planning.tick()
    assert site.manager.told == [("place", "1", ()), ("reorder", "1", 0)]
    await site.planning._placements.note([Placement(job, site.now, ("busy",))])
    del site.manager.waiting["1"]
    site.manager.add("1", JobState.ENDED)
    await site.planning.tick()
    assert len(site.planning._placements) == 0


async def test_pins_of_submissions_are_taken_back_though_look_ups_were_switched_off(site: Site) -> None:
    site.configure(enabled=True, at_submit="pin", pin_s=600)
    await site.planning.tick()
    await site.advise()
    await asyncio.gather(*site.planning._background)
    site.configure(enabled=False)
    site.restarted()
    site.manager.wait("1", 4, at=1000.0, required=("busy",), placed=Placed("pin", ("busy",)))
    site.now = 1700.0
    await site.planning.tick()
    assert site.manager.told == [("place", "1", ())]
    read = site.manager.read
    site.now = 4000.0
    await site.planning.tick()
    assert site.manager.read == read, "nothing of ours is left to look after"


async def test_a_plan_says_what_it_saves_and_changes_nothing_by_itself(site: Site) -> None:
    site.manager.wait("1", 4)
    site.manager.wait("2", 4)
    found = await site.planning.plan(site.manager, limit_s=5)
    assert found.worth
    assert (found.planned.nodes, found.unplanned.nodes) == (0, 1)
    assert [(each.nodes, each.pin, each.did) for each in found.decisions] == [(["busy"], True, "")] * 2
    assert site.manager.told == []
    assert site.planning.last["fake"] == found


async def test_what_the_planners_process_may_not_answer_is_not_done(site: Site) -> None:
    """It runs as a user of less right than the daemon."""
    site.manager.wait("1", 4)
    planners: Any = site.planning._planners
    honest = planners.plan

    def lying(**changes: Any) -> Any:
        async def plan(message: dict[str, Any], limit_s: float) -> dict[str, Any]:
            answer = await honest(message, limit_s)
            return {**answer, "decisions": [{**each, **changes} for each in answer["decisions"]]}

        return plan

    for changes in ({"job": "fake:lab:99"}, {"nodes": ["elsewhere"]}, {"nodes": ["idle1", "idle2"], "pin": True}):
        planners.plan = lying(**changes)
        with pytest.raises(QtandemError, match="may not have"):
            await site.planning.plan(site.manager, apply=True)
    planners.plan = lying(nice="much")
    with pytest.raises(QtandemError, match="no plan that can be read"):
        await site.planning.plan(site.manager, apply=True)
    assert site.manager.told == []

    async def elsewhere(message: dict[str, Any], wait_s: float) -> dict[str, Any]:
        return {"node": "elsewhere", "cost": 0, "dearer": ["elsewhere"]}

    site.configure(enabled=True, at_submit="pin")
    await site.planning.tick()
    planners.ask = elsewhere
    assert await site.advise() is None


async def test_an_applied_plan_pins_what_a_tested_submission_does_not_refuse_and_orders(site: Site) -> None:
    site.manager.hosts = [host("n1")]
    site.manager.wait("1", 20, priority=50)
    site.manager.wait("2", 16, priority=49)
    site.manager.wait("3", 16, priority=49)
    found = await site.planning.plan(site.manager, limit_s=5, apply=True)
    assert {each.job[-1]: each.did for each in found.decisions} == {
        "1": "", "2": "pinned to n1 and put in front", "3": "pinned to n1 and put in front",
    }  # fmt: skip
    assert site.manager.told == [
        ("place", "2", ("n1",)),
        ("reorder", "2", -2),
        ("place", "3", ("n1",)),
        ("reorder", "3", -2),
    ]
    site.manager.refusals["n1"] = "Requested node configuration is not available"
    site.manager.told.clear()
    site.manager.waiting.pop("2"), site.manager.waiting.pop("3")
    site.manager.wait("4", 16, priority=49)
    site.manager.wait("5", 16, priority=49)
    found = await site.planning.plan(site.manager, limit_s=5, apply=True)
    assert site.manager.told == []
    assert [each.did for each in found.decisions if each.nodes] == ["not pinned: " + site.manager.refusals["n1"]] * 2


async def test_what_was_applied_is_taken_back_in_time_even_by_the_next_daemon(site: Site) -> None:
    site.configure(pin_s=600)
    site.manager.hosts = [host("n1")]
    site.manager.wait("1", 20, priority=50)
    site.manager.wait("2", 16, priority=49)
    site.manager.wait("3", 16, priority=49)
    await site.planning.plan(site.manager, limit_s=5, apply=True)
    site.manager.told.clear()
    site.restarted()
    site.manager.waiting.pop("3")
    site.now += 599
    await site.planning.tick()
    assert site.manager.told == []
    site.now += 1
    await site.planning.tick()
    assert site.manager.told == [("place", "2", ()), ("reorder", "2", 0)]
    assert not Placements(site.folder / "placements.json").expecting(site.now)


async def test_moves_stay_within_the_budget_and_changes_within_their_number(site: Site) -> None:
    site.configure(moves=1, changes=2)
    site.manager.hosts = [host("n1"), host("n2"), host("n3"), host("busy", free=24)]
    for number, node in (("1", "n1"), ("2", "n2"), ("3", "n3")):
        site.manager.wait(number, 8, required=(node,), placed=Placed("pin", (node,)))
    found = await site.planning.plan(site.manager, limit_s=5, apply=True)
    assert found.moved == 1
    assert [told[2] for told in site.manager.told] == [("busy",)]
    site.configure(moves=3, changes=1)
    site.manager.told.clear()
    found = await site.planning.plan(site.manager, limit_s=5, apply=True)
    assert found.moved == 2
    assert len(site.manager.told) == 1


async def test_a_job_that_started_meanwhile_is_not_an_error_for_the_others(site: Site) -> None:
    site.manager.wait("1", 4)
    site.manager.wait("2", 4)
    site.manager.fails = {"1"}
    found = await site.planning.plan(site.manager, limit_s=5, apply=True)
    said = {each.job[-1]: each.did for each in found.decisions}
    assert said["1"].startswith("not done: ")
    assert said["2"] == "pinned to busy"


async def test_the_horizon_plans_by_itself_and_applies_only_if_told(site: Site) -> None:
    site.manager.wait("1", 4)
    site.manager.wait("2", 4)
    await site.planning.tick()
    assert site.manager.read == 0, "off by default"
    site.configure(horizon_s=60)
    await site.planning.tick()
    await asyncio.gather(*site.planning._background)
    assert site.planning.last["fake"].engine == "rolling"
    assert site.manager.told == []
    site.configure(horizon_s=60, horizon_apply=True)
    await site.planning.tick()
    assert not site.planning._background, "not before its time"
    site.now += 60
    await site.planning.tick()
    await asyncio.gather(*site.planning._background)
    assert [told[:2] for told in site.manager.told] == [("place", "1"), ("place", "2")]


async def test_a_manager_that_does_not_answer_is_waited_for(site: Site) -> None:
    site.configure(enabled=True, horizon_s=60)
    site.manager.unreachable = True
    await site.planning.tick()
    await asyncio.gather(*site.planning._background)
    assert site.planning.last == {}
    with pytest.raises(QtandemError) as caught:
        await site.planning.plan(site.manager)
    assert caught.value.code == "manager-unreachable"


async def test_pins_stay_on_record_while_the_manager_cannot_be_told(tmp_path: Path, site: Site) -> None:
    kept = Placements(tmp_path / "p.json")
    site.manager.wait("1", 4, required=("busy",))
    await kept.note([Placement("fake:c:1", 0.0, ("busy",))])
    site.manager.unreachable = True
    with pytest.raises(QtandemError):
        await kept.withdraw(site.manager, tuple(site.manager.waiting.values()), 700.0, 600.0)
    assert Placements(tmp_path / "p.json").pins == {"fake:c:1": "busy"}
    assert (os.stat(tmp_path / "p.json").st_mode & 0o777) == 0o600


def test_only_root_and_the_service_user_may_plan() -> None:
    assert TABLE[Event.PLAN] == {Right.SERVICE: "yes", Right.NODE: "no", Right.OWNER: "no", Right.ANYONE: "no"}
    authority = Authority({}, admins=("0",))
    with pytest.raises(QtandemError) as caught:
        authority.require(Event.PLAN, Caller(1000, "here"), manager="slurm")
    assert caught.value.code == "not-authorised"


@pytest.mark.timeout(300)
async def test_the_process_answers_dies_and_is_started_anew() -> None:
    planners = Planners(launch_of(None))
    shape = {"cpus": 1, "memory_mb": 1}
    message = {"shape": shape, "permitted": ["n1"], "grants": [], "dearer": False, "job": ""}
    assert await planners.ask(message, 1.0) is None
    inventory = {"at": 0, "hosts": [], "waiting": [], "masks": []}
    situation = {"inventory": inventory, "free": {}, "reach": {}, "pins": {}, "move_budget": 1}
    with pytest.raises(QtandemError) as caught:
        await planners.look({"situation": json.dumps(situation), "objective": "balanced", "placement": {}})
    assert caught.value.code == "bad-plan"
    named = {
        "name": "n1",
        "cpus": 4,
        "memory_mb": 9,
        "gpus": 0,
        "free_cpus": 4,
        "free_memory_mb": 9,
        "free_gpus": 0,
        "running": 0,
    }
    situation["inventory"] = {**inventory, "hosts": [named], "memory": False}
    body = {"situation": json.dumps(situation), "objective": "balanced", "placement": {}}
    await planners.look(body)
    assert (await planners.ask(message, 5.0))["node"] == "n1"
    os.kill(planners._looking._worker.pid, 9)
    assert await planners.ask(message, 5.0) is None
    await planners.look(body)
    assert (await planners.ask(message, 5.0))["node"] == "n1"
    await planners.close()

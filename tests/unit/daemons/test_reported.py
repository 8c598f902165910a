"""Starts and ends that a node reports: what it says counts for nothing, attempts are counted here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities
from qtandem.core.runs import JobId, Run
from qtandem.core.wire import StartAnswer
from qtandem.daemons.authority import Caller
from qtandem.daemons.pace import AT_ONCE, KEPT, Pace
from tests.fakes.house import House

ROOT_C1, ROOT_C2, USER_C1 = Caller(0, "c1", False), Caller(0, "c2", False), Caller(1000, "c1", False)


@pytest.fixture(autouse=True)
def on_nodes(house: House) -> None:
    house.manager.capabilities = ManagerCapabilities(attempts=False, hooks_on_nodes=True, limits={"attempts": "none"})


def running(house: House, job: str, node: str = "c1") -> JobId:
    return house.manager.add(job, JobState.RUNNING, nodes=(node,), grants=(Grant("torino"),)).id


async def begin(house: House, job: JobId, caller: Caller = ROOT_C1) -> StartAnswer:
    run, grants = await house.context.reported.start(house.manager, job, caller)
    return await house.lifecycle.start(house.manager, run, grants)


async def finish(house: House, job: JobId, caller: Caller = ROOT_C1) -> int:
    return await house.context.reported.end(house.manager, job, caller, None, 0)


async def test_only_root_on_a_node_of_the_job_starts_and_ends_it(house: House) -> None:
    job = running(house, "1")
    for caller in (ROOT_C2, USER_C1):
        with pytest.raises(QtandemError):
            await begin(house, job, caller)
    assert (await begin(house, job)).verdict == "admit"
    for caller in (ROOT_C2, USER_C1):
        with pytest.raises(QtandemError):
            await finish(house, job, caller)
    assert await finish(house, job) == 1


async def test_where_hooks_run_as_the_jobs_user_its_owner_reports_on_its_nodes_alone(house: House) -> None:
    house.manager.capabilities = ManagerCapabilities(hooks_on_nodes=True, hooks_as_owner=True)
    job = house.manager.add("1", JobState.RUNNING, uid=1000, nodes=("c1",), grants=(Grant("torino"),)).id
    other, elsewhere = Caller(1001, "c1", False), Caller(1000, "c2", False)
    for caller in (other, elsewhere):
        with pytest.raises(QtandemError, match=r"uid 1001|not on c2"):
            await begin(house, job, caller)
    assert (await begin(house, job, USER_C1)).verdict == "admit"
    for caller in (other, elsewhere):
        with pytest.raises(QtandemError, match=r"uid 1001|not on c2"):
            await finish(house, job, caller)
    assert await finish(house, job, USER_C1) == 1


async def test_an_array_itself_never_starts_beside_its_elements(house: House) -> None:
    job = house.manager.add("9", JobState.RUNNING, nodes=("c1",), grants=(Grant("torino"),), whole=True).id
    with pytest.raises(QtandemError, match="each of its elements"):
        await begin(house, job)
    assert house.leases.open_runs() == []


async def test_a_flood_of_reports_is_few_questions_to_the_manager(house: House, eventually: Callable[..., Any]) -> None:
    """Anybody may report where hooks run as the job's user, and each question is a command."""
    house.manager.capabilities = ManagerCapabilities(hooks_on_nodes=True, hooks_as_owner=True)
    mine = house.manager.add("1", JobState.RUNNING, uid=1000, nodes=("c1",), grants=(Grant("torino"),)).id
    gate, asked, under_way = asyncio.Event(), list[int](), 0

    async def jobs(ids: list[JobId]) -> dict[JobId, Job | None]:
        nonlocal under_way
        under_way += 1
        asked.append(under_way)
        await gate.wait()
        under_way -= 1
        return {id: house.manager.known.get(id) for id in ids}

    house.manager.jobs = jobs  # type: ignore[assignment,method-assign]
    flood = [
        asyncio.create_task(
            house.context.reported.start(house.manager, house.manager.id(str(n)), Caller(7, node, False))
        )
        for n in range(100, 200)
        for node in ("c2", "c3")
    ]
    await eventually(lambda: len(asked) == 2)
    honest = asyncio.create_task(begin(house, mine, USER_C1))
    await eventually(lambda: len(asked) == 3)
    gate.set()
    assert (await honest).verdict == "admit"
    assert all(isinstance(each, QtandemError) for each in await asyncio.gather(*flood, return_exceptions=True))
    assert len(asked) <= 5
    assert not house.context.reported._questions._lines


async def test_a_start_that_is_refused_again_and_again_has_one_that_looks_after_it(
    house: House, eventually: Callable[..., Any]
) -> None:
    house.manager.capabilities = ManagerCapabilities(hooks_on_nodes=True, hooks_as_owner=True)
    house.workers.seen["torino"] = Observation(availability=Availability.PAUSED, reason="calibrating")
    await eventually(lambda: house.observer.facts.get("torino") and house.observer.facts["torino"].reason)
    job = house.manager.add("1", JobState.RUNNING, uid=1000, nodes=("c1",), grants=(Grant("torino"),)).id
    for _ in range(20):
        assert (await begin(house, job, USER_C1)).verdict == "hold"
    assert len(house.lifecycle._refusals._tasks) == 1


async def test_an_owner_starts_and_ends_a_job_no_more_often_than_is_good_for_the_vendor(house: House) -> None:
    house.manager.capabilities = ManagerCapabilities(attempts=False, hooks_on_nodes=True, hooks_as_owner=True)
    at, grants = [house.context.clock()], (Grant("torino"),)
    house.context.clock = lambda: at[0]
    # Facts would be stale after a minute.
    house.context.reported._pace = Pace(every_s=1.0)
    job, other = (
        house.manager.add(each, JobState.RUNNING, uid=1000, nodes=("c1",), grants=grants).id for each in ("1", "2")
    )
    for _ in range(AT_ONCE):
        assert (await begin(house, job, USER_C1)).verdict == "admit"
        assert (await begin(house, job, USER_C1)).verdict == "admit", "the same start, told twice, counts once"
        assert await finish(house, job, USER_C1) == 1
    acquired = house.workers.calls.count(("acquire", "torino"))
    for _ in range(100):
        with pytest.raises(QtandemError, match="again and again") as caught:
            await begin(house, job, USER_C1)
        assert caught.value.code == "too-many-starts"
        assert await finish(house, job, USER_C1) == 0
    assert house.workers.calls.count(("acquire", "torino")) == acquired
    assert (await begin(house, other, USER_C1)).verdict == "admit", "another job of the user's starts"
    assert await finish(house, other, USER_C1) == 1
    at[0] += caught.value.retry_after or 0.0
    assert house.context.reported.wait_s(job) == 0
    assert (await begin(house, job, USER_C1)).verdict == "admit"
    assert await finish(house, job, USER_C1) == 1
    assert 0 < house.context.reported.wait_s(job) <= 1.0


async def test_a_start_that_is_told_twice_at_once_is_one_run(house: House) -> None:
    job = running(house, "1")
    answers = await asyncio.gather(*(begin(house, job) for _ in range(5)))
    assert {answer.run for answer in answers} == {str(job.run(0))}
    assert {answer.verdict for answer in answers} == {"admit"}


async def test_each_start_after_an_end_is_the_next_attempt(house: House) -> None:
    job = running(house, "1")
    for attempt in range(3):
        for _ in range(2):
            assert (await begin(house, job)).run == str(job.run(attempt))
        assert await finish(house, job) == 1
        assert await finish(house, job) == 0


async def test_a_start_on_other_nodes_ends_what_was_open(house: House) -> None:
    job = running(house, "1")
    await begin(house, job)
    running(house, "1", "c2")
    assert (await begin(house, job, ROOT_C2)).run == str(job.run(1))
    assert [run.id for run in house.leases.open_runs()] == [job.run(1)]


async def test_an_end_without_a_run_spoils_no_later_start(house: House) -> None:
    job = running(house, "1")
    assert await finish(house, job) == 0
    assert (await begin(house, job)).verdict == "admit"


async def test_a_job_that_the_manager_has_not_started_is_asked_again(house: House) -> None:
    job = house.manager.add("1", grants=(Grant("torino"),)).id
    with pytest.raises(QtandemError) as caught:
        await begin(house, job)
    assert caught.value.retryable


async def test_a_run_that_was_reserved_for_starts_while_the_manager_is_away(house: House) -> None:
    """The server of PBS may die between the moment in which it sends a job and the one in which it begins."""
    house.manager.capabilities = ManagerCapabilities(hooks_on_nodes=True)
    job = house.manager.id("1")
    run = Run(job.run(2), uid=1000, user="ann", nodes=("c1",))
    assert (await house.lifecycle.reserve(house.manager, run, [Grant("torino")])).verdict == "admit"
    house.manager.unreachable = True
    reported = house.context.reported
    for caller, told in ((ROOT_C2, 2), (USER_C1, 2), (ROOT_C1, 1), (ROOT_C1, 3)):
        with pytest.raises(QtandemError):
            await reported.start(house.manager, job, caller, told)
    assert await reported.start(house.manager, job, ROOT_C1, 2) == (run, (Grant("torino"),))
    assert (await house.lifecycle.start(house.manager, run, [Grant("torino")])).verdict == "admit"


def test_a_pace_forgets_jobs_that_may_start_as_often_as_any() -> None:
    pace = Pace(at_once=2, every_s=10.0)
    jobs = [JobId("lsf", "lab", str(number)) for number in range(KEPT + 1)]
    assert [pace.take(jobs[0], 0.0) for _ in range(2)] == [False, True]
    assert pace.wait_s(jobs[0], 1.0) == pytest.approx(9.0)
    for job in jobs[1:KEPT]:
        pace.take(job, 5.0)
    pace.take(jobs[KEPT], 16.0)
    assert len(pace._left) == 2
    assert pace.wait_s(jobs[0], 16.0) == 0

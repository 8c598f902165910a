from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.managers import Grant, JobState
from qtandem.core.resources import Access, Resource
from qtandem.core.runs import Run, RunId
from qtandem.core.verdicts import Asker
from qtandem.core.wire import StartAnswer
from qtandem.daemons import lifecycle, refusals
from qtandem.daemons.reaping import Reaping
from tests.fakes.house import House

ASKER = Asker(1000, "ann")
PAUSED = Observation(availability=Availability.PAUSED, reason="calibrating")


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(refusals, "ASK_S", 0.01)
    monkeypatch.setattr(lifecycle, "CLEARED_S", 0.0)
    private = Resource("private", "simulator", "private", access=Access(frozenset({"bob"})), poll_s=0.05)
    async with House(
        tmp_path,
        {"fez": 1, "torino": 1, "private": private},
        refusals=3,
        submit_ms=4000,
    ) as built:
        await built.observer.first_facts(["fez", "torino", "private"], 5.0)
        yield built


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that has to wait is told so soon."""
    monkeypatch.setattr(lifecycle, "CALL_S", 0.1)


def have(house: House, **timing: float) -> None:
    """Give the house other times of waiting."""
    settings = house.context.settings
    changed = settings.model_copy(update={"timing": settings.timing.model_copy(update=timing)})
    house.context.configuration = replace(house.context.configuration, settings=changed)


def run_of(house: House, job: str, attempt: int = 0, **fields: object) -> Run:
    return Run(RunId(house.manager.id(job), attempt), 1000, "ann", nodes=("c1",), **fields)  # type: ignore[arg-type]


async def start(house: House, job: str, *resources: str, attempt: int = 0, **fields: object) -> StartAnswer:
    grants = [Grant(name) for name in resources or ("fez",)]
    return await house.lifecycle.start(house.manager, run_of(house, job, attempt, **fields), grants)


async def insist(house: House, job: str, *resources: str, **fields: object) -> StartAnswer:
    """As a hook: call again while the answer is `wait`."""
    while (answer := await start(house, job, *resources, **fields)).verdict == "wait":
        pass
    return answer


def see(house: House, name: str, seen: Observation | Exception, eventually: Callable) -> object:
    house.workers.seen[name] = seen
    wanted = seen.availability if isinstance(seen, Observation) else Availability.UNKNOWN
    return eventually(lambda: house.observer.facts[name].availability is wanted)


async def test_a_submission_becomes_the_managers_own_request(house: House) -> None:
    admitted = house.lifecycle.submit(house.manager, "fez", "", ASKER)
    assert admitted is not None
    assert house.manager.native_request(admitted.grants) == {"licenses": "fez@q:1"}
    assert "fez" in house.pending.wanted()
    assert house.lifecycle.submit(house.manager, "", "matlab:3", ASKER) is None


@pytest.mark.parametrize(
    ("text", "native", "code"),
    [
        ("nope", "", "unknown-resource"),
        ("fez:9", "", "too-many-slots"),
        ("private", "", "not-allowed"),
        ("fez:x", "", "bad-request"),
        ("fez", "torino@q:1", "ambiguous"),
    ],
)
async def test_a_submission_that_can_never_run_is_refused(house: House, text: str, native: str, code: str) -> None:
    with pytest.raises(QtandemError) as caught:
        house.lifecycle.submit(house.manager, text, native, ASKER)
    assert caught.value.code == code
    assert lifecycle.users_fault(caught.value)


async def test_a_start_takes_the_lease_and_a_second_call_is_admitted_at_once(house: House) -> None:
    assert (await start(house, "1")).verdict == "admit"
    calls = len(house.workers.calls)
    answers = await asyncio.gather(*(start(house, "1") for _ in range(5)))
    assert {answer.verdict for answer in answers} == {"admit"}
    assert len(house.workers.calls) == calls
    assert len(house.workers.sessions()) == 1


async def test_concurrent_starts_of_one_run_acquire_once(house: House) -> None:
    answers = await asyncio.gather(*(start(house, "1") for _ in range(8)))
    assert {answer.verdict for answer in answers} == {"admit"}
    assert len(house.workers.sessions()) == 1
    assert house.workers.offences() == []


async def test_a_job_without_a_qpu_starts_without_us(house: House) -> None:
    answer = await house.lifecycle.start(house.manager, run_of(house, "1"), [])
    assert answer.verdict == "admit"
    assert house.leases.leases() == []


async def test_an_end_gives_everything_back_once(house: House) -> None:
    await start(house, "1", "fez", "torino")
    job = house.manager.id("1")
    assert await house.lifecycle.end(job, 0, "over", 0) == 1
    assert await house.lifecycle.end(job, 0, "over", 0) == 0
    assert house.workers.sessions() == []
    assert house.leases.leases() == []


async def test_back_to_back_jobs_wait_for_the_slot_that_is_being_given_back(house: House, eventually: Callable) -> None:
    """Managers give a licence to the next job before the end of the last one is reported."""
    await start(house, "1")
    waiting = asyncio.create_task(insist(house, "2"))
    await eventually(lambda: house.leases.leased("fez") == 1 and house.lifecycle.reap.is_set())
    await house.lifecycle.end(house.manager.id("1"), 0, "over")
    assert (await waiting).verdict == "admit"
    assert house.manager.delays == house.manager.held == {}


@pytest.mark.usefixtures("short_calls")
async def test_a_slow_release_is_waited_for_in_several_calls(house: House) -> None:
    await insist(house, "1")
    pause = house.workers.pause("release")
    ending = asyncio.create_task(house.lifecycle.end(house.manager.id("1"), 0, "over"))
    await pause.arrived.wait()
    assert (await start(house, "2")).verdict == "wait"
    house.workers.resume()
    assert (await insist(house, "2")).verdict == "admit"
    assert await ending == 1


async def test_a_wait_that_is_in_vain_ends_in_a_delayed_requeue(house: House, eventually: Callable) -> None:
    have(house, releasing_wait_s=0.5)
    await start(house, "1")
    house.manager.add("2", JobState.RUNNING)
    began = time.monotonic()
    answer = await insist(house, "2")
    assert (answer.verdict, answer.code) == ("hold", "slots-busy")
    assert 0.4 < time.monotonic() - began < 5.0
    await asyncio.sleep(0.03)
    assert house.manager.delays == {}  # it is not pending yet
    house.manager.become(house.manager.id("2"), JobState.PENDING)
    await eventually(lambda: house.manager.delays)
    assert house.manager.delays[house.manager.id("2")] == pytest.approx(15.0, abs=0.5)


async def test_a_resource_that_closed_meanwhile_refuses_at_once(house: House, eventually: Callable) -> None:
    await see(house, "fez", PAUSED, eventually)
    answer = await start(house, "1")
    assert (answer.verdict, answer.code) == ("hold", "not-available")
    assert "calibrating" in answer.message
    assert house.workers.log == []


async def test_refusals_back_off_and_the_last_one_holds_with_the_reason(house: House, eventually: Callable) -> None:
    job = house.manager.add("1").id
    await see(house, "fez", PAUSED, eventually)
    for attempt, delay in enumerate((15.0, 30.0)):
        await start(house, "1", attempt=attempt)
        await eventually(lambda delay=delay: house.manager.delays.get(job) == pytest.approx(delay, abs=0.5))
        assert house.manager.held == {}
    answer = await start(house, "1", attempt=2)
    await eventually(lambda: house.manager.held)
    assert "held" in answer.message
    assert "calibrating" in house.manager.held[job]


async def test_a_qpu_that_opens_and_closes_again_and_again_costs_its_jobs_back_offs_and_no_hold(
    house: House, eventually: Callable
) -> None:
    job = house.manager.add("1").id
    for attempt in range(6):
        await see(house, "fez", Observation(availability=Availability.ONLINE), eventually)
        await see(house, "fez", PAUSED, eventually)
        answer = await start(house, "1", attempt=attempt)
        assert (answer.verdict, answer.code) == ("hold", "not-available")
        assert answer.retry_after > 10.0
    assert job not in house.manager.held


async def test_one_that_stays_closed_by_its_queue_is_held_for(house: House, eventually: Callable) -> None:
    """A poll that sees it online all the while is no opening."""
    job = house.manager.add("1").id
    full = Observation(availability=Availability.ONLINE, free_slots=0)
    for attempt in range(3):
        await see(house, "fez", full, eventually)
        await eventually(lambda: house.context.observer.facts["fez"].free_slots == 0)
        assert (await start(house, "1", attempt=attempt)).verdict == "hold"
    await eventually(lambda: job in house.manager.held)


async def test_a_start_forgets_earlier_refusals(house: House, eventually: Callable) -> None:
    house.manager.add("1")
    await see(house, "fez", PAUSED, eventually)
    for attempt in range(2):
        assert (await start(house, "1", attempt=attempt)).verdict == "hold"
    await see(house, "fez", Observation(availability=Availability.ONLINE), eventually)
    assert (await start(house, "1", attempt=2)).verdict == "admit"
    assert await house.context.records.refusal(str(house.manager.id("1"))) is None


async def test_what_the_user_must_mend_is_held_at_once(house: House, eventually: Callable) -> None:
    job = house.manager.add("1").id
    answer = await start(house, "1", "private")
    assert (answer.verdict, answer.code) == ("hold", "not-allowed")
    await eventually(lambda: job in house.manager.held)
    assert house.manager.delays == {}


async def test_a_vendor_error_is_refused_and_rolled_back(house: House) -> None:
    house.workers.fail("acquire", resource="torino", times=9)
    answer = await insist(house, "1", "fez", "torino")
    assert (answer.verdict, answer.code) == ("hold", "vendor-error")
    await house.leases.settled()
    assert house.workers.sessions() == []


async def test_a_job_that_cannot_be_requeued_waits_for_the_vendor(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "AGAIN_S", 0.05)
    house.workers.fail("acquire", QtandemError("not-available", "no session now"), times=2)
    assert (await insist(house, "1", can_requeue=False)).verdict == "admit"
    assert house.manager.delays == house.manager.held == {}


async def test_a_job_that_cannot_be_requeued_waits_until_the_resource_opens(house: House, eventually: Callable) -> None:
    await see(house, "fez", PAUSED, eventually)
    waiting = asyncio.create_task(insist(house, "1", can_requeue=False))
    await asyncio.sleep(0.05)
    await see(house, "fez", Observation(availability=Availability.ONLINE), eventually)
    assert (await waiting).verdict == "admit"


async def test_after_a_restart_a_start_waits_for_the_first_look(tmp_path: Path) -> None:
    house = House(tmp_path, {"fez": 1})
    house.workers.hang = asyncio.Event()
    async with house:
        waiting = asyncio.create_task(start(house, "1"))
        await asyncio.sleep(0.03)
        assert not waiting.done()
        house.workers.hang.set()
        assert (await waiting).verdict == "admit"


@pytest.mark.usefixtures("short_calls")
async def test_an_end_breaks_off_a_start_that_waits(house: House) -> None:
    await insist(house, "1")
    assert (await start(house, "2")).verdict == "wait"
    await house.lifecycle.end(house.manager.id("2"), 0, "cancelled")
    await house.lifecycle.end(house.manager.id("1"), 0, "over")
    await asyncio.sleep(0.05)
    assert house.leases.leases() == []
    assert len(house.workers.log) == 2


async def test_a_start_whose_hook_is_gone_does_not_wait_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "ABANDONED_S", 0.0)
    await start(house, "1")
    await start(house, "2")
    await asyncio.sleep(0.1)
    await house.lifecycle.end(house.manager.id("1"), 0, "over")
    await asyncio.sleep(0.05)
    assert house.leases.leases() == []


async def test_the_slot_of_a_job_whose_end_nobody_reported_is_reaped(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(house, "1")
    house.manager.add("1", JobState.ENDED)
    reaping = Reaping(house.context)
    reaping._reaper._apart_s = 0.0
    await reaping.reap()
    assert house.leases.leased("fez") == 1
    house.manager.unreachable = True
    await reaping.reap()
    assert house.leases.leased("fez") == 1  # an unreachable manager means keep
    house.manager.unreachable = False
    await reaping.reap()
    assert house.leases.leased("fez") == 0


async def test_a_run_of_a_manager_that_is_configured_no_more_is_kept(house: House) -> None:
    await start(house, "1")
    house.context.managers = {}
    reaping = Reaping(house.context)
    reaping._reaper._apart_s = 0.0
    for _ in range(3):
        await reaping.reap()
    assert house.leases.leased("fez") == 1


async def reserve(house: House, job: str, *resources: str, attempt: int = 1) -> StartAnswer:
    grants = [Grant(name) for name in resources or ("fez",)]
    return await house.lifecycle.reserve(house.manager, run_of(house, job, attempt), grants)


async def test_a_job_that_is_altered_is_looked_at_once_soon(
    house: House, monkeypatch: pytest.MonkeyPatch, eventually: Callable
) -> None:
    monkeypatch.setattr(lifecycle, "ALTERED_S", 0.05)
    house.lifecycle.altered(house.manager, [Grant("fez")])
    house.lifecycle.altered(house.manager, [Grant("torino")])
    assert house.manager.kicks == []
    await eventually(lambda: house.manager.kicks)
    assert house.manager.kicks == [{"fez", "torino"}]
    house.lifecycle.altered(house.manager, [Grant("fez")])
    await eventually(lambda: len(house.manager.kicks) == 2)


async def test_a_reservation_becomes_the_lease_of_the_start(house: House) -> None:
    assert (await reserve(house, "1")).verdict == "admit"
    assert (house.workers.sessions(), house.leases.leased("fez")) == ([], 1)
    assert (await reserve(house, "1")).verdict == "admit"
    assert (await start(house, "1", attempt=1)).verdict == "admit"
    assert len(house.workers.sessions()) == 1


async def test_a_reservation_of_a_closed_resource_is_refused_and_at_last_held(
    house: House, eventually: Callable
) -> None:
    house.manager.add("1")
    await see(house, "fez", PAUSED, eventually)
    answers = []
    for _ in range(3):
        answers.append(await reserve(house, "1"))
        again = await reserve(house, "1")
        assert again.retry_after <= answers[-1].retry_after, "asking early counts for no refusal"
        house.lifecycle._not_before.clear()
    assert [answer.verdict for answer in answers] == ["hold"] * 3
    assert answers[0].retry_after > 10.0
    assert answers[1].retry_after > answers[0].retry_after
    assert answers[2].retry_after == 0.0
    await eventually(lambda: house.manager.held)


async def test_a_refused_start_is_not_reserved_for_before_its_time(house: House, eventually: Callable) -> None:
    await see(house, "fez", PAUSED, eventually)
    first = await insist(house, "1", attempt=1)
    assert (first.verdict, first.code) == ("hold", "not-available")
    await see(house, "fez", Observation(availability=Availability.ONLINE), eventually)
    assert (await reserve(house, "1", attempt=2)).retry_after > 10.0
    assert (await reserve(house, "2")).verdict == "admit"


async def test_a_reservation_whose_run_never_starts_is_ended_by_its_end(house: House) -> None:
    job = house.manager.id("1")
    assert (await start(house, "1", attempt=1)).verdict == "admit"
    assert await house.lifecycle.end(job, 1, "requeued") == 1
    while (await reserve(house, "1", attempt=2)).verdict != "admit" or not house.leases.leased("fez"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert await house.lifecycle.end(job, 2, "deleted before it began") == 1
    assert house.leases.leased("fez") == 0


async def test_a_job_that_is_to_be_held_is_not_reserved_for_before_the_hold_is_there(
    house: House, eventually: Callable
) -> None:
    await see(house, "fez", PAUSED, eventually)
    for attempt in (1, 2, 3):
        last = await insist(house, "1", attempt=attempt)
    assert (last.verdict, last.retry_after) == ("hold", 0.0)
    await see(house, "fez", Observation(availability=Availability.ONLINE), eventually)
    again = await reserve(house, "1", attempt=4)
    assert (again.verdict, again.retry_after > 0.0) == ("hold", True)


async def test_a_run_is_not_reserved_for_while_the_last_one_is_cleared_away(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CLEARED_S", 0.4)
    await start(house, "1", attempt=1)
    await house.lifecycle.end(house.manager.id("1"), 1, "requeued")
    answer = await reserve(house, "1", attempt=2)
    assert (answer.verdict, 0.0 < answer.retry_after <= 0.4) == ("hold", True)
    assert (await reserve(house, "2")).verdict == "admit", "others need not wait"
    await house.lifecycle.end(house.manager.id("2"), 1, "deleted")
    await asyncio.sleep(0.5)
    assert (await reserve(house, "1", attempt=2)).verdict == "admit"
    assert house.manager.delays == house.manager.held == {}


async def test_a_reservation_never_waits_for_a_slot(house: House) -> None:
    await start(house, "1")
    answer = await reserve(house, "2")
    assert (answer.verdict, answer.code, answer.retry_after) == ("hold", "slots-busy", lifecycle.AGAIN_S)
    assert house.manager.delays == house.manager.held == {}


async def test_what_an_earlier_attempt_left_does_not_stand_in_the_way_of_the_next(house: House) -> None:
    await start(house, "1", attempt=1)
    while (await reserve(house, "1", attempt=2)).verdict != "admit":  # noqa: ASYNC110 - asked again, as the hook does
        await asyncio.sleep(0.01)
    assert (await start(house, "1", attempt=2)).verdict == "admit"
    assert [run.id.attempt for run in house.leases.open_runs()] == [2]


async def test_slots_that_are_being_given_back_are_waited_for_by_the_start(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager asks, and does nothing else meanwhile; its own count already has the slots free."""
    monkeypatch.setattr(lifecycle, "RESERVE_PART", 0.01)
    await start(house, "1", attempt=1)
    await start(house, "2", "torino")
    pause = house.workers.pause("release")
    ending = asyncio.create_task(house.lifecycle.end(house.manager.id("1"), None, "over"))
    await pause.arrived.wait()
    began = time.monotonic()
    assert (await reserve(house, "3")).verdict == "admit"
    assert (await reserve(house, "4", "fez", "torino")).verdict == "hold", "nobody gives that one back"
    assert time.monotonic() - began < 2.0
    waiting = asyncio.create_task(start(house, "3", attempt=1))
    house.workers.resume()
    await ending
    assert (await waiting).verdict == "admit"
    assert house.manager.delays == house.manager.held == {}


async def test_a_slow_release_of_its_own_last_run_is_waited_for_by_the_start(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RESERVE_PART", 0.01)
    await start(house, "1", attempt=1)
    pause = house.workers.pause("release")
    began = time.monotonic()
    assert (await reserve(house, "1", attempt=2)).verdict == "admit"
    assert time.monotonic() - began < 2.0
    await pause.arrived.wait()
    house.workers.resume()
    assert (await start(house, "1", attempt=2)).verdict == "admit"
    assert house.manager.delays == house.manager.held == {}


async def test_a_slow_store_does_not_hold_up_who_asks_for_a_reservation(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RESERVE_PART", 0.0)
    assert (await reserve(house, "1")).verdict == "admit"
    assert (await start(house, "1", attempt=1)).verdict == "admit"
    assert len(house.workers.sessions()) == 1


async def test_a_reservation_that_its_own_end_overtakes_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overtaken(*_: object) -> None:
        raise QtandemError("run-ended", "run 1 was ended before it had its leases")

    monkeypatch.setattr(house.leases, "reserve", overtaken)
    answer = await reserve(house, "1")
    assert (answer.verdict, answer.retry_after) == ("hold", lifecycle.AGAIN_S)
    assert house.manager.held == {}


async def test_an_end_that_names_the_next_attempt_ends_the_one_that_was_seen(house: House) -> None:
    """slurmctld counts a requeued job's next attempt before it runs the epilog of the last one."""
    job = house.manager.id("1")
    assert (await start(house, "1")).verdict == "admit"
    assert await house.lifecycle.end(job, 1, "requeued") == 1
    assert (await start(house, "1", attempt=1)).verdict == "admit"
    house.lifecycle._attempts.clear()
    assert await house.lifecycle.end(job, 2, "requeued, with a daemon that has started anew") == 1
    assert (await start(house, "1", attempt=2)).verdict == "admit"


async def test_what_a_refused_start_is_told_is_the_cause_and_not_its_undoing(house: House) -> None:
    have(house, no_requeue_wait_s=0.5)
    house.workers.fail("acquire", QtandemError("vendor-error", "the vendor answered 500", retry_after=0.01), times=99)
    answer = await insist(house, "1", can_requeue=False)
    assert "the vendor answered 500" in answer.message

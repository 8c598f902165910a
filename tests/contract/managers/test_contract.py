"""What every manager must do, whichever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, JobState, SensorValue
from qtandem.core.runs import JobId

OPEN = [SensorValue("fez", 2, 0), SensorValue("ibm_x", 1, 0)]
SPELLINGS = {
    "gridengine": "-l qpu=fez:2",
    "pbs": "-l qpu=fez:2",
    "lsf": '-a "qpu(fez:2)"',
}
SHUT = [SensorValue("fez", 2, 2), SensorValue("ibm_x", 1, 1)]


def test_native_text_is_read_back_as_it_was_written(rig: Any, several: Sequence[Grant]) -> None:
    for grants in ((), several[:1], tuple(several)):
        if grants:
            assert rig.manager.read_native(rig.native(*grants)) == grants
    assert rig.manager.read_native("") == ()


def test_what_is_not_ours_is_left_out(rig: Any) -> None:
    assert rig.manager.read_native(rig.foreign) == ()
    assert rig.manager.read_native(f"{rig.foreign},{rig.native(Grant('fez', 2))}") == (Grant("fez", 2),)


async def test_published_values_are_confirmed_by_reading_them_back(rig: Any) -> None:
    for values, seen in ((SHUT, {"fez": 0, "ibm_x": 0}), (OPEN, {"fez": 2, "ibm_x": 1})):
        outcome = await rig.manager.publish(values)
        assert (outcome.confirmed, dict(outcome.failed)) == ({"fez", "ibm_x"}, {})
        assert await rig.manager.sensors() == seen


async def test_some_slots_can_be_kept_from_jobs(rig: Any) -> None:
    outcome = await rig.manager.publish([SensorValue("fez", 3, 1), SensorValue("ibm_x", 4, 4)])
    assert outcome.confirmed == {"fez", "ibm_x"}
    assert await rig.manager.sensors() == {"fez": 2, "ibm_x": 0}


async def test_publishing_again_changes_nothing_and_keeps_the_others(rig: Any) -> None:
    await rig.manager.publish(OPEN)
    for _ in range(2):
        assert (await rig.manager.publish(SHUT[:1])).confirmed == {"fez"}
        assert await rig.manager.sensors() == {"fez": 0, "ibm_x": 1}


async def test_publications_at_once_lose_nothing(rig: Any) -> None:
    await rig.manager.publish(SHUT)
    await asyncio.gather(rig.manager.publish(OPEN[:1]), rig.manager.publish(OPEN[1:]))
    assert await rig.manager.sensors() == {"fez": 2, "ibm_x": 1}


async def test_the_cost_of_a_publication_does_not_grow_with_each_name(rig: Any) -> None:
    if rig.commands is None:
        pytest.skip("it runs no external command")
    costs = []
    for count in (1, 50):
        values = [SensorValue(f"q{number}", 2, 2) for number in range(count)]
        await rig.manager.publish(values)
        before = rig.commands()
        outcome = await rig.manager.publish([SensorValue(value.native, 2, 0) for value in values])
        assert len(outcome.confirmed) == count
        costs.append(rig.commands() - before)
    assert costs[1] == costs[0] <= 4


async def test_a_job_is_seen_through_its_life(rig: Any) -> None:
    await rig.manager.publish(OPEN)
    id = await rig.submit(rig.native(Grant("fez", 2)))
    job = await rig.job(id)
    assert (job.id, job.state, job.attempt, job.grants) == (id, JobState.PENDING, 0, (Grant("fez", 2),))
    await rig.run(id)
    assert (await rig.job(id)).state is JobState.RUNNING
    await rig.requeue(id)
    job = await rig.job(id)
    assert (job.state, job.attempt) == (JobState.PENDING, 1 if rig.manager.capabilities.attempts else 0)
    await rig.run(id)
    await rig.end(id)
    assert (await rig.manager.jobs([id]))[id] is None or (await rig.job(id)).state is JobState.ENDED


async def test_jobs_that_are_not_there_are_none(rig: Any) -> None:
    name, cluster = rig.manager.name, rig.manager.cluster
    known = await rig.submit(rig.native(Grant("fez")))
    unknown = [JobId(name, cluster, "99999"), JobId(name, cluster, "99999", 3), JobId(name, "elsewhere", known.job)]
    found = await rig.manager.jobs([known, *unknown])
    assert [found[id] for id in unknown] == [None, None, None]
    assert found[known] is not None
    assert await rig.manager.jobs([]) == {}


async def test_pending_lists_jobs_that_wait_for_a_qpu_alone(rig: Any) -> None:
    waiting, running = await rig.submit(rig.native(Grant("fez"))), await rig.submit(rig.native(Grant("ibm-x")))
    await rig.submit("")
    await rig.run(running)
    assert [(job.id, job.grants) for job in await rig.manager.pending()] == [(waiting, (Grant("fez"),))]


async def test_a_running_job_is_untouched_by_a_sensor_that_closes(rig: Any) -> None:
    await rig.manager.publish(OPEN)
    id = await rig.submit(rig.native(Grant("fez")))
    await rig.run(id)
    assert (await rig.manager.publish(SHUT)).confirmed == {"fez", "ibm_x"}
    assert (await rig.job(id)).state is JobState.RUNNING
    await rig.end(id)
    assert (await rig.manager.sensors())["fez"] == 0, "a job's end must not open what was closed meanwhile"


async def test_a_kick_changes_nothing(rig: Any) -> None:
    await rig.manager.publish(SHUT)
    id = await rig.submit(rig.native(Grant("fez")))
    before = await rig.job(id)
    await rig.manager.kick(["fez", "ibm_x"])
    await rig.manager.kick([])
    assert await rig.job(id) == before
    assert await rig.manager.sensors() == {"fez": 0, "ibm_x": 0}


async def test_a_job_can_be_held_and_delayed(rig: Any) -> None:
    if not rig.manager.capabilities.hold:
        pytest.skip(rig.manager.capabilities.limits["hold"])
    id = await rig.submit(rig.native(Grant("fez")))
    await rig.manager.delay(id, 60.0)
    await rig.manager.delay(id, 0.0)
    await rig.manager.hold(id, "qtandem: fez is closed")
    assert (await rig.job(id)).state is JobState.PENDING


async def test_what_a_manager_cannot_do_has_a_reason(rig: Any) -> None:
    capabilities = rig.manager.capabilities
    for name in ("requeue", "arrays", "hold", "attempts"):
        assert getattr(capabilities, name) or capabilities.limits[name]


async def test_users_are_told_what_they_can_type(rig: Any) -> None:
    assert rig.manager.capabilities.spelling.format("fez:2") == SPELLINGS.get(rig.manager.name, "--qpu=fez:2")


async def test_no_answer_is_an_error_that_changes_nothing(rig: Any) -> None:
    if rig.cut is None:
        pytest.skip("the files of this machine are always there")
    id = await rig.submit(rig.native(Grant("fez")))
    rig.cut()
    for call in (
        rig.manager.sensors(),
        rig.manager.jobs([id]),
        rig.manager.pending(),
        rig.manager.publish(OPEN),
        rig.manager.hold(id, "no"),
    ):
        with pytest.raises(QtandemError) as caught:
            await call
        assert (caught.value.code, caught.value.retryable) == ("manager-unreachable", True)

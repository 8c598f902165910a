"""What every provider must do, through a real worker process."""

import asyncio
import json

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.providers.base import SESSIONLESS, Capabilities, TaskReport, TaskState
from qtandem.core.providers.child import load

DEADLINE_S = 10.0


@pytest.fixture
def call(rig, workers):
    """Calls a method as the daemon does."""

    async def call(method, *args, **more):
        purpose = "observe" if method in ("observe", "target", "metadata") else "execute"
        return await workers.call(rig.spec.resource, method, *args, purpose=purpose, **more)

    return call


@pytest.fixture
def refused(call):
    async def refused(method, *args, **more):
        with pytest.raises(QtandemError) as caught:
            await call(method, *args, **more)
        return caught.value

    return refused


@pytest.fixture
def reach(call):
    """Waits for a task's state; a vendor offers polling only."""

    async def reach(task, *states):
        async with asyncio.timeout(40):
            while (report := await call("task_status", task)).state not in states:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return report

    return reach


def test_capabilities_are_declared(rig):
    capabilities = load(rig.spec.type).capabilities
    assert isinstance(capabilities, Capabilities)
    assert capabilities.payloads
    assert capabilities.sessions == (rig.spec.type not in SESSIONLESS)


async def test_facts_come_within_a_deadline(call):
    seen = await call("observe", deadline_s=DEADLINE_S)
    assert isinstance(seen, Observation)
    assert seen.availability is Availability.ONLINE
    assert seen.total_slots is None or seen.free_slots <= seen.total_slots
    assert seen.calibration is None or seen.calibration.qubits > 0


async def test_acquire_is_idempotent_per_key(rig, call):
    first = await call("acquire", "run-1", 1)
    assert await call("acquire", "run-1", 1) == first
    assert await call("acquire", "run-2", 1) != first
    if load(rig.spec.type).capabilities.sessions:
        assert len([row for row in rig.log() if row["event"] == "acquire" and not row.get("again")]) == 2


async def test_release_is_idempotent_and_forgives_unknown_tokens(rig, call):
    token = await call("acquire", "run-1", 1)
    for _ in range(2):
        await call("release", token)
    await call("release", "never-seen")
    if load(rig.spec.type).capabilities.sessions:
        assert len([row for row in rig.log() if row["event"] == "release"]) == 1
        assert await call("acquire", "run-1", 1) != token


async def test_sessions_and_tasks_are_found_again_by_key(rig, call):
    capabilities = load(rig.spec.type).capabilities
    assert await call("find_session", "run-1") is None
    assert await call("find_task", "task-1") is None
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    if capabilities.finds_sessions:
        assert await call("find_session", "run-1") == token
    if capabilities.finds_tasks:
        assert await call("find_task", "task-1") == task
    await call("release", token)
    assert await call("find_session", "run-1") is None


async def test_a_task_runs_to_its_result_which_stays(rig, call, reach):
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    report = await reach(task, TaskState.COMPLETED, TaskState.FAILED)
    assert isinstance(report, TaskReport)
    assert report.state is TaskState.COMPLETED, report.reason
    result = await call("task_result", task)
    json.loads(result)
    assert await call("task_result", task) == result
    assert isinstance(await call("task_logs", task), str)
    await call("release", token)
    assert await call("task_result", task) == result


async def test_one_key_starts_one_task(rig, call, reach):
    token = await call("acquire", "run-1", 1)
    tasks = {await call("task_start", token, "task-1", rig.payload) for _ in range(3)}
    assert len(tasks) == 1
    await reach(tasks.pop(), TaskState.COMPLETED)


async def test_stop_is_idempotent_and_final(rig, call, reach, refused):
    rig.slow()
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    assert (await refused("task_result", task)).code == "task-not-ready"
    await reach(task, TaskState.RUNNING)
    for _ in range(2):
        await call("task_stop", task)
    await reach(task, TaskState.CANCELLED)
    assert (await refused("task_result", task)).code == "task-failed"


async def test_stopping_an_ended_task_changes_nothing(rig, call, reach):
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    await reach(task, TaskState.COMPLETED)
    await call("task_stop", task)
    assert (await call("task_status", task)).state is TaskState.COMPLETED


async def test_release_ends_the_session_s_tasks(rig, call, reach):
    rig.slow()
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    await call("release", token)
    await reach(task, TaskState.CANCELLED)


async def test_polling_opens_nothing(rig, call):
    for _ in range(3):
        for method in ("observe", "target", "metadata"):
            await call(method)
        await call("find_session", "run-1")
        await call("find_task", "task-1")
    assert rig.log() == []


async def test_target_and_metadata_are_plain(call):
    assert json.loads(await call("target"))
    metadata = await call("metadata")
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in metadata.items())


async def test_bad_payloads_are_refused_without_a_task(rig, call, refused):
    token = await call("acquire", "run-1", 1)
    unreadable = [{"kind": kind, "program": "nonsense", "shots": 1} for kind in ("qasm2", "qasm3", "punched-cards")]
    for payload in [*unreadable, *rig.bad_payloads]:
        error = await refused("task_start", token, "task-1", payload)
        assert error.code == "bad-payload"
        assert error.message
    assert not [row for row in rig.log() if row["event"] == "task_start"]


async def test_unknown_tasks_are_errors(refused):
    for method in ("task_status", "task_result"):
        assert (await refused(method, "never-seen")).code == "no-such-run"


async def test_a_deadline_holds_when_the_vendor_does_not_answer(rig, call, refused):
    rig.slow()
    token = await call("acquire", "run-1", 1)
    await call("task_start", token, "task-1", rig.payload)
    rig.block(True)
    for method, *args in (["observe"], ["acquire", "run-2", 1], ["release", token]):
        error = await refused(method, *args, deadline_s=1)
        assert error.code == "vendor-timeout"
    rig.block(False)
    assert (await call("observe")).availability is Availability.ONLINE
    assert await call("acquire", "run-1", 1) == token


async def test_an_answer_that_got_lost_is_made_good_by_the_key(rig, call):
    """A worker dies between the vendor's answer and ours: the next try finds what was done."""
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    rig.block(True)
    with pytest.raises(QtandemError):
        await call("observe", deadline_s=0.5)
    with pytest.raises(QtandemError):
        await call("task_status", task, deadline_s=0.5)
    rig.block(False)
    assert await call("acquire", "run-1", 1) == token
    assert await call("task_start", token, "task-1", rig.payload) == task

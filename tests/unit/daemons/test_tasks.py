from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease, Task
from qtandem.core.leases.queries import Filter
from qtandem.core.managers import Grant
from qtandem.core.providers.base import TaskState
from qtandem.core.runs import Run, RunId
from qtandem.daemons import drive, tasks
from tests.fakes.house import House

QASM = {"kind": "qasm2", "program": "OPENQASM 2.0; qreg q[1];", "shots": 10}


async def hold(house: House, job: str = "1", resource: str = "fez", slots: int = 1, uid: int = 1000) -> Lease:
    run = Run(RunId(house.manager.id(job)), uid, "ann")
    [lease] = await house.leases.begin(run, [Grant(resource, slots)])
    return lease


async def begin(house: House, lease: Lease, key: str = "", **payload: object) -> Task:
    return await house.tasks.start(lease, lease.uid, {**QASM, **payload}, key)


async def ended(house: House, id: str) -> Task:
    async with asyncio.timeout(5.0):
        while not (task := await house.tasks.wait(id, 1.0)).state.final:
            pass
    return task


async def result_of(house: House, id: str) -> bytes:
    with await house.tasks.result(id) as file:
        return file.read()


async def test_a_task_runs_and_its_result_is_kept_privately(house: House, tmp_path: Path) -> None:
    lease = await hold(house)
    task = await begin(house, lease)
    done = await ended(house, task.id)
    assert (done.state, done.usage_s, done.shots, done.cost, done.currency) == ("completed", 0.5, 10, 2.0, "EUR")
    assert json.loads(await result_of(house, task.id))["counts"] == {"00": 10}
    [kept] = (tmp_path / "tasks").glob("*/*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


async def test_the_record_has_what_is_needed_to_reproduce_it(house: House) -> None:
    lease = await hold(house)
    first, second = await begin(house, lease), await begin(house, lease, shots=99)
    await ended(house, second.id)
    [row, other] = await house.context.records.tasks(Filter(owner=lease.owner))
    assert (row.id, row.uid, row.kind, row.calibration_at) == (first.id, 1000, "qasm2", 123.0)
    assert row.versions == {"fakesdk": "1.2.3"}
    assert row.payload_sha256 != other.payload_sha256
    assert row.circuit_sha256 == other.circuit_sha256


async def test_a_lease_runs_as_many_tasks_as_it_has_slots_in_order_of_arrival(
    house: House, eventually: Callable
) -> None:
    house.workers.instant = False
    lease = await hold(house, slots=2)
    made = [await begin(house, lease) for _ in range(5)]
    await eventually(lambda: len(house.workers.at_work()) == 2)
    await asyncio.sleep(0.05)
    assert house.workers.started == [task.id for task in made[:2]]
    house.workers.finish(made[1].id)
    await eventually(lambda: house.workers.started == [task.id for task in made[:3]])
    assert len(house.workers.at_work()) == 2
    for task in made:
        await eventually(lambda task=task: task.id in house.workers.started)
        house.workers.finish(task.id)
        assert (await ended(house, task.id)).state == "completed"


async def test_the_same_key_is_the_same_task(house: House) -> None:
    lease = await hold(house)
    first = await begin(house, lease, key="k")
    assert (await begin(house, lease, key="k")).id == first.id
    await ended(house, first.id)
    assert (await begin(house, lease, key="k")).state == "completed"
    assert len(house.workers.started) == 1


async def test_a_long_poll_wakes_at_the_change_of_state(house: House, eventually: Callable) -> None:
    house.workers.instant = False
    task = await begin(house, await hold(house))
    await eventually(lambda: house.workers.at_work())
    async with asyncio.timeout(2.0):
        while (await house.tasks.get(task.id)).state != "running":
            await house.tasks.wait(task.id, 10.0)
    waiting = asyncio.create_task(house.tasks.wait(task.id, 10.0))
    await asyncio.sleep(0)
    house.workers.finish(task.id)
    assert (await asyncio.wait_for(waiting, 2.0)).state == "completed"
    assert (await house.tasks.wait(task.id, 10.0)).state == "completed"


async def test_results_that_are_not_there_say_why(house: House, eventually: Callable) -> None:
    house.workers.instant = False
    task = await begin(house, await hold(house))
    with pytest.raises(QtandemError, match="is") as caught:
        await house.tasks.result(task.id)
    assert caught.value.code == "task-not-ready"
    await eventually(lambda: house.workers.at_work())
    house.workers.finish(task.id, TaskState.FAILED, "qubit 3 is broken")
    await ended(house, task.id)
    with pytest.raises(QtandemError, match="qubit 3 is broken") as caught:
        await house.tasks.result(task.id)
    assert caught.value.code == "task-failed"
    with pytest.raises(QtandemError, match="no task"):
        await house.tasks.get("nonsense")


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_task_can_be_stopped_while_it_waits_and_while_it_runs(
    house: House, eventually: Callable, waiting: bool
) -> None:
    house.workers.instant = False
    lease = await hold(house)
    made = [await begin(house, lease) for _ in range(2)]
    await eventually(lambda: house.workers.at_work())
    chosen = made[1] if waiting else made[0]
    stopped = await house.tasks.stop(chosen.id)
    assert (stopped.state, stopped.reason) == ("cancelled", "stopped by its owner")
    assert house.workers.stopped == ([] if waiting else [f"v-{chosen.id}"])
    assert (await house.tasks.stop(chosen.id)).state == "cancelled"


async def test_the_end_of_a_run_stops_its_tasks_before_the_lease_goes_back(house: House, eventually: Callable) -> None:
    house.workers.instant = False
    lease = await hold(house)
    made = [await begin(house, lease) for _ in range(3)]
    await eventually(lambda: house.workers.at_work())
    await house.lifecycle.end(house.manager.id("1"), 0, "over")
    for task in made:
        assert (await house.tasks.get(task.id)).state == "cancelled"
    assert house.workers.started == [made[0].id]
    assert house.workers.sessions() == []


async def test_the_expiry_of_a_lease_stops_its_tasks_too(house: House, eventually: Callable) -> None:
    watching = asyncio.create_task(house.tasks.watch_leases())
    house.workers.instant = False
    claim = await house.leases.claim(1000, "ann", [Grant("fez")], 60.0)
    task = await begin(house, claim.leases[0])
    await eventually(lambda: house.workers.at_work())
    await house.leases.end_claim(claim.id, 1000)
    assert (await ended(house, task.id)).state == "cancelled"
    watching.cancel()


async def test_passing_faults_of_the_vendor_are_ridden_out(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "RETRY_FIRST_S", 0.01)
    oops = QtandemError("vendor-error", "503")
    house.workers.errors = {name: [oops, oops] for name in ("task_start", "task_status", "task_result")}
    task = await begin(house, await hold(house))
    assert (await ended(house, task.id)).state == "completed"
    assert len(house.workers.started) == 1
    assert await result_of(house, task.id)


async def test_a_payload_that_the_vendor_refuses_fails_with_its_words(house: House) -> None:
    house.workers.errors["task_start"] = [QtandemError("bad-payload", "line 3: unknown gate", cause="E17")]
    task = await begin(house, await hold(house))
    done = await ended(house, task.id)
    assert done.state == "failed"
    assert "line 3: unknown gate (E17)" in done.reason


async def test_a_submission_whose_answer_was_lost_is_found_and_not_sent_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "RETRY_FIRST_S", 0.01)
    original = house.workers._task_start

    def lose(token: str, key: str, payload: object) -> str:
        original(token, key, payload)
        house.workers._task_start = None  # type: ignore[method-assign, assignment]
        raise QtandemError("vendor-timeout", "no answer")

    house.workers._task_start = lose  # type: ignore[method-assign]
    task = await begin(house, await hold(house))
    assert (await ended(house, task.id)).state == "completed"


async def test_where_the_vendor_cannot_tell_nothing_is_sent_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "RETRY_FIRST_S", 0.01)
    house.workers.finds = False
    house.workers.errors["task_start"] = [QtandemError("vendor-timeout", "no answer")]
    task = await begin(house, await hold(house))
    done = await ended(house, task.id)
    assert done.state == "failed"
    assert "cannot tell" in done.reason
    assert house.workers.started == []


async def test_a_restart_takes_up_what_was_under_way(house: House, eventually: Callable, tmp_path: Path) -> None:
    """One task runs at the vendor, one was being sent, one waits: none is sent twice, none is lost."""
    house.workers.instant = False
    lease = await hold(house, slots=2)
    made = [await begin(house, lease) for _ in range(3)]
    await eventually(lambda: len(house.workers.at_work()) == 2)
    await eventually(lambda: house.tasks.under_way().get("running") == 2)
    await house.tasks.close()
    # As if the daemon had died before the vendor's answer to the second one was written.
    unsure = replace(await house.context.records.task(made[1].id), state=TaskState.SUBMITTING, vendor_task=None)
    await house.context.records.update_task(unsure)
    house.tasks = house.new_tasks(tmp_path)
    await house.tasks.open()
    for task in made:
        await eventually(lambda task=task: task.id in house.workers.started)
        house.workers.finish(task.id)
        assert (await ended(house, task.id)).state == "completed"
    assert house.workers.started == [task.id for task in made]


async def test_a_restart_after_the_lease_ended_stops_its_tasks(
    house: House, eventually: Callable, tmp_path: Path
) -> None:
    house.workers.instant = False
    lease = await hold(house)
    made = [await begin(house, lease) for _ in range(2)]
    await eventually(lambda: house.workers.at_work())
    await house.tasks.close()
    await house.leases.end(house.manager.id("1"), 0, "over")
    house.tasks = house.new_tasks(tmp_path)
    await house.tasks.open()
    for task in made:
        assert (await ended(house, task.id)).state == "cancelled"
    assert house.workers.started == [made[0].id]


async def test_one_user_cannot_fill_the_daemon(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_TASKS", 2)
    house.workers.instant = False
    lease, other = await hold(house), await hold(house, "2", "torino", uid=1001)
    for _ in range(2):
        await begin(house, lease)
    with pytest.raises(QtandemError) as caught:
        await begin(house, lease)
    assert (caught.value.code, caught.value.retryable) == ("too-many-tasks", True)
    await begin(house, other)
    monkeypatch.setattr(tasks, "MAX_TASKS", 99)
    monkeypatch.setattr(tasks, "MAX_BYTES", 300)
    with pytest.raises(QtandemError):
        await begin(house, lease, program="x" * 300)


@pytest.mark.parametrize(
    "payload", [{"kind": ""}, {"kind": 3}, {"shots": -1}, {"shots": True}, {"shots": "x"}, {"shots": 10**30}]
)
async def test_a_malformed_payload_is_refused_before_anything_is_written(house: House, payload: dict) -> None:
    lease = await hold(house)
    with pytest.raises(QtandemError) as caught:
        await begin(house, lease, **payload)
    assert caught.value.code == "bad-payload"
    assert await house.context.records.tasks(Filter()) == []


async def test_the_lease_that_a_call_means(house: House) -> None:
    choose = house.tasks.choose_lease
    with pytest.raises(QtandemError, match="no lease"):
        choose(1000, "", "fez")
    mine, theirs = await hold(house), await hold(house, "2", uid=1001)
    other = await hold(house, "3", "torino")
    assert choose(1000, "", "fez").id == mine.id
    assert choose(1000, mine.id, "").id == mine.id
    assert choose(0, theirs.id, "", everybody=True).id == theirs.id
    for arguments, code in (
        ((1000, theirs.id, ""), "not-yours"),
        ((1000, "nonsense", ""), "no-lease"),
        ((1000, other.id, "fez"), "no-lease"),
        ((1000, "", ""), "ambiguous"),
    ):
        with pytest.raises(QtandemError) as caught:
            choose(*arguments)
        assert caught.value.code == code

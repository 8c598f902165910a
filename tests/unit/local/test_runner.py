import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import JobState
from qtandem.local.store import State

HELLO = "import os; print(os.environ['QTANDEM_RUN'], os.environ['LOCAL_JOB_ID'])"
SLEEP = "import time; time.sleep(60)"


async def test_a_job_pends_while_its_qpu_is_closed_and_runs_when_it_opens(machine):
    await machine.run()
    await machine.open(total=2, closed=2)
    job = await machine.submit(HELLO)
    row = await machine.until(job, lambda row: row.reason != "")
    assert (row.state, row.reason) == (State.PENDING, "qpu fez closed: 2 of 2 slots")
    await machine.open(total=2, closed=1)
    row = await machine.ended(job)
    assert (row.state, row.exit_code) == (State.COMPLETED, 0)
    assert (machine.folder / "output" / f"{job}.out").read_text() == f"local:local:{job}.0 {job}\n"
    assert machine.events(job) == ["start 0", "end 0"]
    assert machine.daemon.called("POST", "/end")[0].body["exit_code"] == 0


async def test_a_qpu_that_was_never_published_is_closed(machine):
    await machine.run()
    job = await machine.submit(HELLO)
    row = await machine.until(job, lambda row: row.reason != "")
    assert row.reason == "qpu fez closed: its sensor was never set"


async def test_opening_starts_a_job_at_once(machine):
    await machine.run()
    job = await machine.submit("pass")
    await machine.until(job, lambda row: row.reason != "")
    opened = time.monotonic()
    await machine.open()
    await machine.until(job, lambda row: row.state is not State.PENDING)
    assert time.monotonic() - opened < 1


async def test_never_more_holders_than_slots_and_the_end_is_told_before_the_next_start(machine):
    await machine.run()
    jobs = [await machine.submit("import time; time.sleep(0.05)") for _ in range(5)]
    await machine.open(total=1)
    for job in jobs:
        assert (await machine.ended(job)).state is State.COMPLETED
    heard = [call.path for call in machine.daemon.calls if call.path in ("/start", "/end")]
    assert heard == ["/start", "/end"] * 5


async def test_a_busy_qpu_is_named_as_the_reason(machine):
    await machine.run()
    await machine.open(total=1)
    first = await machine.submit(SLEEP)
    await machine.in_state(first, State.RUNNING)
    second = await machine.submit(SLEEP)
    row = await machine.until(second, lambda row: row.reason != "")
    assert row.reason == "qpu fez busy: 1 of 1 slots in use"


async def test_closing_never_stops_a_running_job(machine):
    await machine.run()
    await machine.open()
    job = await machine.submit("import time; time.sleep(0.3)")
    await machine.in_state(job, State.RUNNING)
    await machine.open(closed=1)
    assert (await machine.ended(job)).state is State.COMPLETED


async def test_several_qpus_are_waited_for_together(machine):
    await machine.run()
    await machine.open("fez")
    job = await machine.submit("pass", "fez:1,ibm_x:2")
    row = await machine.until(job, lambda row: row.reason != "")
    assert row.reason.startswith("qpu ibm_x closed")
    await machine.open("ibm_x", total=2)
    assert (await machine.ended(job)).state is State.COMPLETED


async def test_a_job_without_a_qpu_needs_no_daemon(machine):
    machine.daemon.stop()
    await machine.run()
    job = await machine.submit("pass", "")
    assert (await machine.ended(job)).state is State.COMPLETED


async def test_a_failing_script_fails_and_gives_back(machine):
    await machine.run()
    await machine.open()
    job = await machine.submit("raise SystemExit(3)")
    row = await machine.ended(job)
    assert (row.state, row.exit_code) == (State.FAILED, 3)
    assert machine.events(job) == ["start 0", "end 0"]


async def test_a_command_that_is_not_there_fails_and_gives_back(machine):
    await machine.run()
    await machine.open()
    job = machine.queue.submit(["/nowhere/script"], "fez")
    row = await machine.ended(job)
    assert (row.state, row.exit_code) == (State.FAILED, 127)
    assert "/nowhere/script" in row.reason
    assert machine.events(job) == ["start 0", "end 0"]


async def test_cancel_pending_and_running(machine):
    await machine.run()
    pending = await machine.submit(SLEEP)
    machine.queue.cancel(pending)
    assert (await machine.ended(pending)).state is State.CANCELLED
    assert machine.events(pending) == []
    await machine.open()
    running = await machine.submit(SLEEP)
    await machine.in_state(running, State.RUNNING)
    machine.queue.cancel(running)
    assert (await machine.ended(running)).state is State.CANCELLED
    assert machine.events(running) == ["start 0", "end 0"]


async def test_the_whole_process_group_goes(machine, tmp_path):
    await machine.run()
    await machine.open()
    note = tmp_path / "pid"
    start = "import subprocess, pathlib; p = subprocess.Popen(['sleep', '60'])"
    job = await machine.submit(f"{start}; pathlib.Path({str(note)!r}).write_text(str(p.pid)); p.wait()")
    await machine.until(job, lambda row: note.exists() and note.read_text() != "")
    machine.queue.cancel(job)
    await machine.ended(job)
    pid = int(note.read_text())
    await machine.until(job, lambda row: _gone(pid))


def _gone(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


async def test_time_limit(machine):
    await machine.run()
    await machine.open()
    job = await machine.submit(SLEEP, time_limit_s=1)
    row = await machine.ended(job)
    assert (row.state, row.reason) == (State.FAILED, "time limit")
    assert machine.events(job) == ["start 0", "end 0"]


async def test_a_held_start_goes_back_to_the_queue_as_the_next_attempt(machine):
    verdicts = iter(["hold", "admit"])
    machine.daemon.routes["POST /start"] = lambda call: {
        "verdict": next(verdicts),
        "run": f"local:local:1.{call.body['attempt']}",
        "message": "the vendor refused",
        "retry_after": 1.0,
    }
    await machine.run()
    await machine.open()
    job = await machine.submit("pass")
    row = await machine.until(job, lambda row: row.attempt == 1)
    assert row.reason == "the vendor refused"
    assert (await machine.ended(job)).state is State.COMPLETED
    assert machine.events(job) == ["start 0", "end 0", "start 1", "end 1"]


async def test_wait_is_asked_again_at_once(machine):
    verdicts = iter(["wait", "wait", "admit"])
    machine.daemon.routes["POST /start"] = lambda call: {"verdict": next(verdicts), "run": "local:local:1.0"}
    await machine.run()
    await machine.open()
    job = await machine.submit("pass")
    await machine.ended(job)
    assert machine.events(job) == ["start 0"] * 3 + ["end 0"]


async def test_a_dead_daemon_delays_and_never_loops(machine):
    await machine.run()
    await machine.open(closed=1)
    job = await machine.submit("pass")
    machine.daemon.stop()
    await machine.open()
    row = await machine.until(job, lambda row: row.attempt == 1)
    assert "cannot be reached" in row.reason
    assert row.eligible_at > time.time()
    machine.daemon.start()
    machine.queue.release(job)
    assert (await machine.ended(job)).state is State.COMPLETED


async def test_an_end_that_nobody_heard_is_told_again(machine):
    def refuse(call):
        raise QtandemError("daemon-unreachable", "no")

    await machine.run()
    await machine.open()
    answer = machine.daemon.routes["POST /end"]
    machine.daemon.routes["POST /end"] = refuse
    job = await machine.submit("pass")
    await machine.ended(job)
    machine.daemon.routes["POST /end"] = answer
    await machine.open()
    await machine.until(job, lambda row: len(machine.events(job)) >= 3)
    await machine.until(job, lambda row: not machine.queue._store.ends())


async def test_rings_do_not_have_an_unheard_end_told_more_often(machine):
    def refuse(call):
        raise QtandemError("daemon-unreachable", "no")

    machine.daemon.routes["POST /end"] = refuse
    await machine.run()
    await machine.open()
    job = await machine.submit("pass")
    await machine.ended(job)
    for _ in range(20):
        await machine.open()
        await asyncio.sleep(0.02)
    assert len(machine.daemon.called("POST", "/end")) <= 2  # at its end, and once more


async def test_a_runner_that_died_leaves_no_process_and_no_lease(machine):
    argv = ["-m", "qtandem.local.command", "run", "--state-dir", str(machine.folder), "--socket", machine.daemon.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    died = await asyncio.create_subprocess_exec(sys.executable, *argv, env=env, stderr=asyncio.subprocess.DEVNULL)
    await machine.open(total=2)
    job = await machine.submit(SLEEP, can_requeue=False)
    again = await machine.submit(SLEEP)
    rows = [await machine.in_state(each, State.RUNNING) for each in (job, again)]
    died.kill()
    await died.wait()
    await machine.open(closed=2, total=2)
    await machine.run()
    row = await machine.ended(job)
    assert (row.state, row.reason) == (State.FAILED, "the runner died")
    await machine.until(again, lambda row: (row.state, row.attempt) == (State.PENDING, 1))
    for each, before in zip((job, again), rows, strict=True):
        await machine.until(each, lambda _, pid=before.pid: _gone(pid))
        await machine.until(each, lambda _, each=each: "end 0" in machine.events(each))


async def test_stopping_the_runner_puts_running_jobs_back(machine):
    await machine.run()
    await machine.open()
    job = await machine.submit(SLEEP)
    await machine.in_state(job, State.RUNNING)
    await machine.stop()
    row = machine.queue.job(job)
    assert (row.state, row.attempt) == (State.PENDING, 1)
    assert machine.events(job) == ["start 0", "end 0"]


async def test_a_second_runner_is_refused(machine):
    await machine.run()
    await machine.open()
    await machine.ended(await machine.submit("pass"))
    first = machine._runner, machine._task
    await machine.run()
    with pytest.raises(QtandemError, match="has a runner already"):
        await machine._task
    machine._runner, machine._task = first


async def test_a_refused_submission_queues_nothing(machine):
    machine.daemon.routes["POST /submit"] = {
        "verdict": "reject",
        "code": "unknown-resource",
        "message": "There is no QPU or class named 'fes'. Did you mean fez?",
    }
    with pytest.raises(QtandemError, match="fes") as caught:
        await machine.submit("pass", "fes")
    assert caught.value.code == "unknown-resource"
    assert machine.queue.jobs() == []


async def test_a_job_does_not_inherit_the_run_of_its_submitter(machine):
    environ = {**os.environ, "QTANDEM_RUN": "other", "fez_QRMI_JOB_ACQUISITION_TOKEN": "stolen", "KEPT": "yes"}
    script = "import os; print(os.environ['QTANDEM_RUN'], 'stolen' in str(os.environ), os.environ['KEPT'])"
    await machine.run()
    await machine.open()
    job = machine.queue.submit([sys.executable, "-c", script], "fez", environ=environ)
    await machine.ended(job)
    assert (machine.folder / "output" / f"{job}.out").read_text() == f"local:local:{job}.0 False yes\n"


async def test_hold_by_the_manager_stops_requeues_and_holds(machine):
    await machine.run()
    await machine.open()
    job = await machine.submit(SLEEP)
    await machine.in_state(job, State.RUNNING)
    await machine.manager.hold(machine.queue.full_id(job), "refused 5 times")
    row = await machine.until(job, lambda row: row.state is State.PENDING and row.reason.startswith("held"))
    assert (row.attempt, row.reason) == (1, "held: refused 5 times")
    view = (await machine.manager.jobs([machine.queue.full_id(job)]))[machine.queue.full_id(job)]
    assert (view.state, view.attempt, view.comment) == (JobState.PENDING, 1, "refused 5 times")

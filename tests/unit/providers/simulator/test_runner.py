"""Tasks outlive the processes that run them."""

import asyncio
import json
import os
import signal

import psutil
import pytest

from qtandem.core.providers.base import ProviderSpec, TaskState
from qtandem.core.providers.pool import Workers
from qtandem.core.providers.simulator.device import SimulatedDevice

pytest.importorskip("qiskit_aer", reason="the extra `simulator` is not installed")

BELL = 'OPENQASM 2.0; include "qelib1.inc"; qreg q[2]; creg c[2]; h q[0]; cx q[0],q[1]; measure q -> c;'
TASK = {"kind": "qasm2", "program": BELL, "shots": 100}
# Deep enough to keep an engine busy until it is ended.
ENDLESS = {
    "kind": "qasm2",
    "shots": 1,
    "program": 'OPENQASM 2.0; include "qelib1.inc"; qreg q[26]; creg c[26];'
    + "".join(f"ry(0.1) q[{n % 26}]; cx q[{n % 26}],q[{(n + 1) % 26}];" for n in range(3000))
    + "measure q -> c;",
}


@pytest.fixture
def device(tmp_path):
    return SimulatedDevice(tmp_path)


@pytest.fixture
async def make(tmp_path):
    made = []

    def make(slots=2):
        spec = ProviderSpec("sim", "simulator", {"state_dir": str(tmp_path), "seed": "5"}, slots)
        made.append(Workers({"sim": spec}))
        return made[-1]

    yield make
    for workers in made:
        await workers.close()


async def call(workers, method, *args):
    return await workers.call("sim", method, *args, purpose="execute")


async def until(condition, within=40.0):
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - another process changes the device
            await asyncio.sleep(0.01)


def events(device, task):
    return [row["event"] for row in device.task_log(task)]


def engines(workers):
    [row] = [row for row in workers.stats() if row.pid]
    return [child.pid for child in psutil.Process(row.pid).children()]


async def test_tasks_that_a_dead_worker_left_are_run_once_by_the_next(make, device):
    device.set(task_s=600)
    workers = make(slots=2)
    token = await call(workers, "acquire", "run", 2)
    tasks = [await call(workers, "task_start", token, f"t{n}", TASK) for n in range(3)]
    await until(lambda: [device.task_report(task).state for task in tasks].count(TaskState.RUNNING) == 2)
    [row] = workers.stats()
    os.kill(row.pid, signal.SIGKILL)
    await until(lambda: workers.stats()[0].pid is None)
    device.set(task_s=0)
    for task in tasks:
        assert (await call(workers, "task_status", task)).state is not TaskState.FAILED
    await until(lambda: all(device.task_report(task).state.final for task in tasks))
    assert events(device, tasks[0]) == ["task_start", "task_running", "task_requeued", "task_running", "task_completed"]
    assert events(device, tasks[2]) == ["task_start", "task_running", "task_completed"]
    results = [json.loads(device.task_result(task))["counts"] for task in tasks]
    assert results[0] == results[1] == results[2]
    assert device.violations() == []


async def test_two_workers_of_one_device_never_run_a_task_twice(make, device):
    one, other = make(), make()
    token = await call(one, "acquire", "run", 2)
    tasks = [await call(workers, "task_start", token, f"t{n}", TASK) for n, workers in enumerate((one, other) * 3)]
    await until(lambda: all(device.task_report(task).state is TaskState.COMPLETED for task in tasks))
    assert all(events(device, task).count("task_running") == 1 for task in tasks)


async def test_a_worker_answers_while_its_engine_computes_and_a_stop_ends_that(make, device):
    workers = make()
    token = await call(workers, "acquire", "run", 1)
    task = await call(workers, "task_start", token, "t", ENDLESS)
    await until(lambda: device.task_report(task).state is TaskState.RUNNING)
    for _ in range(5):
        report = await workers.call("sim", "task_status", task, purpose="execute", deadline_s=5)
        assert report.state is TaskState.RUNNING
    await call(workers, "task_stop", task)
    assert device.task_report(task).state is TaskState.CANCELLED
    await until(lambda: engines(workers) == [])
    task = await call(workers, "task_start", token, "t2", TASK)
    await until(lambda: device.task_report(task).state is TaskState.COMPLETED)


async def test_a_released_session_frees_the_engine(make, device):
    workers = make()
    token = await call(workers, "acquire", "run", 1)
    task = await call(workers, "task_start", token, "t", ENDLESS)
    await until(lambda: device.task_report(task).state is TaskState.RUNNING)
    await call(workers, "release", token)
    await until(lambda: engines(workers) == [])


async def test_a_circuit_that_kills_its_engine_is_tried_again_then_fails_alone(make, device):
    workers = make()
    token = await call(workers, "acquire", "run", 1)
    task = await call(workers, "task_start", token, "t", ENDLESS)
    await until(lambda: device.task_report(task).state is TaskState.RUNNING)

    def over_by_kills() -> bool:
        for pid in engines(workers):
            os.kill(pid, signal.SIGKILL)
        return device.task_report(task).state.final

    await until(over_by_kills)
    report = device.task_report(task)
    assert report.state is TaskState.FAILED
    assert "went down 2 times" in report.reason
    assert (await call(workers, "find_session", "run")) == token


async def test_engines_die_with_their_worker(make, device):
    workers = make()
    token = await call(workers, "acquire", "run", 1)
    await call(workers, "task_start", token, "t", ENDLESS)
    pids = engines(workers)
    assert pids
    [row] = workers.stats()
    os.kill(row.pid, signal.SIGKILL)
    await until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids))
    device.release(token)

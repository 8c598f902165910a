import asyncio
import threading

import pytest

from qtandem.core import client
from qtandem.core.client import Payload, QuantumResource, ResourceStatusCode, TaskStatus, aio, counts
from qtandem.core.client.verbs import Verbs
from qtandem.core.errors import QtandemError
from tests.fakes.daemon import lease, resource, task


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_verbs_are_those_of_the_client_that_waits():
    assert public(QuantumResource) - public(aio.QuantumResource) == set()
    assert public(QuantumResource) - {"from_config"} <= public(Verbs)


async def test_acquire_takes_the_first_qpu_of_the_job_and_releases_it(daemon, monkeypatch):
    monkeypatch.setenv("QTANDEM_RUN", "local:local:1.0")
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "fez")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "simulator")
    daemon.routes["GET /leases"] = {"leases": [lease(id="l-7")]}
    daemon.routes["GET /tasks"] = {"tasks": [task("running", id="a"), task("completed", id="b")]}
    daemon.routes["POST /tasks/*/stop"] = task("cancelled")
    async with aio.acquire() as qpu:
        assert qpu.resource_id() == "fez"
        assert (await qpu.status()).status is ResourceStatusCode.Online
    assert [call.path for call in daemon.called("POST", "/tasks/*/stop")] == ["/tasks/a/stop"]


async def test_tasks_run_at_the_same_time(daemon):
    together = threading.Barrier(3, timeout=5)

    def answer(call):
        together.wait()
        return task("completed")

    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = answer
    daemon.routes["GET /tasks/*/result"] = {"text": '{"counts": {"0": 5}}'}
    qpu = aio.QuantumResource("fez")
    results = await asyncio.gather(*(qpu.run(Payload.QASM3("x", 5)) for _ in range(3)))
    assert [counts(result.value) for result in results] == [{"0": 5}] * 3
    assert len({call.body["key"] for call in daemon.called("POST", "/tasks")}) == 3


async def test_a_cancelled_wait_stops_the_task(daemon):
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(call):
        loop.call_soon_threadsafe(asked.set)
        return task("running")

    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = answer
    daemon.routes["POST /tasks/*/stop"] = task("cancelled")
    running = asyncio.create_task(aio.QuantumResource("fez").run(Payload.QASM3("x", 1)))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert daemon.called("POST", "/tasks/*/stop")


async def test_errors_are_those_of_the_client_that_waits(daemon):
    def refuse(call):
        raise QtandemError("task-not-ready", "no")

    daemon.routes["GET /tasks/*/result"] = refuse
    with pytest.raises(client.TaskNotReadyError) as caught:
        await aio.QuantumResource("fez").task_result("t-1")
    assert caught.value.code == "task-not-ready"
    with pytest.raises(client.ResourceNotFoundError):
        await aio.QuantumResource("nowhere").status()


async def test_no_daemon_is_one_clear_error(daemon):
    daemon.stop()
    with pytest.raises(client.QrmiError, match="cannot be reached") as caught:
        await aio.QuantumResource("fez").status()
    assert caught.value.retryable


async def test_a_daemon_that_is_restarted_is_borne_with(daemon):
    daemon.stop()
    patient = aio.QuantumResource("fez", daemon=aio.Daemon(daemon.path, patience_s=30))
    waiting = asyncio.create_task(patient.is_accessible())
    await asyncio.sleep(0)
    daemon.start()
    assert await waiting


async def test_a_daemon_that_hangs_costs_the_deadline_only(daemon):
    gone = threading.Event()
    daemon.routes["GET /resources"] = lambda call: gone.wait(5)
    with pytest.raises(QtandemError, match=r"did not answer within 0\.1 s"):
        await aio.Daemon(daemon.path, deadline_s=0.1).get("resources")
    gone.set()


async def test_task_wait_with_a_timeout_returns_the_state_so_far(daemon):
    daemon.routes["GET /tasks/*"] = task("running")
    assert await aio.QuantumResource("fez").task_wait("t-1", timeout=0.05) is TaskStatus.Running


async def test_from_config_takes_the_lease_and_no_endpoint(daemon):
    daemon.routes["POST /tasks"] = task("queued")
    config = {"QRMI_JOB_ACQUISITION_TOKEN": "l-5", "QRMI_IBM_QCS_ENDPOINT": "http://evil"}
    await aio.QuantumResource.from_config("fez", "simulator", config).task_start(Payload.QASM3("x", 1))
    assert daemon.called("POST", "/tasks")[0].body["lease"] == "l-5"
    assert "evil" not in str(daemon.calls)


def test_half_an_answer_is_no_answer():
    import http.client

    from qtandem.core.client.http import answer

    with pytest.raises(http.client.IncompleteRead):
        answer(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"a": 1}')


async def test_the_resource_is_found_by_both_names(daemon):
    daemon.routes["GET /resources"] = {"resources": [resource("ibm-x")]}
    assert await aio.QuantumResource("ibm_x").is_accessible()

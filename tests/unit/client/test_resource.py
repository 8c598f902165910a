import threading

import pytest

from qtandem.core import client
from qtandem.core.client import Payload, QuantumResource, ResourceStatusCode, ResourceType, TaskStatus
from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from tests.fakes.daemon import FakeDaemon, lease, resource, task

RUN = "local:local:1.0"


def in_job(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, *leases: dict) -> None:
    monkeypatch.setenv("QTANDEM_RUN", RUN)
    daemon.routes["GET /leases"] = {"leases": list(leases)}
    daemon.routes["GET /tasks"] = {"tasks": []}


def test_acquire_in_a_job_is_the_lease_of_the_run(daemon, monkeypatch):
    other = lease(id="l-1", owner="run local:local:2.0")
    in_job(daemon, monkeypatch, other, lease(id="l-6", state="releasing"), lease(id="l-7"))
    monkeypatch.setenv("fez_QRMI_JOB_ACQUISITION_TOKEN", "l-1")
    assert QuantumResource("fez", ResourceType.Simulator).acquire() == "l-7"
    assert daemon.called("GET", "/leases")[0].query == {"mine": "1"}


def test_a_resource_whose_name_shells_do_not_take_is_found_by_both_names(daemon, monkeypatch):
    in_job(daemon, monkeypatch, lease(id="l-8", resource="ibm-x"))
    assert QuantumResource("ibm-x").acquire() == "l-8"
    assert QuantumResource("ibm_x").acquire() == "l-8"


def test_acquire_without_a_lease_says_so(daemon, monkeypatch):
    in_job(daemon, monkeypatch, lease(owner="run local:local:2.0"))
    with pytest.raises(client.QrmiError, match="holds no lease on fez") as caught:
        QuantumResource("fez").acquire()
    assert caught.value.code == "no-lease"


def test_acquire_outside_a_job_uses_a_claim(daemon):
    of_run = lease(id="l-1")
    daemon.routes["GET /leases"] = {"leases": [of_run, lease(id="l-2", owner="claim c")]}
    assert QuantumResource("fez").acquire() == "l-2"
    daemon.routes["GET /leases"] = {"leases": [of_run]}
    assert QuantumResource("fez").acquire() == "l-1"
    daemon.routes["GET /leases"] = {"leases": [of_run, lease(id="l-3", owner="run local:local:2.0")]}
    with pytest.raises(client.QrmiError, match="Neither a job nor a claim"):
        QuantumResource("fez").acquire()


def test_release_stops_only_what_is_under_way(daemon, monkeypatch):
    in_job(daemon, monkeypatch, lease(id="l-7"))
    daemon.routes["GET /tasks"] = {
        "tasks": [task("running", id="a"), task("completed", id="b"), task("queued", id="c")]
    }
    daemon.routes["POST /tasks/*/stop"] = task("cancelled")
    qpu = QuantumResource("fez")
    qpu.release(qpu.acquire())
    assert [call.path for call in daemon.called("POST", "/tasks/*/stop")] == ["/tasks/a/stop", "/tasks/c/stop"]
    assert daemon.called("GET", "/tasks")[0].query == {"lease": "l-7"}


def test_context_manager_takes_the_first_qpu_of_the_job_and_releases_it(daemon, monkeypatch):
    in_job(daemon, monkeypatch, lease(id="l-7"))
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "fez")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "simulator")
    with client.acquire() as qpu:
        assert (qpu.resource_id(), qpu.resource_type()) == ("fez", ResourceType.Simulator)
    assert daemon.called("GET", "/tasks")


def test_task_start_sends_the_payload_with_a_key_of_its_own(daemon):
    daemon.routes["POST /tasks"] = task("queued", id="t-9")
    qpu = QuantumResource("fez")
    assert qpu.task_start(Payload.QiskitPrimitive(input="{}", program_id="sampler")) == "t-9"
    qpu.task_start(Payload.QASM3("OPENQASM 3.0;", 10))
    first, second = (call.body for call in daemon.called("POST", "/tasks"))
    assert first["payload"] == {"kind": "qiskit-primitive", "input": "{}", "program_id": "sampler"}
    assert second["payload"] == {"kind": "qasm3", "program": "OPENQASM 3.0;", "shots": 10}
    assert first["resource"] == "fez"
    assert first["key"] != second["key"]


def test_run_waits_by_long_poll_and_returns_the_result(daemon):
    states = iter(["queued", "running", "completed"])
    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = lambda call: task(next(states))
    daemon.routes["GET /tasks/*/result"] = {"text": '{"counts": {"00": 6, "11": 4}}'}
    result = QuantumResource("fez").run(Payload.QASM3("OPENQASM 3.0;", 10))
    assert client.counts(result.value) == {"00": 6, "11": 4}
    assert all(float(call.query["wait"]) > 1 for call in daemon.called("GET", "/tasks/*"))


def test_run_of_a_failed_task_tells_the_reason(daemon):
    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = task("failed", reason="too many qubits")
    with pytest.raises(client.QrmiError, match="failed: too many qubits"):
        QuantumResource("fez").run(Payload.QASM3("x", 1))


def test_a_wait_that_is_broken_off_stops_the_task(daemon):
    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = task("running")
    daemon.routes["POST /tasks/*/stop"] = task("cancelled")
    with pytest.raises(client.QrmiError, match="did not end within"):
        QuantumResource("fez").run(Payload.QASM3("x", 1), timeout=0.05)
    assert daemon.called("POST", "/tasks/*/stop")


def test_task_wait_with_a_timeout_returns_the_state_so_far(daemon):
    daemon.routes["GET /tasks/*"] = task("running")
    assert QuantumResource("fez").task_wait("t-1", timeout=0.05) is TaskStatus.Running


@pytest.mark.parametrize(
    ("availability", "code"),
    [("online", "Online"), ("paused", "Paused"), ("offline", "Offline"), ("unknown", "Offline")],
)
def test_status_is_the_newest_fact(daemon, availability, code):
    daemon.routes["GET /resources"] = {"resources": [resource("fez", availability=availability, free=0, queue=None)]}
    status = QuantumResource("fez").status()
    assert status.status is ResourceStatusCode[code]
    assert status.busy is (availability == "online")
    assert (status.capacity.available_slots, status.capacity.max_slots) == (0, 2)
    assert status.pending_job_count is None
    assert status.to_dict()["status"] == code
    assert QuantumResource("fez").is_accessible() is (availability == "online")


def test_type_is_looked_up_where_it_is_not_given(daemon):
    assert QuantumResource("fez").resource_type() is ResourceType.Simulator


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad-request", client.InvalidInputError),
        ("bad-payload", client.UnsupportedPayloadError),
        ("unsupported", client.UnsupportedFunctionError),
        ("bad-credentials", client.AuthenticationFailedError),
        ("no-provider", client.UnsupportedResourceTypeError),
        ("unknown-resource", client.ResourceNotFoundError),
    ],
)
def test_errors_have_the_names_of_qrmi(daemon, code, kind):
    def refuse(call):
        raise QtandemError(code, "no")

    daemon.routes["POST /tasks"] = refuse
    with pytest.raises(kind) as caught:
        QuantumResource("fez").task_start(Payload.QASM3("x", 1))
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.code == code


def test_task_errors(daemon):
    def refuse(code):
        def answer(call):
            raise QtandemError(code, "no")

        return answer

    daemon.routes["GET /tasks/*/result"] = refuse("task-not-ready")
    daemon.routes["GET /tasks/*"] = refuse("no-such-run")
    with pytest.raises(client.TaskNotReadyError):
        QuantumResource("fez").task_result("t-1")
    with pytest.raises(client.TaskNotFoundError):
        QuantumResource("fez").task_status("t-1")
    with pytest.raises(client.ResourceNotFoundError):
        QuantumResource("nowhere").status()


def test_from_config_takes_the_lease_and_no_endpoint(daemon):
    daemon.routes["POST /tasks"] = task("queued")
    config = {"QRMI_JOB_ACQUISITION_TOKEN": "l-5", "QRMI_IBM_QCS_ENDPOINT": "http://evil"}
    QuantumResource.from_config("fez", "simulator", config).task_start(Payload.QASM3("x", 1))
    body = daemon.called("POST", "/tasks")[0].body
    assert body["lease"] == "l-5"
    assert "evil" not in str(body)


def test_no_daemon_is_one_clear_error(daemon):
    daemon.stop()
    with pytest.raises(client.QrmiError, match="cannot be reached") as caught:
        QuantumResource("fez").status()
    assert caught.value.retryable


def test_a_job_bears_with_a_daemon_that_is_restarted(daemon):
    daemon.stop()
    tried = threading.Event()

    def pause(_: float) -> None:
        if not tried.is_set():
            tried.set()
            daemon.start()

    resource_ = QuantumResource("fez", daemon=Daemon(daemon.path, patience_s=30, pause=pause))
    assert resource_.is_accessible()
    assert tried.is_set()


def test_a_relay_without_its_daemon_is_waited_out_too(daemon):
    answers = iter([QtandemError("daemon-unreachable", "no"), {"resources": [resource("fez")]}])

    def answer(call):
        result = next(answers)
        if isinstance(result, QtandemError):
            raise result
        return result

    daemon.routes["GET /resources"] = answer
    patient = Daemon(daemon.path, patience_s=30, pause=lambda _: None)
    assert QuantumResource("fez", daemon=patient).is_accessible()


def test_a_daemon_that_hangs_costs_the_deadline_only(daemon):
    gone = threading.Event()
    daemon.routes["GET /resources"] = lambda call: gone.wait(5)
    with pytest.raises(QtandemError, match=r"did not answer within 0\.1 s"):
        Daemon(daemon.path, deadline_s=0.1).get("resources")
    gone.set()


def test_provider_filters_as_qrmi_does(daemon):
    rows = [
        resource("big", qubits=156, queue=9),
        resource("small", qubits=5, queue=0),
        resource("idle", qubits=127, queue=1),
        resource("other", type="iqm-server", simulator=False),
    ]
    daemon.routes["GET /resources"] = {"resources": rows}
    provider = client.ResourceProvider(ResourceType.Simulator, {})
    assert [found.resource_id() for found in provider.resources("num_qubits=100")] == ["idle", "big"]
    assert provider.least_busy("name=s*").resource_id() == "small"
    assert provider.least_busy("num_qubits=1000") is None
    with pytest.raises(client.InvalidInputError):
        provider.resources("num_qubits")


def test_service_lists_what_is_online(daemon, monkeypatch):
    daemon.routes["GET /resources"] = {"resources": [resource("fez"), resource("low", availability="paused")]}
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "fez,low")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "simulator,simulator")
    service = client.QRMIService()
    assert [found.resource_id() for found in service.resources()] == ["fez"]
    assert service.resource("low") is None


def test_the_claim_that_the_job_was_given_is_used(daemon, monkeypatch):
    leases = [lease(id="l-1", owner="claim c1"), lease(id="l-2", owner="claim c2")]
    daemon.routes["GET /leases"] = {"leases": leases}
    daemon.routes["POST /tasks"] = {"id": "t"}
    monkeypatch.setenv("QTANDEM_CLAIM", "c2")
    assert QuantumResource("fez").acquire() == "l-2"
    QuantumResource("fez").task_start(Payload.QASM2("OPENQASM 2.0;", 1))
    assert daemon.calls[-1].body["claim"] == "c2"
    monkeypatch.setenv("QTANDEM_CLAIM", "c")
    with pytest.raises(client.QrmiError):
        QuantumResource("fez").acquire()


def test_an_own_daemon_that_starts_later_is_found(daemon, monkeypatch, tmp_path):
    monkeypatch.delenv("QTANDEM_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("qtandem.core.client.dialogue.SYSTEM_SOCKET", str(tmp_path / "none"))
    early = Daemon()
    with pytest.raises(QtandemError, match="cannot be reached"):
        early.get("resources")
    (tmp_path / "qtandem").mkdir()
    (tmp_path / "qtandem" / "qtandem.sock").symlink_to(daemon.path)
    daemon.routes["GET /resources"] = {"resources": []}
    assert early.get("resources") == {"resources": []}

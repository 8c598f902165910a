"""Vendors through the qrmi library, against fakes of their HTTP."""

import json
import time

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.providers.base import ProviderSpec, TaskState
from qtandem.core.providers.qrmi.provider import (
    FelisProvider,
    IqmProvider,
    PasqalCloudProvider,
    PasqalLocalProvider,
)
from tests.fakes.vendors import felis, iqm, pasqal

CIRCUITS = {"kind": "iqm-server", "iqmjson": {"circuits": [], "shots": 10}}
QIR = {"kind": "alice-bob-felis", "human_qir": "define void @main() {} ; é", "input_params": {"a": 1}}
SEQUENCE = {"kind": "pasqal-cloud", "sequence": {"version": "1"}, "job_runs": 7}


@pytest.fixture
def server():
    with iqm.FakeIqm() as fake:
        yield fake


@pytest.fixture
def garnet(server, tmp_path):
    def make(name="garnet_mock", **more):
        settings = {"QRMI_IQM_ISA_ENDPOINT": server.url, "QRMI_IQM_ISA_TOKEN": iqm.TOKEN, "state_dir": str(tmp_path)}
        return IqmProvider(ProviderSpec(name, "iqm-server", settings | more))

    return make


@pytest.fixture
def cats():
    with felis.FakeFelis() as fake:
        yield fake


@pytest.fixture
def target(cats, tmp_path):
    def make(name=felis.DEVICE, **more):
        settings = {
            "QRMI_AB_FELIS_API_KEY": felis.APIKEY,
            "QRMI_AB_FELIS_BASE_ENDPOINT": cats.url,
            "state_dir": str(tmp_path),
        }
        return FelisProvider(ProviderSpec(name, "alice-bob-felis", settings | more))

    return make


@pytest.fixture
def cloud():
    with pasqal.FakePasqal() as fake:
        yield fake


@pytest.fixture
def fresnel(cloud, tmp_path):
    def make(name=pasqal.DEVICE, **more):
        settings = {
            "QRMI_PASQAL_CLOUD_PROJECT_ID": pasqal.PROJECT,
            "QRMI_PASQAL_CLOUD_CLIENT_ID": pasqal.CLIENT,
            "QRMI_PASQAL_CLOUD_CLIENT_SECRET": pasqal.SECRET,
            "QRMI_PASQAL_CLOUD_AUTH_ENDPOINT": f"{cloud.url}/oauth/token",
            "QRMI_PASQAL_CLOUD_BASE_URL": cloud.url,
            "state_dir": str(tmp_path),
        }
        return PasqalCloudProvider(ProviderSpec(name, "pasqal-cloud", settings | more))

    return make


@pytest.fixture
def warden():
    with pasqal.FakeWarden() as fake:
        yield fake


@pytest.fixture
def here(warden, tmp_path):
    def make(**more):
        settings = {
            "QRMI_WARDEN_URL": warden.url,
            "munge_library": pasqal.munge_library(),
            "state_dir": str(tmp_path),
        } | more
        return PasqalLocalProvider(ProviderSpec("here", "pasqal-local", settings))

    return make


def ended(provider, task):
    for _ in range(6):
        report = provider.task_status(task)
        if report.state.final:
            return report
    raise AssertionError(report)


class TestIqm:
    def test_facts(self, server, garnet):
        seen = garnet().observe()
        assert (seen.availability, seen.queue) == (Availability.ONLINE, 4)
        known = seen.calibration
        assert (known.qubits, known.coupling, known.max_shots) == (3, ((0, 1), (1, 2)), 20_000)
        assert (known.two_qubit_error, known.readout_error, known.t1_s) == (0.02, 0.04, 3e-5)
        assert known.basis_gates == ("cz", "measure", "prx")
        assert server.writes() == []

    @pytest.mark.parametrize(
        ("status", "healthy", "availability"),
        [
            ("maintenance", True, Availability.PAUSED),
            ("online", False, Availability.OFFLINE),
            ("offline", None, Availability.OFFLINE),
            ("online", None, Availability.ONLINE),
            (None, None, Availability.UNKNOWN),
            ("brand-new", True, Availability.UNKNOWN),
        ],
    )
    def test_signals(self, server, garnet, status, healthy, availability):
        server.status, server.healthy, server.queue = status, healthy, None
        seen = garnet().observe()
        assert (seen.availability, seen.queue) == (availability, None)

    def test_fields_that_the_library_refuses_cost_nothing(self, server, garnet):
        server.fault("missing", path="/quantum-computers/[^/]+$", fields=("pricing", "id", "limits"))
        assert garnet().observe().availability is Availability.ONLINE

    def test_a_machine_without_calibration_has_a_fact_and_says_so_of_its_target(self, server, garnet, refused):
        server.fail(404, path="/metrics$")
        seen = garnet().observe()
        assert (seen.availability, seen.calibration) == (Availability.ONLINE, None)
        assert refused(garnet().target).code == "bad-config"

    @pytest.mark.parametrize(
        ("name", "more", "remote"),
        [
            ("garnet_mock", {}, "garnet:mock"),
            ("a_b_c", {}, "a_b:c"),
            ("iqm_here", {"backend": "garnet:mock"}, "garnet:mock"),
            ("iqm_here", {"backend": "garnet"}, "garnet"),
        ],
    )
    def test_the_library_s_names_stay_out_of_ours(self, garnet, name, more, remote):
        assert garnet(name, **more).metadata()["backend_name"] == remote

    def test_a_name_that_the_library_would_change_is_refused(self, garnet, refused):
        assert refused(lambda: garnet(backend="my_garnet")).code == "bad-config"

    def test_a_machine_of_somebody_else_is_forbidden(self, garnet, refused):
        assert refused(garnet("deneb_mock").observe).code == "policy"

    def test_a_state_comes_at_once_though_the_library_waits_for_the_end(self, server, garnet):
        server.task_s = 600
        provider = garnet()
        task = provider.task_start("run-1", "task-1", CIRCUITS)
        began = time.monotonic()
        assert provider.task_status(task).reason == "position 2 in the queue"
        assert provider.task_status(task).state is TaskState.RUNNING
        provider.task_stop(task)
        assert time.monotonic() - began < 5

    def test_tag_usage_and_log(self, server, garnet):
        provider = garnet()
        task = provider.task_start("run-1", "task-1", CIRCUITS)
        assert server.jobs[task]["tag"] == "task-1"
        assert ended(provider, task).usage_s == 0.25
        assert "created" in provider.task_logs(task)
        counts = json.loads(provider.task_result(task))["measurement_counts"]
        assert counts[0]["counts"] == {"00": 5, "11": 5}


class TestFelis:
    def test_facts(self, cats, target):
        seen = target().observe()
        assert (seen.availability, seen.calibration.qubits) == (Availability.ONLINE, 40)
        assert cats.writes() == []

    @pytest.mark.parametrize(
        ("health", "availability"),
        [
            ("OFF", Availability.OFFLINE),
            ("NOK", Availability.OFFLINE),
            ("?", Availability.UNKNOWN),
            (None, Availability.UNKNOWN),
        ],
    )
    def test_health(self, cats, target, health, availability):
        cats.health = health
        assert target().observe().availability is availability

    def test_a_target_can_be_named_as_felis_names_it(self, target, refused):
        assert target("cats", backend=felis.TARGET).observe().availability is Availability.ONLINE
        assert refused(lambda: target("cats", backend="EMU:40Q:CATS:X")).code == "bad-config"
        assert refused(target("ab_qpu_2q_none").observe).code == "policy"

    def test_a_result_is_felis_s_csv(self, target):
        provider = target()
        task = provider.task_start("run-1", "task-1", QIR)
        assert ended(provider, task).usage_s == 1.5
        assert json.loads(provider.task_result(task)) == felis.CSV

    def test_why_it_failed(self, cats, target, refused):
        cats.fails = "no such gate"
        provider = target()
        task = provider.task_start("run-1", "task-1", QIR)
        assert "no such gate" in ended(provider, task).reason
        provider.task_stop(task)
        assert [row["event"] for row in cats.log] == ["task_start"]
        assert refused(provider.task_result, task).code == "task-failed"

    def test_a_panic_of_the_library_is_the_vendor_s_failure(self, cats, target, refused):
        provider = target()
        task = provider.task_start("run-1", "task-1", QIR)
        cats.jobs[task]["events"] = []
        cats.fault("null", fields=("nothing",))
        cats._advance = lambda job: None
        error = refused(provider.task_status, task)
        assert (error.code, error.retryable) == ("vendor-error", True)


class TestPasqalCloud:
    @pytest.mark.parametrize(
        ("status", "availability", "seen"),
        [
            ("UP", "ACTIVE", Availability.ONLINE),
            ("DOWN", "ACTIVE", Availability.OFFLINE),
            ("UP", "RETIRED", Availability.OFFLINE),
        ],
    )
    def test_facts(self, cloud, fresnel, status, availability, seen):
        cloud.status, cloud.availability = status, availability
        fact = fresnel().observe()
        assert (fact.availability, fact.calibration.qubits, fact.calibration.max_shots) == (seen, 80, 500)
        assert cloud.writes() == []

    def test_a_wrong_secret_is_seen_on_a_poll(self, fresnel, refused):
        for secret in ("wrong", ""):
            assert refused(fresnel(QRMI_PASQAL_CLOUD_CLIENT_SECRET=secret).observe).code == "bad-credentials"

    def test_a_device_that_there_is_not(self, fresnel, refused):
        assert refused(lambda: fresnel("RUBY")).code == "bad-config"
        assert fresnel("my_qpu", backend="emu_mps").metadata()["backend_name"] == "EMU_MPS"


class TestPasqalLocal:
    def test_facts(self, warden, here):
        assert here().observe().availability is Availability.ONLINE
        warden.accessible, warden.message = False, "the laser is off"
        seen = here().observe()
        assert (seen.availability, seen.reason) == (Availability.OFFLINE, "the laser is off")
        warden.accessible = None
        assert here().observe().availability is Availability.UNKNOWN

    def test_a_session_is_the_lease_s_and_outlives_the_worker(self, warden, here):
        token = here().acquire("run-1", 1)
        assert here().acquire("run-1", 1) == token
        assert warden.sessions[token]["slurm_job_id"] == "run-1"
        task = here().task_start(token, "task-1", SEQUENCE)
        assert here().find_task("task-1") == task
        here().release(token)
        assert warden.sessions == {}
        assert here().find_session("run-1") is None

    def test_without_munge_the_site_is_told(self, warden, here, tmp_path, refused):
        error = refused(lambda: here(munge_library=str(tmp_path / "none.so")))
        assert (error.code, "munge_library" in error.message) == ("bad-config", True)

    def test_old_middleware_says_what_it_cannot_and_still_closes_sessions(self, warden, here, refused):
        warden.old, warden.task_s = True, 600
        provider = here()
        token = provider.acquire("run-1", 1)
        task = provider.task_start(token, "task-1", SEQUENCE)
        assert refused(provider.task_stop, task).code == "unsupported"
        assert refused(provider.task_logs, task).code == "unsupported"
        provider.release(token)
        assert warden.sessions == {}

    @pytest.mark.parametrize("uid", ["-1", "root", "2147483648"])
    def test_a_uid_that_the_library_does_not_take(self, here, refused, uid):
        assert refused(lambda: here(QRMI_JOB_UID=uid)).code == "bad-config"


class TestSubmissions:
    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (400, "bad-payload"), (401, "bad-credentials"), (403, "policy"), (404, "bad-config"), (409, "policy"),
            (423, "not-available"), (429, "not-available"), (500, "vendor-error"), (503, "vendor-error"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("vendor", ["garnet", "target", "fresnel"])
    def test_whose_fault_a_failure_is(self, request, refused, vendor, status, code):
        fake = {"garnet": "server", "target": "cats", "fresnel": "cloud"}[vendor]
        payload = {"garnet": CIRCUITS, "target": QIR, "fresnel": SEQUENCE}[vendor]
        provider = request.getfixturevalue(vendor)()
        request.getfixturevalue(fake).fail(status, method="POST", path="jobs|batches")
        assert refused(provider.task_start, "run-1", "task-1", payload).code == code

    def test_a_refused_task_can_be_sent_again(self, server, garnet, refused):
        server.fail(429, method="POST", times=1)
        assert refused(garnet().task_start, "run-1", "task-1", CIRCUITS).code == "not-available"
        assert garnet().find_task("task-1") is None
        assert garnet().task_start("run-1", "task-1", CIRCUITS)

    @pytest.mark.parametrize("fault", ["drop", "malformed"])
    def test_an_interrupted_submission_is_told_and_never_repeated(self, server, garnet, refused, fault):
        server.fault(fault, method="POST", after=True)
        assert refused(garnet().task_start, "run-1", "task-1", CIRCUITS).code == "vendor-error"
        server.heal()
        for method, *args in (("find_task", "task-1"), ("task_start", "run-1", "task-1", CIRCUITS)):
            error = refused(getattr(garnet(), method), *args)
            assert (error.code, error.retryable) == ("task-failed", False)
        assert len(server.log) == 1

    def test_a_task_of_an_ended_lease_leaves_no_record(self, garnet, tmp_path):
        garnet().task_start("run-1", "task-1", CIRCUITS)
        garnet().task_start("run-2", "task-2", CIRCUITS)
        garnet().release("run-1")
        assert garnet().find_task("task-1") is None
        assert garnet().find_task("task-2")

    def test_a_payload_of_the_wrong_kind_is_not_printed(self, server, garnet, refused):
        import qrmi

        error = refused(garnet()._speak.wheel.start, qrmi.Payload.QiskitPrimitive("a users circuit", "sampler"))
        assert error.code == "bad-payload"
        assert "circuit" not in repr(error.to_wire())

    def test_no_key_is_in_an_error(self, server, garnet):
        with pytest.raises(QtandemError) as caught:
            garnet(QRMI_IQM_ISA_TOKEN="secret-of-the-site").observe()
        assert caught.value.code == "bad-credentials"
        assert "secret-of-the-site" not in repr(caught.value.to_wire())

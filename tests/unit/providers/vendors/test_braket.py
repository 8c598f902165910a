"""Amazon Braket through its SDK, against a fake of its REST interface and bucket."""

import json
import time
from datetime import UTC, datetime

import pytest

from qtandem.core.facts import Availability
from qtandem.core.providers.base import ProviderSpec, TaskState
from qtandem.core.providers.braket import facts
from qtandem.core.providers.braket.cloud import CloudProvider
from qtandem.core.providers.braket.provider import BraketProvider
from qtandem.core.providers.braket.settings import Settings
from tests.fakes.vendors.braket import ACCESS_KEY, ARN, CAPABILITIES, REGION, SECRET_KEY, SV1, FakeBraket

PROGRAM = "// a comment\nOPENQASM 3.0;\nbit[1] c; h $0; c[0] = measure $0;"
TASK = {"kind": "qasm3", "program": PROGRAM, "shots": 10}
RESERVATION = f"arn:aws:braket:{REGION}:123456789012:reservation/11111111-1111-1111-1111-111111111111"
WEEKDAYS = [{"executionDay": "Weekdays", "windowStartHour": "09:00:00", "windowEndHour": "17:00:00"}]
MONDAY_NOON = datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def aws():
    with FakeBraket() as fake:
        yield fake


@pytest.fixture
def make(aws):
    def make(clock=time.time, **more):
        settings = {
            "device": ARN,
            "endpoint": aws.url,
            "s3_endpoint": aws.store.url,
            "s3_bucket": aws.store.bucket,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
        } | more
        spec = ProviderSpec("machine", "braket", settings)
        return CloudProvider(spec, Settings.read(spec), clock)

    return make


@pytest.fixture
def provider(make):
    return make()


def ended(provider, task):
    for _ in range(5):
        report = provider.task_status(task)
        if report.state.final:
            return report
    raise AssertionError(report)


class TestFacts:
    def test_status_queue_and_calibration(self, provider):
        seen = provider.observe()
        assert (seen.availability, seen.queue) == (Availability.ONLINE, 4)
        known = seen.calibration
        assert (known.qubits, known.max_shots, known.coupling) == (3, 20_000, ((1, 2), (2, 3)))
        assert (known.two_qubit_error, known.readout_error) == (0.02, 0.03)
        assert (known.t1_s, known.t2_s) == (2e-5, 5e-6)

    @pytest.mark.parametrize(("sizes", "queue"), [([">2000"], 2000), ([], None), (["unknown"], None), (["2", ""], 2)])
    def test_queues_are_texts(self, aws, provider, sizes, queue):
        aws.queue = [{"queue": "QUANTUM_TASKS_QUEUE", "queueSize": size} for size in sizes]
        assert provider.observe().queue == queue

    @pytest.mark.parametrize(
        ("status", "reason", "availability"),
        [
            ("OFFLINE", None, Availability.OFFLINE),
            ("RETIRED", None, Availability.OFFLINE),
            ("PAUSED", None, Availability.PAUSED),
            ("OFFLINE", "MAINTENANCE", Availability.PAUSED),
            ("OFFLINE", "RESERVATION", Availability.PAUSED),
            ("SOMETHING_NEW", None, Availability.UNKNOWN),
        ],
    )
    def test_states(self, aws, provider, status, reason, availability):
        aws.status = status
        if reason:
            aws.reason = {
                "reason": reason,
                "updatedAt": "2026-01-02T03:04:05Z",
                "estimatedEndAt": "2026-01-03T00:00:00Z",
            }
        seen = provider.observe()
        assert seen.availability is availability
        assert (seen.opens_at is not None) == (reason is not None)

    def test_outside_its_window_a_device_is_paused_until_the_next(self, aws, make):
        aws.capabilities["service"]["executionWindows"] = WEEKDAYS
        assert make(lambda: MONDAY_NOON).observe().availability is Availability.ONLINE
        evening = MONDAY_NOON + 6 * 3600
        seen = make(lambda: evening).observe()
        assert (seen.availability, seen.opens_at) == (Availability.PAUSED, MONDAY_NOON + 21 * 3600)

    def test_a_window_goes_on_past_midnight(self):
        night = {"executionDay": "Sunday", "windowStartHour": "22:00", "windowEndHour": "13:00"}
        said = {"service": {"executionWindows": [night, {"executionDay": "Sometimes"}]}}
        assert facts.opening(facts.windows(said), MONDAY_NOON) is None
        assert facts.opening(facts.windows(said), MONDAY_NOON + 7200) == MONDAY_NOON + 6 * 86400 + 10 * 3600

    def test_a_reservation_passes_by_queue_and_windows(self, aws, make):
        aws.status, aws.reason = "OFFLINE", {"reason": "RESERVATION", "updatedAt": "2026-01-02T03:04:05Z"}
        times = {"reservation_start": "2026-01-05T11:00:00Z", "reservation_end": "2026-01-05T13:00:00Z"}
        more = {"reservation_arn": RESERVATION} | times
        seen = make(lambda: MONDAY_NOON, **more).observe()
        assert (seen.availability, seen.queue) == (Availability.ONLINE, None)
        seen = make(lambda: MONDAY_NOON - 7200, **more).observe()
        assert (seen.availability, seen.opens_at) == (Availability.PAUSED, MONDAY_NOON - 3600)
        seen = make(lambda: MONDAY_NOON + 7200, **more).observe()
        assert (seen.availability, seen.reason) == (Availability.PAUSED, "the reservation is over")

    @pytest.mark.parametrize(
        "said", ["{", "[]", {}, {"paradigm": {"qubitCount": None}}, {"paradigm": 3, "service": []}]
    )
    def test_a_description_that_cannot_be_read_costs_the_calibration_only(self, aws, provider, said):
        aws.capabilities = said
        seen = provider.observe()
        assert (seen.availability, seen.calibration) == (Availability.ONLINE, None)

    def test_means_are_read_where_a_device_has_no_other_numbers(self):
        said = {
            "paradigm": {"qubitCount": 11, "nativeGateSet": ["GPi"], "connectivity": {"fullyConnected": True}},
            "provider": {"fidelity": {"2Q": {"mean": 0.97}, "spam": {"mean": 0.99}}, "timing": {"T1": 10, "2Q": 6e-4}},
        }
        known = facts.calibration(said)
        assert (known.two_qubit_error, known.readout_error, known.t1_s, known.gate_time_s) == (0.03, 0.01, 10, 6e-4)

    def test_polling_writes_nothing(self, aws, provider):
        provider.observe()
        provider.target()
        provider.metadata()
        provider.find_task("task-1")
        assert aws.writes() == []


class TestPlaces:
    def test_a_device_is_found_by_name_in_whatever_region(self, aws, make):
        provider = make(device="fake")
        assert json.loads(provider.target())["deviceArn"] == ARN

    def test_an_on_demand_simulator_needs_no_region(self, make):
        assert json.loads(make(device=SV1).target())["deviceName"] == "SV1"

    def test_a_name_that_is_nowhere_is_the_site_s_fault(self, make, refused):
        assert refused(make(device="nowhere").observe).code == "bad-config"
        assert refused(make(device=ARN + "2").observe).code == "bad-config"

    @pytest.mark.parametrize(
        "more",
        [
            {"device": "arn:aws:s3:::x"},
            {"aws_secret_access_key": ""},
            {"reservation_arn": "x"},
            {"reservation_arn": RESERVATION, "reservation_start": "2026-01-05T11:00:00Z"},
            {"task_price": "-1"},
        ],
    )
    def test_settings_are_checked(self, make, refused, more):
        assert refused(lambda: make(**more)).code == "bad-config"


class TestTasks:
    def test_a_result_is_byte_for_byte_the_one_in_the_bucket(self, aws, provider):
        task = provider.task_start("run-1", "task-1", TASK)
        assert ended(provider, task).shots == 10
        assert [provider.task_result(task).encode()] == list(aws.store.objects.values())

    def test_the_action_is_what_the_sdk_makes_of_the_program(self, aws, provider):
        sent = aws.tasks[provider.task_start("run-1", "task-1", TASK)]
        assert json.loads(sent["action"])["source"] == PROGRAM
        assert sent["tags"] == {"qtandem:lease": "run-1", "qtandem:task": "task-1"}

    def test_an_action_goes_as_it_is(self, aws, provider):
        action = {"braketSchemaHeader": {"name": "braket.ir.ahs.program", "version": "1"}, "setup": {}}
        task = provider.task_start("run-1", "task-1", {"kind": "braket-action", "action": action, "shots": 1})
        assert json.loads(aws.tasks[task]["action"]) == action

    def test_a_submission_whose_answer_got_lost_is_found_and_not_sent_twice(self, aws, provider, refused, make):
        aws.fault("drop", method="POST", path="/quantum-task$", after=True)
        assert refused(provider.task_start, "run-1", "task-1", TASK).code == "vendor-error"
        aws.heal()
        found = make().find_task("task-1")
        assert found == make().task_start("run-1", "task-1", TASK)
        assert len(aws.log) == 1

    def test_tasks_are_found_on_later_pages(self, aws, provider):
        aws.page_limit = 2
        tasks = [provider.task_start("run-1", f"task-{number}", TASK) for number in range(5)]
        assert provider.find_task("task-0") == tasks[0]

    def test_a_release_cancels_the_lease_s_own_tasks_only(self, aws, make):
        aws.task_s = 600
        mine = make().task_start("run-1", "task-1", TASK)
        other = make().task_start("run-2", "task-2", TASK)
        make().release("run-1")
        assert aws.tasks[mine]["status"] == "CANCELLED"
        assert aws.tasks[other]["status"] != "CANCELLED"

    def test_the_place_in_the_queue_is_told(self, provider):
        task = provider.task_start("run-1", "task-1", TASK)
        assert provider.task_status(task).reason == "position 2 in the normal queue"

    def test_cost_is_the_device_s_own_price(self, make):
        provider = make(task_price="0.3")
        assert ended(provider, provider.task_start("run-1", "task-1", TASK)).cost == 0.3145
        assert provider.metadata()["price"] == "0.00145"
        unknown = make()
        assert ended(unknown, unknown.task_start("run-1", "task-1", TASK)).cost is None

    def test_tasks_go_into_the_reservation(self, aws, make):
        provider = make(reservation_arn=RESERVATION, task_price="0.3")
        task = provider.task_start("run-1", "task-1", TASK)
        assert aws.tasks[task]["associations"] == [{"arn": RESERVATION, "type": "RESERVATION_TIME_WINDOW_ARN"}]
        assert ended(provider, task).cost is None

    def test_without_a_bucket_facts_work_and_tasks_say_what_is_missing(self, make, refused):
        provider = make(s3_bucket="")
        assert provider.observe().availability is Availability.ONLINE
        assert "s3_bucket" in refused(provider.task_start, "run-1", "task-1", TASK).remedy

    def test_a_result_that_is_not_stored_yet_is_not_ready(self, aws, provider, refused):
        task = provider.task_start("run-1", "task-1", TASK)
        ended(provider, task)
        aws.store.objects.clear()
        assert refused(provider.task_result, task).code == "task-not-ready"


class TestFailures:
    @pytest.mark.parametrize(
        ("status", "kind", "code"),
        [
            (403, "AccessDeniedException", "policy"),
            (403, "ExpiredTokenException", "bad-credentials"),
            (429, "ThrottlingException", "not-available"),
            (402, "ServiceQuotaExceededException", "not-available"),
            (424, "DeviceOfflineException", "not-available"),
            (410, "DeviceRetiredException", "policy"),
            (400, "ValidationException", "bad-payload"),
            (500, "InternalServiceException", "vendor-error"),
            (503, "ServiceUnavailable", "vendor-error"),
        ],
    )
    def test_whose_fault_it_is(self, aws, provider, refused, status, kind, code):
        provider.observe()
        body = {"message": "in the vendor's words"}
        aws.fail(status, method="POST", path="/quantum-task$", body=body, headers={"x-amzn-errortype": kind})
        error = refused(provider.task_start, "run-1", "task-1", TASK)
        assert error.code == code
        assert "in the vendor's words" in error.cause

    def test_a_wrong_key_is_the_site_s(self, make, refused):
        assert refused(make(aws_access_key_id="AKIDOTHER").observe).code == "bad-credentials"

    def test_answers_that_are_broken(self, aws, provider, refused):
        for kind in ("malformed", "garbage", "drop"):
            aws.fault(kind)
            assert refused(provider.observe).code == "vendor-error"
            aws.heal()
        aws.fault("unknown")
        assert provider.observe().availability is Availability.ONLINE


class TestLocal:
    """The SDK's own simulators."""

    @pytest.fixture
    def local(self, tmp_path):
        def make(slots=1, name="braket_sv"):
            settings = {"device": f"local:{name}", "state_dir": str(tmp_path)}
            return BraketProvider(ProviderSpec("here", "braket", settings, slots))

        return make

    @pytest.fixture
    def heavy(self):
        gates = "".join(f"rx(0.1) q[{number % 20}];" for number in range(20_000))
        return {"kind": "qasm3", "program": f"OPENQASM 3.0; qubit[20] q; bit[1] c; {gates} c[0] = measure q[0];"}

    def reach(self, provider, task, state):
        until = time.monotonic() + 40
        while (report := provider.task_status(task)).state is not state:
            assert time.monotonic() < until, report
            time.sleep(0.05)
        return report

    def test_a_task_runs_and_its_result_stays(self, local):
        provider = local()
        assert provider.observe().availability is Availability.ONLINE
        program = "OPENQASM 3.0; qubit[2] q; bit[2] c; h q[0]; cnot q[0], q[1]; c = measure q;"
        task = provider.task_start("run-1", "task-1", {"kind": "qasm3", "program": program, "shots": 20})
        self.reach(provider, task, TaskState.COMPLETED)
        assert len(json.loads(provider.task_result(task))["measurements"]) == 20
        assert local().find_task("task-1") == task
        assert local().task_result(task) == provider.task_result(task)

    def test_what_the_simulator_refuses_has_failed_with_its_words(self, local, refused):
        provider = local()
        task = provider.task_start("run-1", "task-1", {"kind": "qasm3", "program": "OPENQASM 3.0; h q[0];"})
        assert self.reach(provider, task, TaskState.FAILED).reason
        assert refused(provider.task_result, task).code == "task-failed"

    def test_a_task_waits_for_its_slot_and_ends_with_its_lease(self, local, heavy):
        provider = local(slots=1)
        first = provider.task_start("run-1", "task-1", heavy)
        second = provider.task_start("run-1", "task-2", heavy)
        assert provider.task_status(first).state is TaskState.RUNNING
        assert provider.task_status(second).state is TaskState.QUEUED
        assert provider.busy
        provider.release("run-1")
        assert {provider.task_status(task).state for task in (first, second)} == {TaskState.CANCELLED}
        assert not provider.busy

    def test_a_simulator_that_the_sdk_has_not(self, local, refused):
        assert refused(local, 1, "abacus").code == "bad-config"


def test_the_fake_s_description_is_one_that_the_sdk_takes():
    from braket.device_schema.device_service_properties_v1 import DeviceServiceProperties

    DeviceServiceProperties.parse_raw(json.dumps(CAPABILITIES["service"] | {"deviceDocumentation": None}))

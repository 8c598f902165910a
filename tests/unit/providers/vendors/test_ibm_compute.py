"""IBM's cloud, through its own client, against a fake of it."""

import json

import pytest

from qtandem.core.facts import Availability
from qtandem.core.providers.base import TaskState
from qtandem.core.providers.ibm import sessions
from tests.fakes.vendors.ibm import APIKEY, BACKEND, samples

PROGRAM = "OPENQASM 3.0; bit[2] c; rz(0.5) $0; cz $0, $1; c[0] = measure $0;"
TASK = {"kind": "qasm3", "program": PROGRAM, "shots": 10}


class TestFacts:
    def test_a_fact_has_the_queue_and_the_calibration(self, cloud, compute):
        cloud.queue = 12
        seen = compute().observe()
        assert seen.availability is Availability.ONLINE
        assert (seen.queue, seen.free_slots, seen.total_slots, seen.wait_s) == (12, None, None, None)
        known = seen.calibration
        assert (known.qubits, known.max_shots, known.coupling) == (3, 5000, ((0, 1), (1, 2)))
        assert known.two_qubit_error == 0.004
        assert known.gate_time_s == pytest.approx(68e-9)
        assert known.t1_s == pytest.approx(201e-6)
        assert known.taken_at == 1767323045

    @pytest.mark.parametrize(
        ("change", "availability", "reason"),
        [
            ({"status": "paused", "reason": "cooling"}, Availability.PAUSED, "cooling"),
            ({"status": "online", "state_word": "maintenance"}, Availability.PAUSED, "maintenance"),
            ({"status": "online", "operational": False}, Availability.OFFLINE, "not operational"),
            ({"status": "offline"}, Availability.OFFLINE, "offline"),
            ({"state_word": "internal"}, Availability.PAUSED, "internal"),
            ({"status": "on a break"}, Availability.UNKNOWN, "the vendor's status is 'on a break'"),
            ({"listed": False}, Availability.FORBIDDEN, f"{BACKEND} is not among the backends of this instance"),
        ],
    )
    def test_signals_that_disagree_are_combined(self, cloud, compute, change, availability, reason):
        for name, value in change.items():
            setattr(cloud, name, value)
        seen = compute().observe()
        assert (seen.availability, seen.reason) == (availability, reason)

    def test_a_queue_that_is_not_said_is_not_zero(self, cloud, compute):
        for kind in ("null", "missing"):
            cloud.heal()
            cloud.fault(kind, fields=("length_queue", "queue_length"))
            assert compute().observe().queue is None

    def test_unknown_fields_and_nulls_do_no_harm(self, cloud, compute):
        cloud.fault("unknown")
        assert compute().observe().availability is Availability.ONLINE
        cloud.heal()
        cloud.fault(
            "null", fields=("reason", "message", "backend_version", "gates", "coupling_map", "T1", "parameters")
        )
        seen = compute().observe()
        assert seen.availability is Availability.ONLINE
        assert seen.calibration.two_qubit_error is None

    def test_a_status_that_is_null_is_unknown(self, cloud, compute):
        cloud.fault("null", fields=("status", "state"))
        assert compute().observe().availability is Availability.UNKNOWN

    def test_calibration_is_read_once_in_ten_minutes_and_kept_when_it_fails(self, cloud, compute, clock):
        provider = compute()
        first = provider.observe().calibration
        provider.observe()
        assert len([each for each in cloud.seen if each.path.endswith("/properties")]) == 1
        clock.now += 601
        cloud.fail(500, path="/properties")
        assert provider.observe().calibration == first

    def test_a_simulator_without_properties_has_a_fact(self, cloud, compute):
        cloud.properties = None
        provider = compute()
        assert provider.observe().calibration.qubits == 3
        assert json.loads(provider.target())["properties"] is None

    def test_nothing_is_written(self, cloud, compute):
        provider = compute()
        for _ in range(3):
            provider.observe()
            provider.target()
            provider.metadata()
            provider.find_session("lease")
            provider.find_task("task")
        assert cloud.writes() == []


class TestFailures:
    @pytest.mark.parametrize(
        ("status", "code", "retryable"),
        [
            (401, "bad-credentials", False),
            (403, "policy", False),
            (429, "not-available", True),
            (500, "vendor-error", True),
            (503, "vendor-error", True),
            (504, "vendor-timeout", True),
        ],
    )
    def test_a_status_is_classified_with_the_vendor_s_words(self, cloud, compute, refused, status, code, retryable):
        cloud.fail(status, path="/backends", retry_after=7 if status in (429, 503) else None)
        error = refused(compute().observe)
        assert (error.code, error.retryable) == (code, retryable)
        assert f"scripted {status}" in error.cause
        assert error.retry_after == (7 if status in (429, 503) else None)

    def test_the_client_does_not_retry_a_status(self, cloud, compute, refused):
        provider = compute()
        provider.observe()
        before = len(cloud.seen)
        cloud.fail(503, path="/backends")
        refused(provider.observe)
        assert len(cloud.seen) == before + 1

    def test_broken_answers_are_outages(self, cloud, compute, refused):
        for kind in ("malformed", "garbage"):
            cloud.fault(kind, path="/backends$")
            assert refused(compute().observe).code == "vendor-error"
            cloud.heal()

    def test_a_poll_that_breaks_off_once_is_read_again(self, cloud, compute):
        cloud.fault("drop", path="/backends$", times=1)
        assert compute().observe().availability is Availability.ONLINE

    def test_a_wrong_key_is_the_site_s_and_never_goes_anywhere_else(self, cloud, compute, refused):
        error = refused(compute(IAM_APIKEY="wrong-key").observe)
        assert error.code == "bad-credentials"
        assert "could not be found" in error.cause
        assert [each.path for each in cloud.seen] == ["/identity/token"]

    def test_after_iam_failed_the_next_call_asks_it_at_once(self, cloud, compute, refused):
        provider = compute()
        cloud.fail(500, path="/identity/token", times=1)
        assert refused(provider.observe).code == "vendor-error"
        assert provider.observe().availability is Availability.ONLINE

    def test_a_token_that_the_vendor_forgot_is_renewed_once(self, cloud, compute):
        provider = compute()
        provider.observe()
        cloud.tokens.clear()
        assert provider.observe().availability is Availability.ONLINE

    def test_clocks_need_not_agree(self, cloud, compute):
        provider = compute()
        for cloud.skew_s in (-86_400.0, 86_400.0):
            provider.observe()
        assert len([each for each in cloud.seen if each.path == "/identity/token"]) == 1

    def test_a_token_is_renewed_before_it_runs_out(self, cloud, compute, monkeypatch):
        cloud.token_life_s = 1
        provider = compute()
        provider._auth._clock = lambda: len(cloud.seen)
        provider.observe()
        assert len([each for each in cloud.seen if each.path == "/identity/token"]) > 1

    def test_settings_are_checked(self, compute, refused):
        for wrong in ({"SESSION_MODE": "solo"}, {"SESSION_MAX_TTL": "8h"}, {"ENDPOINT": ""}, {"TIMEOUT_SECONDS": "-1"}):
            error = refused(lambda wrong=wrong: compute(**wrong))
            assert error.code == "bad-config"
            assert f"QRMI_IBM_QCS_{next(iter(wrong))}" in error.message

    def test_no_error_shows_the_key(self, cloud, compute, refused):
        cloud.fail(400, path="/identity/token", body={"errorMessage": "no"})
        error = refused(compute().observe)
        assert APIKEY not in str(error.to_wire())


class TestSessions:
    def test_a_session_is_found_again_by_another_process(self, cloud, compute):
        token = compute().acquire("lease-1", 1)
        assert compute().find_session("lease-1") == token
        assert compute().acquire("lease-1", 1) == token
        assert compute().find_session("lease-2") is None

    def test_it_is_found_on_a_later_page_among_those_of_others(self, cloud, compute):
        token = compute().acquire("lease-1", 1)
        life = cloud.sessions[token]["max_ttl"]
        cloud.page_limit = 2
        for _ in range(5):
            cloud.open_session()
        cloud.open_session(max_ttl=life, user_id="somebody else")
        cloud.open_session(max_ttl=life, mode="batch")
        assert compute().find_session("lease-1") == token

    def test_an_acquisition_whose_answer_got_lost_is_found(self, cloud, compute, refused):
        cloud.fault("drop", method="POST", path="/sessions", after=True, times=1)
        assert refused(compute().acquire, "lease-1", 1).code == "vendor-error"
        assert compute().acquire("lease-1", 1) == next(iter(cloud.sessions))
        assert len(cloud.sessions) == 1

    def test_two_leases_of_one_process_never_share_a_session(self, compute, monkeypatch):
        monkeypatch.setattr(sessions, "life_s", lambda key, limit: limit)
        provider = compute()
        assert provider.acquire("lease-1", 1) != provider.acquire("lease-2", 1)

    def test_the_life_is_near_the_limit_and_the_key_s_own(self, cloud, compute):
        compute(SESSION_MAX_TTL="8000").acquire("lease-1", 1)
        (session,) = cloud.sessions.values()
        assert 7000 <= session["max_ttl"] <= 8000
        assert len({sessions.life_s(str(each), 28800) for each in range(1000)}) > 800
        assert all(sessions.life_s(str(each), 3) >= 1 for each in range(50))

    def test_the_mode_is_the_site_s(self, cloud, compute):
        provider = compute(SESSION_MODE="Batch")
        token = provider.acquire("lease-1", 1)
        assert cloud.sessions[token]["mode"] == "batch"
        assert compute(SESSION_MODE="batch").find_session("lease-1") == token
        assert compute().find_session("lease-1") is None

    def test_a_plan_without_sessions_is_policy_with_the_way_out(self, cloud, compute, refused):
        cloud.plan = "open"
        error = refused(compute().acquire, "lease-1", 1)
        assert (error.code, error.retryable) == ("policy", False)
        assert "SESSION_MODE=batch" in error.remedy
        assert "not authorized to run a session" in error.cause
        assert compute(SESSION_MODE="batch").acquire("lease-1", 1)

    def test_a_session_that_closed_by_itself_is_not_found_and_takes_no_task(self, cloud, compute, refused):
        provider = compute()
        token = provider.acquire("lease-1", 1)
        cloud.close_session(token)
        error = refused(provider.task_start, token, "task-1", TASK)
        assert error.code == "no-lease"
        assert "maximum time" in error.message
        assert provider.acquire("lease-1", 1) != token

    def test_release_closes_for_new_jobs_and_stops_only_ours(self, cloud, compute):
        cloud.task_s = 600
        provider = compute()
        token = provider.acquire("lease-1", 1)
        ours = provider.task_start(token, "task-1", TASK)
        theirs = provider._api.program_run("sampler", BACKEND, {"pubs": []}, session_id=token)["id"]
        provider.release(token)
        assert cloud.sessions[token]["accepting_jobs"] is False
        assert provider.task_status(ours).state is TaskState.CANCELLED
        assert provider.task_status(theirs).state is not TaskState.CANCELLED
        assert not [each for each in cloud.seen if each.method == "DELETE"]
        writes = len(cloud.writes())
        provider.release(token)
        provider.release("never-seen")
        assert len(cloud.writes()) == writes

    def test_a_release_that_broke_off_is_finished_by_the_next(self, cloud, compute, refused):
        cloud.task_s = 600
        provider = compute()
        token = provider.acquire("lease-1", 1)
        task = provider.task_start(token, "task-1", TASK)
        cloud.fail(500, method="POST", path="/cancel", times=1)
        assert refused(provider.release, token).code == "vendor-error"
        provider.release(token)
        assert provider.task_status(task).state is TaskState.CANCELLED


class TestTasks:
    @pytest.fixture
    def provider(self, compute):
        return compute()

    @pytest.fixture
    def token(self, provider):
        return provider.acquire("lease-1", 1)

    def test_a_submission_whose_answer_got_lost_is_found_and_not_sent_twice(self, cloud, provider, token, refused):
        for kind in ("drop", "malformed", "garbage"):
            cloud.fault(kind, method="POST", path="/jobs$", after=True, times=1)
            assert refused(provider.task_start, token, f"task-{kind}", TASK).code == "vendor-error"
            assert provider.task_start(token, f"task-{kind}", TASK) == provider.find_task(f"task-{kind}")
        assert len(cloud.jobs) == 3

    def test_a_key_that_was_never_sent_is_not_looked_for(self, cloud, provider, token):
        seen = len(cloud.seen)
        task = provider.task_send(token, "task-1", TASK)
        assert [each.method for each in cloud.seen[seen:] if "configuration" not in each.path] == ["POST"]
        assert provider.find_task("task-1") == task

    def test_the_states_of_many_tasks_take_one_call(self, cloud, provider, token):
        cloud.task_s = 600
        tasks = [provider.task_send(token, f"task-{number}", TASK) for number in range(20)]
        provider.task_stop(tasks[3])
        seen = len(cloud.seen)
        told = provider.task_statuses([*tasks, "lost"])
        calls = [each.path for each in cloud.seen[seen:] if not each.path.endswith("/metrics")]
        assert calls == ["/api/v1/jobs"]
        assert set(told) == set(tasks)
        assert [told[task].state.final for task in tasks].index(True) == 3

    def test_nobody_is_asked_again_how_a_task_has_ended(self, cloud, provider, token):
        task = provider.task_send(token, "task-1", TASK)
        report = provider.task_status(task)
        seen = len(cloud.seen)
        assert provider.task_statuses([task]) == {task: report}
        assert provider.task_result(task)
        assert [each.path.rpartition("/")[2] for each in cloud.seen[seen:]] == ["jobs", "results"]

    def test_the_job_carries_its_key_and_the_program_as_it_is(self, cloud, provider, token):
        task = provider.task_start(token, "task-1", TASK | {"timeout_s": 90})
        job = cloud.jobs[task]
        assert job["tags"] == ["task-1", "qtandem"]
        assert job["params"] == {"pubs": [[PROGRAM, None, 10]], "version": 2, "support_qiskit": False}
        assert job["cost"] == 90

    def test_a_primitive_goes_through_untouched(self, cloud, provider, token):
        params = {"pubs": [["OPENQASM 3.0;", None, 7]], "version": 2, "options": {"x": [1e-9, None]}}
        payload = {"kind": "qiskit-primitive", "program_id": "sampler", "input": json.dumps(params)}
        assert cloud.jobs[provider.task_start(token, "task-1", payload)]["params"] == params

    def test_the_result_is_the_vendor_s_text_to_the_byte(self, cloud, provider, token):
        task = provider.task_start(token, "task-1", TASK)
        report = provider.task_status(task)
        assert (report.state, report.usage_s) == (TaskState.COMPLETED, 2.5)
        assert provider.task_result(task) == samples(cloud.jobs[task]["params"], task)
        assert provider.task_logs(task) == "it began\nit ended\n"

    def test_usage_that_is_not_known_is_not_zero(self, cloud, provider, token):
        task = provider.task_start(token, "task-1", TASK)
        cloud.fail(500, path="/metrics")
        assert provider.task_status(task).usage_s is None

    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            ({"status": "Failed", "reason": "out of qubits", "reason_code": 1500}, TaskState.FAILED),
            ({"status": "Cancelled", "reason": "too long", "reason_code": 1305}, TaskState.FAILED),
            ({"status": "Cancelled - Ran too long", "reason": "too long"}, TaskState.FAILED),
        ],
    )
    def test_a_job_that_failed_says_why(self, cloud, provider, token, refused, state, expected):
        task = provider.task_start(token, "task-1", TASK)
        cloud.jobs[task] |= {"status": state["status"], "state": state}
        report = provider.task_status(task)
        assert (report.state, report.reason) == (expected, state["reason"])
        error = refused(provider.task_result, task)
        assert error.code == "task-failed"
        assert state["reason"] in error.message

    def test_a_state_that_nobody_knows_is_no_state(self, cloud, provider, token, refused):
        task = provider.task_start(token, "task-1", TASK)
        cloud.jobs[task] |= {"status": "Meditating", "state": {"status": "Meditating"}}
        assert refused(provider.task_status, task).code == "vendor-error"

    def test_a_limit_of_the_instance_is_policy(self, cloud, provider, token, refused):
        cloud.fail(409, method="POST", path="/jobs$")
        assert refused(provider.task_start, token, "task-1", TASK).code == "policy"

    def test_what_the_vendor_refuses_of_the_user_s_is_the_user_s(self, cloud, provider, token, refused):
        cloud.fail(400, method="POST", path="/jobs$", body={"errors": [{"code": 1517, "message": "gate h"}]})
        error = refused(provider.task_start, token, "task-1", TASK)
        assert error.code == "bad-payload"
        assert error.cause == "gate h [1517]"

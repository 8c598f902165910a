"""IBM's machine on site and its object storage, against fakes of both."""

import uuid
from urllib.parse import parse_qs, urlsplit

import pytest

from qtandem.core.facts import Availability
from qtandem.core.providers.base import TaskState
from tests.fakes.vendors.ibm import BACKEND, samples

PROGRAM = "// a comment\nOPENQASM 3;\nbit[2] c; cz $0, $1; c[0] = measure $0;"
TASK = {"kind": "qasm3", "program": PROGRAM, "shots": 10}
FOREIGN = {"backend": BACKEND, "program_id": "sampler", "status": "Running", "at": 1e12, "storage": {}}


@pytest.fixture
def provider(system):
    return system()


class TestFacts:
    def test_lanes_are_counted_with_what_is_not_deleted(self, machine, provider):
        seen = provider.observe()
        assert (seen.availability, seen.free_slots, seen.total_slots) == (Availability.ONLINE, 3, 3)
        machine.jobs["theirs"] = FOREIGN | {"id": "theirs"}
        machine.jobs["done"] = FOREIGN | {"id": "done", "status": "Completed"}
        machine.jobs["elsewhere"] = FOREIGN | {"id": "elsewhere", "backend": "ibm_other"}
        assert provider.observe().free_slots == 1
        for number in range(5):
            machine.jobs[str(number)] = FOREIGN | {"id": str(number)}
        assert provider.observe().free_slots == 0

    def test_our_own_running_jobs_are_the_lease_s_and_our_finished_ones_are_not(self, machine, provider):
        machine.task_s = 600
        provider.task_start("lease-1", "task-1", TASK)
        assert provider.observe().free_slots == 3
        machine.task_s = 0
        assert provider.observe().free_slots == 2

    def test_a_lock_pauses_and_is_told(self, machine, provider):
        machine.locked = True
        seen = provider.observe()
        assert (seen.availability, seen.reason) == (Availability.PAUSED, "locked by a reservation")
        machine.status, machine.reason = "paused", "warm-up"
        seen = provider.observe()
        assert (seen.availability, seen.reason) == (Availability.PAUSED, "warm-up")

    def test_what_is_not_said_is_not_known(self, machine, provider):
        machine.fault("missing", fields=("locked", "lanes", "status"))
        seen = provider.observe()
        assert seen.availability is Availability.UNKNOWN
        assert (seen.queue, seen.free_slots, seen.total_slots) == (None, None, None)

    def test_a_machine_without_lanes_has_a_fact(self, machine, provider):
        machine.fail(404, path="/lanes")
        seen = provider.observe()
        assert (seen.availability, seen.total_slots) == (Availability.ONLINE, None)

    def test_nothing_is_written_and_no_storage_is_needed(self, machine, store, system):
        provider = system(without=("QRMI_IBM_QS_S3_BUCKET",))
        for _ in range(2):
            provider.observe()
            provider.target()
            provider.find_task("task")
        assert machine.writes() == store.seen == []


class TestFailures:
    @pytest.mark.parametrize(
        ("status", "code"),
        [(401, "bad-credentials"), (403, "policy"), (404, "policy"), (500, "vendor-error"), (503, "vendor-error")],
    )
    def test_a_status_is_classified(self, machine, provider, refused, status, code):
        machine.fail(status, path=f"/backends/{BACKEND}$")
        for call in (provider.observe, lambda: provider.acquire("lease-1", 1)):
            error = refused(call)
            assert error.code == code
            assert f"scripted {status}" in error.cause

    def test_a_reservation_and_full_lanes_are_transient(self, machine, provider, refused):
        machine.locked = True
        error = refused(provider.task_start, "lease-1", "task-1", TASK)
        assert (error.code, error.retryable) == ("not-available", True)
        assert "reserved" in error.cause
        machine.locked, machine.lanes = False, 0
        assert refused(provider.task_start, "lease-1", "task-1", TASK).code == "not-available"
        assert len([each for each in machine.writes() if each.path == "/v1/jobs"]) == 2

    def test_tasks_without_storage_name_the_keys(self, system, refused):
        error = refused(system(without=("QRMI_IBM_QS_S3_REGION",)).task_start, "lease-1", "task-1", TASK)
        assert error.code == "bad-config"
        assert "QRMI_IBM_QS_S3_REGION" in error.remedy

    def test_the_storage_s_failures_are_told_as_its_own(self, store, system, refused):
        cases = [
            ({"QRMI_IBM_QS_S3_BUCKET": "nowhere"}, "bad-config"),
            ({"QRMI_IBM_QS_AWS_ACCESS_KEY_ID": "AKIDWRONG"}, "bad-credentials"),
        ]
        for settings, code in cases:
            error = refused(system(**settings).task_start, "lease-1", "task-1", TASK)
            assert error.code == code
            assert "object storage" in error.message
        store.fail(503)
        assert refused(system().task_start, "lease-1", "task-1", TASK).code == "vendor-error"
        store.heal()
        store.fault("drop")
        assert refused(system().task_start, "lease-1", "task-1", TASK).code == "vendor-error"


class TestTasks:
    def test_the_id_is_a_version_4_uuid_that_the_key_and_the_lease_decide(self, provider, machine):
        machine.task_s = 600
        task = provider.task_start("lease-1", "task-1", TASK)
        assert uuid.UUID(task).version == 4
        assert provider.find_task("task-1") == task
        assert provider.find_task("task-2") is None

    def test_a_submission_whose_answer_got_lost_is_found_and_not_sent_twice(self, machine, provider, system, refused):
        machine.task_s = 600
        machine.fault("drop", method="POST", path="/v1/jobs$", after=True, times=1)
        assert refused(provider.task_start, "lease-1", "task-1", TASK).code == "vendor-error"
        assert system().task_start("lease-1", "task-1", TASK) == next(iter(machine.jobs))
        assert len([row for row in machine.log if row["event"] == "task_start"]) == 1

    def test_the_states_of_many_tasks_take_one_call(self, machine, provider):
        machine.task_s = 600
        tasks = [provider.task_send("run-1", f"task-{number}", TASK) for number in range(3)]
        seen = len(machine.seen)
        told = provider.task_statuses([*tasks, "lost"])
        assert [each.path for each in machine.seen[seen:]] == ["/v1/jobs"]
        assert {task: report.state for task, report in told.items()} == dict.fromkeys(tasks, TaskState.RUNNING)

    def test_a_duplicate_that_the_list_did_not_show_is_the_same_task(self, machine, provider):
        machine.task_s = 600
        task = provider.task_start("lease-1", "task-1", TASK)
        machine.fault("status", method="GET", path="/v1/jobs$", times=1, reply=_reply({"jobs": []}))
        assert provider.task_start("lease-1", "task-1", TASK) == task

    def test_a_result_is_read_to_the_byte_and_then_the_lane_is_freed(self, machine, store, provider):
        task = provider.task_start("lease-1", "task-1", TASK)
        report = provider.task_status(task)
        assert (report.state, report.usage_s) == (TaskState.COMPLETED, 1.5)
        params = {"pubs": [[PROGRAM, None, 10]]}
        assert provider.task_result(task) == samples(params, task)
        assert machine.jobs == {}
        assert provider.task_result(task) == samples(params, task)
        assert provider.task_status(task) == report
        assert provider.task_logs(task) == "it began\n"
        assert provider.find_task("task-1") == task
        assert provider.task_start("lease-1", "task-1", TASK) == task
        assert not [key for key in store.objects if key.startswith("input_")]

    def test_what_is_kept_of_an_ended_task_holds_no_address(self, store, provider):
        task = provider.task_start("lease-1", "task-1", TASK)
        provider.task_result(task)
        (kept,) = [content for key, content in store.objects.items() if key.startswith("ended_")]
        assert b"http" not in kept
        assert b"Signature" not in kept

    def test_a_lane_that_could_not_be_freed_costs_no_result(self, machine, provider):
        task = provider.task_start("lease-1", "task-1", TASK)
        machine.fail(500, method="DELETE")
        assert provider.task_result(task)
        assert len(machine.jobs) == 1

    def test_full_lanes_are_freed_of_our_ended_tasks(self, machine, provider):
        machine.lanes = 2
        tasks = [provider.task_start("lease-1", f"task-{number}", TASK) for number in range(4)]
        assert len(machine.jobs) == 2
        assert all(provider.task_result(task) for task in tasks)

    def test_a_stopped_task_frees_its_lane(self, machine, provider, refused):
        machine.task_s = 600
        task = provider.task_start("lease-1", "task-1", TASK)
        for _ in range(2):
            provider.task_stop(task)
        assert machine.jobs == {}
        assert provider.task_status(task).state is TaskState.CANCELLED
        assert refused(provider.task_result, task).code == "task-failed"

    def test_release_ends_the_lease_s_own_jobs_only(self, machine, provider):
        machine.task_s, machine.lanes = 600, 5
        mine = provider.task_start("lease-1", "task-1", TASK)
        other = provider.task_start("lease-2", "task-2", TASK)
        machine.jobs["theirs"] = FOREIGN | {"id": "theirs"}
        for _ in range(2):
            provider.release("lease-1")
        assert set(machine.jobs) == {other, "theirs"}
        assert provider.task_status(mine).state is TaskState.CANCELLED
        assert provider.task_status(other).state is TaskState.RUNNING

    @pytest.mark.parametrize(
        ("setting", "wanted", "sent"),
        [("4294967295", None, 604_800), ("600", None, 600), ("600", 90, 90), ("", None, 86_400)],
    )
    def test_time_limits_are_what_the_vendor_takes(self, machine, system, setting, wanted, sent):
        machine.task_s = 600
        provider = system(QRMI_JOB_TIMEOUT_SECONDS=setting)
        payload = TASK if wanted is None else TASK | {"timeout_s": wanted}
        job = machine.jobs[provider.task_start("lease-1", "task-1", payload)]
        assert job["timeout_secs"] == sent
        for place in job["storage"].values():
            lasts = int(parse_qs(urlsplit(place["presigned_url"]).query)["X-Amz-Expires"][0])
            assert sent <= lasts <= 604_800

    def test_the_vendor_gets_the_address_that_it_can_reach(self, machine, system):
        machine.task_s = 600
        provider = system(QRMI_IBM_QS_S3_ENDPOINT_FOR_QSAPI="http://s3.inside:9000")
        job = machine.jobs[provider.task_start("lease-1", "task-1", TASK)]
        assert all(place["presigned_url"].startswith("http://s3.inside:9000/") for place in job["storage"].values())

    def test_a_failed_job_says_why_in_the_vendor_s_words(self, machine, provider, refused):
        machine.task_s = 600
        task = provider.task_start("lease-1", "task-1", TASK)
        machine.jobs[task] |= {"status": "Failed", "reason_message": "gate h", "reason_solution": "Transpile it."}
        report = provider.task_status(task)
        assert (report.state, report.reason) == (TaskState.FAILED, "gate h Transpile it.")
        assert "gate h" in refused(provider.task_result, task).message
        assert machine.jobs == {}


def _reply(body):
    from tests.fakes.vendors.kit import Reply

    return Reply(200, body)

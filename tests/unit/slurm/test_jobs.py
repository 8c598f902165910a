import json

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState
from qtandem.core.runs import JobId
from qtandem.slurm import jobs
from tests.fakes.slurm.cluster import VERSIONS, recorded

NAMES = {"q1": "q1", "q2": "q2"}


def read(version: str) -> dict[str, tuple[jobs.Record, Job]]:
    """The recorded jobs by name; elements of the array by their own number."""
    found = jobs.records(recorded("squeue", version))
    return {
        (record["name"] if record["name"] != "arr" or record["array_task_string"] else str(record["job_id"])): (
            record,
            jobs.job(record, "t", "qtandem", NAMES),
        )
        for record in found
    }


@pytest.mark.parametrize("version", VERSIONS)
class TestRecorded:
    def test_a_job_that_waits_for_its_licence(self, version: str) -> None:
        _, job = read(version)["shut"]
        assert (job.state, job.reason, job.grants) == (JobState.PENDING, "Licenses", (Grant("q2", 2),))
        assert (job.user, job.account, job.partition, job.nodes) == ("alice", "acc", "main", ())
        assert job.time_limit_s is None
        assert job.can_requeue

    def test_elements_of_an_array_go_by_its_id(self, version: str) -> None:
        found = [job for record, job in read(version).values() if record["name"] == "arr" and job.nodes]
        arrays = {job.id.job for job in found}
        assert len(arrays) == 1
        assert sorted(job.id.index or 0 for job in found) == [1, 2, 3, 4]
        assert all(job.state is JobState.RUNNING and job.time_limit_s == 300 for job in found)

    def test_a_pending_element_is_found_in_what_is_left_of_its_array(self, version: str) -> None:
        pairs = list(read(version).values())
        rest, job = read(version)["arr"]
        array = job.id.job
        wanted = [JobId("slurm", "t", array, index) for index in (1, 5, 7)]
        found = jobs.lookup(wanted, pairs)
        states = [found[id].state if found[id] else None for id in wanted]
        assert states == [JobState.RUNNING, JobState.PENDING, None]
        assert found[wanted[1]].id == wanted[1]
        assert jobs.exactly(rest) == f"{array}_[5-6]"

    def test_an_element_is_found_by_its_own_number(self, version: str) -> None:
        record, job = next(pair for pair in read(version).values() if pair[1].id.index == 2)
        by_number = JobId("slurm", "t", str(record["job_id"]))
        assert jobs.lookup([by_number], list(read(version).values()))[by_number].id == job.id

    def test_others(self, version: str) -> None:
        known = read(version)
        assert known["plain"][1].can_requeue is False
        assert known["plain"][1].grants == ()
        assert known["quick"][1].state is JobState.ENDED
        assert known["begin"][1].reason == "BeginTime"
        assert (known["again"][1].attempt, known["again"][1].grants) == (0, (Grant("q1", 1),))
        parts = [
            jobs.exactly(record) for record in jobs.records(recorded("squeue", version)) if "+" in jobs.exactly(record)
        ]
        assert sorted(part.partition("+")[2] for part in parts) == ["0", "1"]

    def test_who_waits_for_what(self, version: str) -> None:
        waiting = jobs.waiting(recorded("waiting", version), "qtandem")
        shut, held, begin = (str(read(version)[name][0]["job_id"]) for name in ("shut", "held", "begin"))
        assert waiting["q2"][0] == shut
        assert held not in waiting["q2"]
        assert begin not in waiting["q2"]
        assert waiting["q1"][0] == read(version)["arr"][1].id.job


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["RUNNING"], JobState.RUNNING),
        (["RUNNING", "CONFIGURING"], JobState.RUNNING),
        (["RUNNING", "COMPLETING"], JobState.RUNNING),
        ("RUNNING", JobState.RUNNING),
        (["PENDING", "COMPLETING"], JobState.PENDING),
        (["CANCELLED", "REQUEUED"], JobState.PENDING),
        (["COMPLETED", "COMPLETING"], JobState.ENDED),
        (["NODE_FAIL"], JobState.ENDED),
        (["SUSPENDED"], JobState.SUSPENDED),
        (["RUNNING", "STOPPED"], JobState.SUSPENDED),
        (["OF_A_LATER_SLURM"], JobState.RUNNING),
    ],
)
def test_states(words: object, state: JobState) -> None:
    assert jobs.state({"job_state": words}) is state


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        ({"set": False, "infinite": True, "number": 0}, None),
        (7, 7),
        (None, None),
        ("7", None),
    ],
)
def test_numbers(value: object, number: int | None) -> None:
    assert jobs.number(value) == number


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error", "[]", json.dumps({"errors": []})])
def test_what_is_no_answer_is_told(text: str) -> None:
    with pytest.raises(QtandemError) as caught:
        jobs.records(text)
    assert caught.value.code == "manager-unreachable"


def test_a_hostile_node_list_and_strange_lines_do_no_harm() -> None:
    assert jobs.nodes("n[1-2],x9") == ("n1", "n2", "x9")
    assert jobs.nodes("n[1-") == ("n[1-",)
    assert jobs.waiting("nonsense\n|||\n7|Licenses|x|fez@qtandem:1\n", "qtandem") == {"fez": ["7"]}


def record(**fields: object) -> dict[str, object]:
    return {"job_id": 7, "job_state": ["PENDING"], "licenses": "q1@qtandem:1", **fields}


def test_the_choices_that_the_hook_kept_are_read() -> None:
    note = "the site's | qtandem:choices=q1%2Fq2%3Aqubits%3D5;pinned=q1@qtandem:1"
    job = jobs.job(record(admin_comment=note), "t", "qtandem", NAMES)
    assert (job.request, job.pinned) == ("q1/q2:qubits=5", (Grant("q1"),))
    for strange in ("", "qtandem:choices=;pinned=", "choices=q1;pinned=q1@qtandem:1", "qtandem: held"):
        job = jobs.job(record(admin_comment=strange), "t", "qtandem", NAMES)
        assert (job.request, job.pinned) == ("", ())


def test_what_a_pending_job_asks_of_nodes_is_known() -> None:
    fields = {"required_nodes": "c[1-2]", "nodes": ""}
    assert jobs.job(record(**fields), "t", "qtandem", NAMES).nodes == ("c1", "c2")
    assert jobs.job(record(**fields, job_state=["COMPLETED"]), "t", "qtandem", NAMES).nodes == ()


@pytest.mark.parametrize(
    ("restarts", "queued", "begins", "pausing"),
    [(1, 1000, 1121, True), (0, 1000, 1121, False), (1, 1000, 90000, False), (1, 1000, 1000, False)],
)
def test_slurms_own_pause_after_a_requeue(restarts: int, queued: int, begins: int, pausing: bool) -> None:
    assert jobs.pausing(record(restart_cnt=restarts, submit_time=queued, eligible_time=begins)) is pausing

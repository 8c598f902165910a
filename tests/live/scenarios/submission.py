"""What cannot run is refused at submission, with the reason; what asks for no QPU is left alone."""

from __future__ import annotations

import pytest

from tests.live.cluster import Cluster

REFUSED = [
    ("nort", "alice", {}, "north"),
    ("east:2", "alice", {}, "slots"),
    ("any:qubits=4000", "alice", {}, "qubits"),
    ("physics_only", "bob", {}, "bob"),
    ("main_only", "alice", {"partition": "classical"}, "classical"),
    ("east:shots", "alice", {}, "shots"),
    ("east:by=score", "alice", {}, "score"),
    ("claim", "alice", {}, "claim"),
]


@pytest.mark.parametrize(("qpu", "user", "options", "word"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused_with_the_reason(cluster: Cluster, qpu: str, user: str, options: dict[str, str], word: str) -> None:
    done = cluster.try_submit("true", qpu, user, **options)
    assert done.status != 0, done.text
    assert word in done.text
    assert done.seconds < 1.0


def test_permitted_users_pass(cluster: Cluster) -> None:
    job = cluster.submit("true", qpu="physics_only", user="alice")
    assert cluster.wait_state(job, "ended").outcome == "completed"


def test_a_choice_takes_what_is_open(cluster: Cluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit("echo $QRMI_JOB_QPU_RESOURCES", qpu="east/south")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "south\n"


def test_a_class_is_what_the_site_says(cluster: Cluster) -> None:
    job = cluster.submit("echo $QRMI_JOB_QPU_RESOURCES", qpu="either")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) in ("east\n", "south\n")


def test_owners_cannot_change_to_a_qpu_that_is_not_theirs(cluster: Cluster) -> None:
    cluster.needs("modify")
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit("true", qpu="east", user="bob")
    change = ["scontrol", "update", f"jobid={job}", "licenses=physics_only@qtandem:1"]
    done = cluster.exec(cluster.control, change, "bob")
    assert done.status != 0, done.text
    assert "physics_only" not in cluster.records(job).replace(" ".join(change), "").partition("LicenseName")[0]
    cluster.cancel(job)

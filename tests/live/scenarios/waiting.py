"""A job waits while its QPU is closed, says why, and starts soon after it opens."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.live.cluster import Cluster, Measured, moments

NOW = "date +%s.%N"
OPENINGS, UNCERTAIN_S = 10, 10.0


def _waits(cluster: Cluster, job: str) -> None:
    cluster.until(
        lambda: cluster.job(job),
        lambda view: view.state == "pending" and view.reason == cluster.waits_for_qpu,
        15,
        f"job {job} waits for its QPU",
    )


def _said(cluster: Cluster, job: str, *words: str) -> None:
    def text() -> str:
        body = cluster.explain(job, user="alice")
        return " ".join([*body["lines"], *(row["why"] for row in body["resources"])])

    for word in words:
        cluster.until(text, lambda said, word=word: word in said, 10, f"explain says {word!r}")


def test_a_closed_qpu_keeps_the_job_and_explain_names_each_cause_in_turn(cluster: Cluster) -> None:
    cluster.close("east", reason="calibrating until noon")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit(NOW, qpu="east")
    _waits(cluster, job)
    _said(cluster, job, "calibrating until noon")

    cluster.set("east", availability="paused", reason="a private session")
    _said(cluster, job, "a private session")
    assert cluster.job(job).state == "pending"

    cluster.set("east", availability="online", reason="", fault="401", fault_on="observe")
    _said(cluster, job, "401")
    assert cluster.job(job).state == "pending"

    cluster.open("east")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.job(job).restarts == 0


def test_explain_names_the_running_job_that_holds_the_only_slot(cluster: Cluster) -> None:
    first = cluster.submit("sleep 60", qpu="east")
    cluster.wait_state(first, "running")
    second = cluster.submit("true", qpu="east")
    _waits(cluster, second)
    _said(cluster, second, "slot")
    cluster.cancel(first)
    assert cluster.wait_state(second, "ended").outcome == "completed"


def test_closing_one_qpu_leaves_jobs_of_the_others_alone(cluster: Cluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    waiting = cluster.submit("true", qpu="east")
    other = cluster.submit("true", qpu="south")
    plain = cluster.submit("true")
    ended = cluster.wait_ended([other, plain])
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert cluster.job(waiting).state == "pending"


@pytest.mark.timeout(700)
def test_a_job_runs_within_two_seconds_of_an_opening_at_a_random_moment(cluster: Cluster, measured: Measured) -> None:
    """From the vendor's change to the first line of the job's script.

    A manager keeps its own pause after it has scheduled, whoever asks (Slurm's batch_sched_delay, 3 s), so the
    worst case is that and a second more; QPUs open when they please. One that polls its sensors (LSF) says how long
    that takes. A job that nobody has its manager look at would start at the manager's own next look.
    """
    waits = []
    for moment in moments(OPENINGS, UNCERTAIN_S):
        cluster.close("east")
        cluster.wait_sensors({"east": 0})
        job = cluster.submit(NOW, qpu="east")
        _waits(cluster, job)
        time.sleep(moment)
        opened = cluster.set("east", availability="online", reason="")
        cluster.wait_state(job, "ended")
        waits.append(float(cluster.output(job)) - opened)
    shown = ", ".join(f"{wait:.2f}" for wait in sorted(waits))
    measured(f"{cluster.manager}: opening to running, seconds: {shown}; median {statistics.median(waits):.2f}")
    median, worst = cluster.opens_within_s
    assert statistics.median(waits) <= median, shown
    assert max(waits) < worst, f"a kick was lost: {shown}"

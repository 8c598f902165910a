"""The daemon is dead and stays dead for a while: submission answers, sensors close, jobs go on, nothing storms."""

from __future__ import annotations

import time

import pytest

from tests.live.cluster import QPUS, Cluster, Measured
from tests.live.scenarios.crowd import agreed

OWN_CLUSTER = True
# `timing.deadman_s` of the cluster, and what the check itself may take.
DEADMAN_S, SLACK_S = 8.0, 6.0


@pytest.fixture
def bereft(cluster: Cluster) -> Cluster:
    """A cluster whose daemon was killed just now."""
    cluster.kill("qtandemd")
    return cluster


def test_submission_returns_within_a_second_with_the_policy(bereft: Cluster) -> None:
    plain = bereft.try_submit("true")
    assert plain.status == 0, plain.text
    assert plain.seconds < 1.0

    known = bereft.try_submit("true", "east")
    assert known.status == 0, known.text
    assert known.seconds < 1.0

    for qpu in ("east+south", "any", "nowhere", "either"):
        refused = bereft.try_submit("true", qpu)
        assert refused.status != 0, qpu
        assert refused.seconds < 1.0
        assert "again" in refused.text

    assert bereft.wait_state(bereft.submitted(plain), "ended").outcome == "completed"


def test_sensors_close_within_the_deadman_time(bereft: Cluster, measured: Measured) -> None:
    began = time.monotonic()
    bereft.wait_sensors(dict.fromkeys(QPUS, 0), DEADMAN_S + SLACK_S)
    measured(f"{bereft.manager}: dead-man closed after {time.monotonic() - began:.1f} s of T = {DEADMAN_S:.0f} s")
    bereft.start("qtandemd")
    bereft.wait_sensors(QPUS, 30)


def test_running_jobs_go_on_and_waiting_ones_start_when_it_is_back(cluster: Cluster) -> None:
    running = cluster.submit("sleep 12; echo done", qpu="east")
    cluster.wait_begun(running)
    waiting = cluster.submit("true", qpu="east")
    cluster.kill("qtandemd")
    cluster.wait_sensors(dict.fromkeys(QPUS, 0), DEADMAN_S + SLACK_S)
    assert cluster.wait_state(running, "ended", within=60).outcome == "completed"
    assert cluster.output(running) == "done\n"
    time.sleep(3)
    assert cluster.job(waiting).state in cluster.waits_in
    assert cluster.job(waiting).restarts == 0
    cluster.start("qtandemd")
    assert cluster.wait_state(waiting, "ended", within=60).outcome == "completed"
    agreed(cluster)


@pytest.mark.timeout(240)
def test_jobs_caught_between_death_and_closing_are_not_requeued_in_a_loop(bereft: Cluster, measured: Measured) -> None:
    jobs = [bereft.submit("echo once", qpu=qpu) for qpu in QPUS]
    end = time.monotonic() + 45
    most: dict[str, int] = {}
    while time.monotonic() < end:
        for job in jobs:
            view = bereft.job(job)
            most[job] = max(most.get(job, 0), view.restarts)
            assert view.state != "running", "a job ran on a QPU without a lease"
        time.sleep(0.5)
    measured(f"{bereft.manager}: restarts within 45 s of the daemon's death: {sorted(most.values())}")
    assert max(most.values()) <= 2
    assert "drain" not in bereft.shell(bereft.control, "sinfo -h -o %T").stdout
    bereft.start("qtandemd")
    bereft.until(bereft.daemon_answers, bool, 30, "the daemon is healthy again")

    def over() -> bool:
        views = bereft.jobs()
        for job in jobs:
            if views[job].reason == "BeginTime":
                bereft.expedite(job)
        return all(views[job].state == "ended" for job in jobs)

    bereft.until(over, bool, 90, "all jobs ended")
    assert [bereft.output(job) for job in jobs] == ["once\n"] * len(jobs)
    agreed(bereft)


def test_a_relay_without_its_daemon_says_so_at_once(bereft: Cluster) -> None:
    for host in bereft.workers:
        began = time.monotonic()
        status, body = bereft.api("/v1/resources", host=host)
        assert time.monotonic() - began < 5
        assert status in (0, 502, 503, 504), body

"""SIGKILL to each daemon and to a whole node, with jobs under way: no lease leaks, no slot is taken twice."""

from __future__ import annotations

import time

import pytest

from tests.live.cluster import Cluster, all_at_once
from tests.live.scenarios.crowd import agreed

OWN_CLUSTER = True


def _running(cluster: Cluster, script: str, qpu: str = "east", **options: object) -> str:
    job = cluster.submit(script, qpu=qpu, **options)
    cluster.wait_begun(job)
    return job


def _restart(cluster: Cluster) -> None:
    cluster.start("qtandemd")
    cluster.until(cluster.daemon_answers, bool, 30, "the daemon is healthy again")


def _expedited(cluster: Cluster, job: str) -> bool:
    """Whether the job has ended; the manager's own pause of a requeued one is cut short."""
    view = cluster.job(job)
    if view.state == "pending" and view.reason == "BeginTime":
        cluster.expedite(job)
    return view.state == "ended"


def test_daemon_killed_while_a_lease_is_held(cluster: Cluster) -> None:
    job = _running(cluster, "sleep 8; echo done")
    lease = cluster.leases()[0]
    cluster.kill("qtandemd")
    _restart(cluster)
    assert [row["id"] for row in cluster.leases()] == [lease["id"]]
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "done\n"
    agreed(cluster)


@pytest.mark.parametrize("effect", ["before", "after"])
@pytest.mark.parametrize("state", ["acquiring", "releasing"])
def test_daemon_killed_while_the_vendor_is_being_called(cluster: Cluster, state: str, effect: str) -> None:
    """The vendor does not answer, `before` or `after` the call took effect there."""
    job = _running(cluster, "sleep 2") if state == "releasing" else None
    cluster.set("east", fault="hang", fault_on="acquire,release", fault_at=effect)
    job = job or cluster.submit("sleep 2", qpu="east")
    cluster.until(cluster.leases, lambda rows: any(row["state"] == state for row in rows), 30, f"a lease is {state}")
    cluster.kill("qtandemd")
    cluster.open("east")
    _restart(cluster)
    cluster.until(lambda: _expedited(cluster, job), bool, 60, "the job ended")
    agreed(cluster)


def test_a_job_that_ends_while_the_daemon_is_dead_is_reaped(cluster: Cluster) -> None:
    job = _running(cluster, "sleep 2")
    cluster.kill("qtandemd")
    cluster.wait_state(job, "ended", within=60)
    _restart(cluster)
    agreed(cluster)


def test_controller_killed_with_jobs_running_and_waiting(cluster: Cluster) -> None:
    cluster.needs("kill controller")
    jobs = [_running(cluster, "sleep 20", qpu) for qpu in ("east", "south")]
    jobs.append(cluster.submit("sleep 1", qpu="east"))
    # The controller's own record of a job reaches its disk some seconds after the fact.
    time.sleep(7)
    cluster.kill("controller")
    time.sleep(3)
    assert len(cluster.leases()) == 2, "an unreachable manager means: keep"
    cluster.start("controller")
    ended = cluster.wait_ended(jobs, within=90)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert {view.restarts for view in ended.values()} == {0}
    agreed(cluster)


def test_jobs_that_end_while_the_controller_is_dead(cluster: Cluster) -> None:
    cluster.needs("kill controller")
    job = _running(cluster, "sleep 9")
    time.sleep(7)
    cluster.kill("controller")
    time.sleep(6)
    cluster.start("controller")
    cluster.wait_state(job, "ended", within=90)
    agreed(cluster)


def test_accounting_killed_while_qpus_open_and_close(cluster: Cluster) -> None:
    cluster.needs("kill accounting")
    running = _running(cluster, "sleep 6", "south")
    cluster.kill("accounting")
    cluster.close("east")
    waiting = cluster.submit("true", qpu="south")
    time.sleep(3)
    assert cluster.job(running).state in ("running", "ended")
    cluster.start("accounting")
    cluster.wait_sensors({"east": 0}, 30)
    cluster.open("east")
    ended = cluster.wait_ended([running, waiting])
    assert {view.outcome for view in ended.values()} == {"completed"}
    agreed(cluster)


def test_execution_daemon_killed_with_a_running_job(cluster: Cluster) -> None:
    cluster.needs("kill execution")
    # Longer than the daemon needs to come up: some managers end a job then, and run it again.
    job = _running(cluster, "sleep 15; echo done", nodes="c1")
    cluster.kill("execution", "c1")
    time.sleep(1)
    assert len(cluster.leases()) == 1
    cluster.start("execution", "c1")
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    assert cluster.output(job) == "done\n"
    agreed(cluster)


@pytest.mark.timeout(240)
def test_node_lost_with_a_running_job(cluster: Cluster) -> None:
    cluster.needs("node failure")
    job = _running(cluster, "sleep 300", nodes="c1", requeue=False)
    cluster.lose_node("c1")
    assert cluster.wait_state(job, "ended", within=120).outcome == "node-failure"
    cluster.wait_no_leases(60)
    other = cluster.submit("true", qpu="east")
    assert cluster.wait_state(other, "ended").outcome == "completed"
    cluster.return_node("c1")
    agreed(cluster)


@pytest.mark.timeout(240)
def test_node_lost_with_a_job_that_may_run_again(cluster: Cluster) -> None:
    cluster.needs("node failure")
    cluster.needs("requeue")
    # The run's own number; a manager's word for it is not every manager's.
    number = f'n=${{QTANDEM_RUN##*.}}; echo "run $n"; [ "$n" != {cluster.first_attempt} ] || sleep 300'
    job = _running(cluster, number)
    first, lost = cluster.leases()[0], cluster.job(job).nodes
    cluster.lose_node(lost)
    cluster.until(lambda: cluster.job(job), lambda view: view.restarts == 1, 120, "the job was put back")
    cluster.until(lambda: _expedited(cluster, job), bool, 90, "the job ended on another node")
    assert cluster.job(job).outcome == "completed"
    assert cluster.output(job).endswith(f"run {cluster.first_attempt + 1}\n")
    assert first["id"] not in [row["id"] for row in cluster.leases()]
    cluster.return_node(lost)
    agreed(cluster)


@pytest.mark.timeout(300)
def test_daemon_killed_again_and_again_under_load(cluster: Cluster) -> None:
    names = ("north", "east", "south")
    jobs = all_at_once(12, lambda number: cluster.submit("sleep 1", qpu=names[number % 3]))
    for pause in (0.7, 1.9, 0.3, 2.6, 1.1):
        time.sleep(pause)
        cluster.kill("qtandemd")
        cluster.start("qtandemd")
    cluster.until(cluster.daemon_answers, bool, 30, "the daemon is healthy again")

    def left() -> list[str]:
        views = cluster.jobs()
        waiting = [job for job in jobs if views[job].state != "ended"]
        for job in waiting:
            if views[job].reason == "BeginTime":
                cluster.expedite(job)
        return waiting

    cluster.until(left, lambda jobs: not jobs, 120, "all jobs ended")
    assert {cluster.job(job).outcome for job in jobs} == {"completed"}
    agreed(cluster)

"""However a job ends, its QPU is given back once."""

from __future__ import annotations

import pytest

from tests.live.cluster import Cluster
from tests.live.scenarios.crowd import agreed


def _running(cluster: Cluster, script: str = "sleep 300", **options: object) -> str:
    job = cluster.submit(script, qpu="east", **options)
    cluster.wait_begun(job)
    assert [row["resource"] for row in cluster.leases()] == ["east"]
    return job


def test_cancelled_while_running(cluster: Cluster) -> None:
    job = _running(cluster)
    cluster.cancel(job, user="alice")
    assert cluster.wait_state(job, "ended").outcome == "cancelled"
    agreed(cluster)


def test_cancelled_while_waiting(cluster: Cluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit("true", qpu="east")
    cluster.cancel(job, user="alice")
    assert cluster.wait_state(job, "ended").outcome == "cancelled"
    assert not cluster.leases()
    cluster.open("east")
    agreed(cluster)


def test_cancelled_while_acquiring(cluster: Cluster) -> None:
    cluster.set("east", fault="hang", fault_on="acquire", fault_at="after")
    job = cluster.submit("sleep 300", qpu="east")
    cluster.until(cluster.leases, bool, 15, "the lease is being acquired")
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    cluster.open("east")
    agreed(cluster)


def test_failed(cluster: Cluster) -> None:
    job = cluster.submit("exit 3", qpu="east")
    assert cluster.wait_state(job, "ended").outcome == "failed"
    agreed(cluster)


def test_requeued_while_running_gets_a_lease_of_its_own(cluster: Cluster) -> None:
    cluster.needs("requeue")
    job = _running(cluster, requeue=True)
    first = cluster.leases()[0]
    cluster.requeue(job)
    ids = cluster.until(
        lambda: {row["id"] for row in cluster.leases()}, lambda ids: first["id"] not in ids, 30, "given back"
    )
    assert not ids or not cluster.pauses_requeued
    cluster.until(lambda: cluster.job(job), lambda view: view.restarts == 1, 20, "the job is back in the queue")
    if cluster.pauses_requeued:
        cluster.wait_state(job, "pending")
        cluster.expedite(job)
    cluster.wait_state(job, "running")
    second = cluster.until(cluster.leases, bool, 10, "the second run has a lease")[0]
    assert second["id"] != first["id"]
    assert second["owner"] != first["owner"]
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    agreed(cluster)


@pytest.mark.timeout(240)
def test_time_limit(cluster: Cluster) -> None:
    cluster.needs("time limit")
    job = _running(cluster, minutes=1)
    assert cluster.wait_state(job, "ended", within=150).outcome == "timeout"
    agreed(cluster)

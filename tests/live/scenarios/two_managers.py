"""One QPU, two managers: Slurm and Grid Engine clusters on one daemon never hold it at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.live.both_cluster import Host
from tests.live.cluster import AT_REST, Cluster, Measured, all_at_once
from tests.live.hosts import no_docker, unique_project
from tests.live.images import build, chosen, required
from tests.live.witness import sessions

MANAGERS = ("slurm",)
OWN_CLUSTER = True
JOBS = 100


@pytest.fixture(scope="module")
def both() -> Iterator[Host]:
    if not chosen("slurm", "gridengine"):
        pytest.skip("it runs where the suites of both managers do: QTANDEM_LIVE=slurm,gridengine")
    if no_docker() and required("slurm", "gridengine"):
        pytest.fail(f"the live suites of both managers are required: {no_docker()}", pytrace=False)
    if no_docker():
        pytest.skip(f"no live cluster: {no_docker()}")
    failed = "" if os.environ.get("QTANDEM_BOTH_IMAGE") else build("both")
    if failed:
        pytest.fail(failed, pytrace=False)
    host = Host(unique_project("both"))
    try:
        yield host.up()
    finally:
        host.down()


@pytest.mark.timeout(1500)
def test_a_hundred_jobs_of_both_on_one_slot(both: Host, measured: Measured) -> None:
    clusters: list[Cluster] = [both, both.guest]
    both.open("east")
    for cluster in clusters:
        cluster.wait_sensors({"east": 1}, 30)
    before = len(both.witness("east"))

    def submit(number: int) -> tuple[Cluster, str]:
        cluster = clusters[number % 2]
        return cluster, cluster.submit("echo once; sleep 0.3", "east", user=("alice", "bob")[number // 2 % 2])

    began = time.monotonic()
    jobs = all_at_once(JOBS, submit)
    users = ("alice", "bob")
    for cluster in clusters:
        mine = [job for one, job in jobs if one is cluster]
        ended = cluster.wait_ended(mine, within=1200)
        assert {job: view.outcome for job, view in ended.items() if view.outcome != "completed"} == {}
    took = time.monotonic() - began
    for number, (cluster, job) in enumerate(jobs):
        user = users[number // 2 % 2]
        assert cluster.output(job, user) == "once\n", f"{cluster.manager} {job} ran more or less than once"

    both.wait_no_leases(60)
    faults, left = sessions(both.witness("east"), 1)
    assert (faults, left) == ([], {})
    log = both.witness("east")[before:]
    acquired = [str(row["key"]) for row in log if row["event"] == "acquire" and not row.get("again")]
    assert len(acquired) == JOBS
    views = [(cluster, view) for cluster in clusters for view in cluster.jobs().values()]
    restarts = {cluster.manager: sum(view.restarts for one, view in views if one is cluster) for cluster in clusters}
    measured(f"two managers: {JOBS} jobs on one slot in {took:.0f} s; restarts {restarts}")


def test_what_one_manager_holds_is_closed_for_the_other(both: Host) -> None:
    clusters: list[Cluster] = [both, both.guest]
    both.set("east", **AT_REST)
    for holder, other in (clusters, clusters[::-1]):
        for cluster in clusters:
            cluster.wait_sensors({"east": 1}, 30)
        job = holder.submit("sleep 60", "east")
        holder.wait_begun(job)
        other.wait_sensors({"east": 0}, 20)
        waiting = other.submit("true", "east")
        time.sleep(5)
        assert other.job(waiting).state == "pending"
        said = " ".join(row["why"] for row in both.explain(f"{other.manager}:lab:{waiting}")["resources"])
        assert "slot" in said
        holder.cancel(job)
        assert other.wait_state(waiting, "ended", within=60).outcome == "completed"

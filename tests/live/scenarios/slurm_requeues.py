"""A job keeps its licence through every requeue that Slurm has, and slurmctld counts it again at each start.

Slurm from 25.05 to before 25.11.7 lost it (release notes of 25.11.7): the next run then had no QPU.
"""

from __future__ import annotations

import pytest

from tests.live.cluster import Cluster
from tests.live.scenarios.crowd import agreed
from tests.live.slurm_cluster import licences_of

MANAGERS = ("slurm",)
OWN_CLUSTER = True
WANTED = "east@qtandem:1"
# The first run stays until it is ended from outside; the next ends when it is told to.
SCRIPT = (
    'echo "run ${SLURM_RESTART_COUNT:-0} ${QRMI_JOB_QPU_RESOURCES-none}"\n'
    '[ -n "${SLURM_RESTART_COUNT-}" ] || sleep 300\n'
    'while [ ! -e "$HOME/go-$SLURM_JOB_ID" ]; do sleep 0.2; done'
)


def _begun(cluster: Cluster, **options: object) -> str:
    job = cluster.submit(SCRIPT, "east", requeue=True, **options)
    cluster.wait_begun(job)
    assert (licences_of(cluster, job), cluster.in_use()["east"]) == (WANTED, 1)
    return job


def _runs_again(cluster: Cluster, job: str, within: float = 60.0) -> None:
    """In the second run too the job has its licence and its QPU; afterwards nobody has it."""
    cluster.until(lambda: cluster.job(job).restarts, lambda count: count >= 1, 60, "it was requeued")
    assert licences_of(cluster, job) == WANTED, "the record of the job that waits"
    cluster.until(lambda: cluster.output(job), lambda text: "run 1" in text, within, "it runs again")
    assert licences_of(cluster, job) == WANTED, "the record of the job that runs again"
    assert (cluster.in_use()["east"], cluster.sensors()["east"]) == (1, 0), "what slurmctld counts"
    assert [row["resource"] for row in cluster.leases()] == ["east"]
    cluster.shell(cluster.control, f"touch go-{job}", "alice").check()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    said = [line for line in cluster.output(job).splitlines() if line.startswith("run ")]
    assert said == ["run 0 east", "run 1 east"]
    cluster.until(lambda: cluster.in_use()["east"], lambda used: used == 0, 20, "the licence is free")
    agreed(cluster)


def test_scontrol_requeue(cluster: Cluster) -> None:
    job = _begun(cluster)
    cluster.requeue(job)
    _runs_again(cluster, job)


def test_requeuehold_and_release(cluster: Cluster) -> None:
    job = _begun(cluster)
    cluster.shell(cluster.control, f"scontrol requeuehold {job}").check()
    cluster.until(lambda: cluster.job(job), lambda view: "held" in view.reason.lower(), 40, "it is held")
    assert licences_of(cluster, job) == WANTED
    cluster.until(lambda: cluster.in_use()["east"], lambda used: used == 0, 20, "its licence is free")
    cluster.shell(cluster.control, f"scontrol release {job}").check()
    _runs_again(cluster, job)


@pytest.mark.timeout(240)
def test_a_node_that_fails(cluster: Cluster) -> None:
    job = _begun(cluster)
    host = cluster.job(job).nodes
    cluster.lose_node(host)
    cluster.until(lambda: cluster.job(job).restarts, lambda count: count >= 1, 90, "Slurm missed the node")
    _runs_again(cluster, job)


def test_a_job_of_a_higher_partition(cluster: Cluster) -> None:
    """Preempted by requeue; it starts again when the other has gone."""
    lines = (
        "PreemptType=preempt/partition_prio\\nPreemptMode=REQUEUE\\n"
        "PartitionName=low Nodes=c1,c2 PriorityTier=1 MaxTime=60 DefaultTime=10 State=UP\\n"
        "PartitionName=high Nodes=c1,c2 PriorityTier=9 PreemptMode=off MaxTime=60 DefaultTime=10 State=UP\\n"
    )
    for host in (cluster.control, *cluster.workers):
        have = "grep -q ^PreemptType /etc/slurm/slurm.conf"
        cluster.shell(host, f"{have} || printf '{lines}' >>/etc/slurm/slurm.conf").check()
    cluster.shell(cluster.control, "scontrol reconfigure", timeout=30).check()
    job = _begun(cluster, partition="low")
    high = cluster.submit("sleep 8", partition="high", args=["-N2", "--exclusive"])
    cluster.wait_state(high, "ended", within=90)
    _runs_again(cluster, job, within=90)


@pytest.mark.timeout(240)
def test_our_own_refusal(cluster: Cluster) -> None:
    """PrologSlurmctld refuses the start, so Slurm requeues a job that never ran."""
    cluster.set("east", fault="500", fault_on="acquire")
    job = cluster.submit('echo "run ${QRMI_JOB_QPU_RESOURCES-none}"; sleep 5', "east", requeue=True)
    cluster.until(lambda: cluster.job(job).restarts, lambda count: count >= 1, 60, "it was refused")
    assert licences_of(cluster, job) == WANTED
    cluster.open("east")
    cluster.until(lambda: cluster.output(job), lambda text: "run" in text, 90, "it runs")
    assert (licences_of(cluster, job), cluster.in_use()["east"]) == (WANTED, 1)
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    assert cluster.output(job) == "run east\n"
    agreed(cluster)

"""PBS's daemons die, its jobs are put back, preempted and deleted: no lease leaks, none ends that is not its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.pbs_cluster import PbsCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("pbs",)
OWN_CLUSTER = True
SCHED = "/var/spool/pbs/sched_priv/sched_config"


def running(cluster: PbsCluster, script: str = "sleep 300", qpu: str = "east", **options: object) -> str:
    job = cluster.submit(script, qpu, **options)
    cluster.wait_begun(job)
    return job


def owners(cluster: PbsCluster) -> list[str]:
    return sorted(row["owner"] for row in cluster.leases())


# ---- daemons of PBS
def test_server_killed_while_a_job_begins(cluster: PbsCluster) -> None:
    cluster.set("east", latency_s=3.0)
    job = cluster.submit("echo done", "east")
    cluster.until(cluster.leases, bool, 20, "the lease is being acquired")
    cluster.kill("pbs_server")
    time.sleep(5)
    assert len(cluster.leases()) <= 1
    cluster.start("pbs_server")
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    agreed(cluster)


def test_server_killed_just_as_it_takes_a_submission(cluster: PbsCluster) -> None:
    jobs = [cluster.submit("sleep 1", "north") for _ in range(3)]
    cluster.kill("pbs_server")
    refused = cluster.try_submit("true", "east", timeout=10)
    assert refused.status != 0
    cluster.start("pbs_server")
    assert {view.outcome for view in cluster.wait_ended(jobs, within=90).values()} == {"completed"}
    agreed(cluster)


def test_scheduler_killed_with_jobs_that_wait(cluster: PbsCluster) -> None:
    first = running(cluster, "sleep 3")
    waiting = cluster.submit("true", "east")
    cluster.kill("pbs_sched")
    assert cluster.wait_state(first, "ended").outcome == "completed"
    cluster.wait_no_leases()
    assert cluster.job(waiting).state == "pending"
    cluster.start("pbs_sched")
    assert cluster.wait_state(waiting, "ended", within=60).outcome == "completed"
    agreed(cluster)


def test_comm_killed_with_jobs_running(cluster: PbsCluster) -> None:
    """Without it no word goes between server and hosts; that is no end of a run.

    If that lasts, PBS takes the hosts for lost and puts the job back. It then looks at it in its next cycle only.
    """
    job = running(cluster, "sleep 8; echo done")
    lease = cluster.leases()[0]["id"]
    cluster.kill("pbs_comm")
    time.sleep(4)
    assert [row["id"] for row in cluster.leases()] == [lease]
    cluster.start("pbs_comm")

    def ended() -> bool:
        cluster.manage("set server scheduling = true")
        return cluster.job(job).state == "ended"

    cluster.until(ended, bool, 90, "the job ended")
    assert cluster.job(job).outcome == "completed"
    agreed(cluster)


@pytest.mark.timeout(240)
def test_host_comes_back_when_its_job_runs_elsewhere(cluster: PbsCluster) -> None:
    """The late end of the first run must not end the second one."""
    job = running(cluster, "sleep 45; echo done")
    lost = cluster.job(job).nodes
    other = next(host for host in cluster.workers if host != lost)
    cluster.kill("pbs_mom", lost)
    cluster.until(lambda: cluster.job(job), lambda view: view.nodes == other and view.state == "running", 120, "again")
    second = cluster.run_of(job).removesuffix(".1") + ".2"
    cluster.until(lambda: owners(cluster), lambda found: found == [f"run {second}"], 30, "the second run's lease")
    cluster.start("pbs_mom", lost)
    told = "grep -c 'kill_job\\|Terminated\\|end of\\|abandon' /var/spool/pbs/mom_logs/* | tail -1"
    cluster.shell(lost, told)
    for _ in range(20):
        assert owners(cluster) == [f"run {second}"]
        time.sleep(0.5)
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    agreed(cluster)


@pytest.mark.timeout(240)
def test_put_back_by_force_while_its_host_is_dead(cluster: PbsCluster) -> None:
    """PBS starts it again once its host is back and has thrown the first run away: that must not end the second."""
    job = running(cluster, "sleep 25; echo done")
    lost = cluster.job(job).nodes
    cluster.kill("pbs_mom", lost)
    cluster.pbs(["qrerun", "-W", "force", job]).check()
    cluster.wait_no_leases(20)
    assert cluster.job(job).state == "pending"
    cluster.start("pbs_mom", lost)
    second = cluster.run_of(job).removesuffix(".1") + ".2"

    def found() -> list[str]:
        # The scheduler looks at it again in its next cycle only.
        cluster.manage("set server scheduling = true")
        return owners(cluster)

    cluster.until(found, lambda seen: seen == [f"run {second}"], 90, "the second run's lease alone")
    for _ in range(16):
        assert owners(cluster) == [f"run {second}"]
        time.sleep(0.5)
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    assert int(cluster.told()[job]["run_version"]) == 2
    agreed(cluster)


def test_host_is_restarted_with_its_jobs_kept(cluster: PbsCluster) -> None:
    """As an update of PBS does it: MOM leaves its jobs alone, and finds them again."""
    job = running(cluster, "sleep 12; echo done", nodes="c1")
    [lease] = owners(cluster)
    cluster.shell("c1", "kill -INT $(cluster pid pbs_mom); while cluster pid pbs_mom; do sleep 0.1; done").check()
    time.sleep(2)
    cluster.shell("c1", "/opt/pbs/sbin/pbs_mom -p").check()
    for _ in range(8):
        assert owners(cluster) in ([lease], [])
        time.sleep(0.5)
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    agreed(cluster)


def test_host_comes_back_before_its_job_was_put_back(cluster: PbsCluster) -> None:
    job = running(cluster, "sleep 4; echo done", nodes="c1")
    cluster.kill("pbs_mom", "c1")
    time.sleep(1)
    cluster.start("pbs_mom", "c1")
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    agreed(cluster)


# ---- jobs that end
def test_deleted_while_it_waits(cluster: PbsCluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit("true", "east")
    cluster.cancel(job, "alice")
    assert cluster.wait_state(job, "ended").outcome == "cancelled"
    cluster.open("east")
    agreed(cluster)


@pytest.mark.parametrize("force", [False, True], ids=["qdel", "qdel -W force"])
def test_deleted_while_it_runs(cluster: PbsCluster, force: bool) -> None:
    job = running(cluster)
    cluster.pbs(["qdel", *(["-W", "force"] if force else []), job]).check()
    cluster.wait_no_leases(20)
    cluster.until(lambda: cluster.job(job), lambda view: view.state == "ended", 20, "it is over")
    agreed(cluster)


@pytest.mark.parametrize("force", [False, True], ids=["qdel", "qdel -W force"])
def test_deleted_while_it_begins(cluster: PbsCluster, force: bool) -> None:
    cluster.set("east", latency_s=3.0)
    job = cluster.submit("sleep 300", "east")
    cluster.until(cluster.leases, bool, 20, "the lease is being acquired")
    cluster.pbs(["qdel", *(["-W", "force"] if force else []), job])
    cluster.until(lambda: cluster.job(job), lambda view: view.state == "ended", 40, "it is over")
    cluster.open("east")
    agreed(cluster)


def test_deleted_with_force_while_its_host_is_dead(cluster: PbsCluster) -> None:
    job = running(cluster, nodes="c1")
    cluster.kill("pbs_mom", "c1")
    cluster.pbs(["qdel", "-W", "force", job]).check()
    cluster.wait_no_leases(30)
    cluster.start("pbs_mom", "c1")
    agreed(cluster)


def test_put_back_again_and_again(cluster: PbsCluster) -> None:
    job = running(cluster, "sleep 20; echo done")
    seen = set(owners(cluster))
    for version in (2, 3):
        cluster.requeue(job)
        wanted = cluster.run_of(job).removesuffix(".1") + f".{version}"
        cluster.until(lambda: owners(cluster), lambda found, run=wanted: found == [f"run {run}"], 60, wanted)
        cluster.wait_begun(job)
        seen |= set(owners(cluster))
    assert len(seen) == 3
    cluster.cancel(job)
    cluster.wait_no_leases()
    agreed(cluster)


# ---- preemption
@contextmanager
def preempting(cluster: PbsCluster, order: str) -> Iterator[None]:
    """The queue `express` takes the hosts from others' jobs, by requeue (R) or suspension (S)."""
    cluster.pbs(["qmgr", "-c", "create queue express queue_type=execution,priority=200,enabled=true,started=true"])
    cluster.manage("set server scheduling = false", f'set sched preempt_order = "{order}"')
    cluster.manage('set sched preempt_prio = "express_queue, normal_jobs"', "set server scheduling = true")
    try:
        yield
    finally:
        cluster.manage('set sched preempt_order = "SCR"')
        cluster.pbs(["qmgr", "-c", "unset server restrict_res_to_release_on_suspend"])


def all_of_a_host(cluster: PbsCluster) -> int:
    told = cluster.pbs(["pbsnodes", "-a", "-F", "json"]).check().stdout
    return int(json.loads(told)["nodes"]["c1"]["resources_available"]["ncpus"])


def test_preempted_by_requeue(cluster: PbsCluster) -> None:
    whole = f"select=1:ncpus={all_of_a_host(cluster)}:vnode=c1"
    with preempting(cluster, "R"):
        low = running(cluster, "sleep 5; echo done", args=["-l", whole])
        high = cluster.submit("sleep 3", "south", partition="express", args=["-l", whole])
        assert cluster.wait_state(high, "ended", within=60).outcome == "completed"
        assert cluster.wait_state(low, "ended", within=60).outcome == "completed"
        assert cluster.job(low).restarts == 1
    agreed(cluster)


def test_preempted_by_suspension_it_keeps_its_qpu(cluster: PbsCluster) -> None:
    whole = f"select=1:ncpus={all_of_a_host(cluster)}:vnode=c1"
    cluster.manage('set server restrict_res_to_release_on_suspend = "ncpus,mem"')
    with preempting(cluster, "S"):
        low = running(cluster, "sleep 5; echo done", args=["-l", whole])
        [lease] = owners(cluster)
        high = cluster.submit("sleep 3", "south", partition="express", args=["-l", whole])
        cluster.until(lambda: cluster.job(low).state, lambda state: state == "suspended", 30, "it is suspended")
        other = cluster.submit("true", "east")
        assert lease in owners(cluster)
        assert cluster.sensors()["east"] == 0
        assert cluster.wait_state(high, "ended", within=60).outcome == "completed"
        ended = cluster.wait_ended([low, other], within=60)
        assert {view.outcome for view in ended.values()} == {"completed"}
        assert ended[low].restarts == 0
    agreed(cluster)


def test_suspended_by_hand_it_goes_on(cluster: PbsCluster) -> None:
    job = running(cluster, "sleep 4; echo done")
    [lease] = owners(cluster)
    cluster.pbs(["qsig", "-s", "suspend", job]).check()
    cluster.until(lambda: cluster.job(job).state, lambda state: state == "suspended", 20, "it is suspended")
    assert owners(cluster) == [lease]
    cluster.pbs(["qsig", "-s", "resume", job]).check()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)

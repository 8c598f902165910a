"""Starts that PBS is refused: no storm, no lease left, no job on a QPU that it has no lease of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.cluster import Measured
from tests.live.pbs_cluster import PbsCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("pbs",)
OWN_CLUSTER = True
# `timing.refusal_backoff_s` of the cluster, which the hooks take as five at least.
BACKOFF_S = 2.0


def runs(cluster: PbsCluster, job: str) -> int:
    """How often PBS has sent the job to a host."""
    return int(cluster.told()[job].get("run_version", 0))


def lines(cluster: PbsCluster, words: str) -> int:
    """How often these words stand in the log of the server."""
    return int(cluster.shell(cluster.control, f"cat /var/spool/pbs/server_logs/* | grep -c '{words}'").stdout)


def test_a_vendor_that_fails_leaves_no_lease_and_is_asked_after_the_back_off(cluster: PbsCluster) -> None:
    cluster.set("east", fault="500", fault_on="acquire")
    job = cluster.submit("echo once", "east")
    cluster.until(lambda: runs(cluster, job), lambda count: count >= 1, 30, "it was sent to its host")
    cluster.until(lambda: cluster.job(job), lambda view: view.state == "pending", 30, "it was put back")
    cluster.wait_no_leases()
    before = runs(cluster, job)
    time.sleep(1)
    assert runs(cluster, job) <= before + 1
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    assert cluster.output(job) == "once\n"
    agreed(cluster)


def test_refused_again_and_again_it_is_held_with_the_reason(cluster: PbsCluster, measured: Measured) -> None:
    cluster.set("east", fault="500", fault_on="acquire")
    job, began = cluster.submit("true", "east"), time.monotonic()
    view = cluster.until(lambda: cluster.job(job), lambda view: view.reason == "JobHeld", 150, "it is held")
    measured(f"pbs: held after {runs(cluster, job)} runs and {time.monotonic() - began:.0f} s")
    assert view.comment.startswith("qtandem: The simulator answered 500")
    assert runs(cluster, job) == 5
    cluster.wait_no_leases()
    cluster.open("east")
    assert cluster.pbs(["qrls", "-h", "s", job], "alice").status != 0
    cluster.pbs(["qrls", "-h", "s", job]).check()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)


def test_a_refusal_in_runjob_never_loops(cluster: PbsCluster, measured: Measured) -> None:
    holder = cluster.submit("sleep 60", "east")
    cluster.wait_begun(holder)
    before = lines(cluster, "hook set job.s Execution_Time")
    cluster.manage("set server resources_available.qpu_east = 9")
    jobs = [cluster.submit("true", "east") for _ in range(3)]
    end = time.monotonic() + 20
    while time.monotonic() < end:
        cluster.manage("set server resources_available.qpu_east = 9", "set server scheduling = true")
        assert {cluster.job(job).state for job in jobs} == {"pending"}
        time.sleep(0.5)
    refused = lines(cluster, "hook set job.s Execution_Time") - before
    measured(f"pbs: {refused} refusals of 3 jobs in 20 s, with a scheduling cycle each half a second")
    # The first one after two seconds at the earliest, and PBS counts times in whole seconds.
    assert 0 < refused <= 3 * (20 / BACKOFF_S + 1)
    assert len(cluster.leases()) == 1
    cluster.cancel(holder)
    assert {view.outcome for view in cluster.wait_ended(jobs, within=90).values()} == {"completed"}
    agreed(cluster)


def test_elements_of_an_array_are_refused_without_a_storm(cluster: PbsCluster) -> None:
    cluster.set("east", fault="500", fault_on="acquire")
    job = cluster.submit("echo once", "east", args=["-J", "1-2"])
    time.sleep(15)
    elements = [job.replace("[]", f"[{index}]") for index in (1, 2)]
    assert max(runs(cluster, each) for each in elements if each in cluster.told()) <= 4
    cluster.open("east")
    held = cluster.told()[job]["Hold_Types"]
    if held != "n":
        cluster.pbs(["qrls", "-h", "s", job]).check()
    cluster.wait_state(job, "ended", within=120)
    assert [cluster.output(each) for each in elements] == ["once\n"] * 2
    agreed(cluster)


def test_a_hung_daemon_costs_pbs_its_deadline_only(cluster: PbsCluster, measured: Measured) -> None:
    cluster.shell(cluster.control, "kill -STOP $(cluster pid qtandemd)").check()
    try:
        plain = cluster.try_submit("true").check().seconds
        known = cluster.try_submit("true", "east", held=True).check()
        refused = cluster.try_submit("true", "any")
        assert "again" in refused.stderr
        asked = [cluster.pbs(["qstat", "-B"]).check().seconds for _ in range(5)]
        measured(
            f"pbs, daemon hung: qsub {plain * 1000:.0f} ms, with a QPU {known.seconds * 1000:.0f} ms, "
            f"refused {refused.seconds * 1000:.0f} ms, qstat at most {max(asked) * 1000:.0f} ms"
        )
        assert max(known.seconds, refused.seconds, *asked) < 1.0
    finally:
        cluster.shell(cluster.control, "kill -CONT $(cluster pid qtandemd)").check()
    cluster.cancel(cluster.submitted(known))
    cluster.until(cluster.daemon_answers, bool, 30, "the daemon is healthy again")


# ---- PBS does not ask our hooks
@contextmanager
def changed(cluster: PbsCluster, change: str, back: str) -> Iterator[None]:
    cluster.manage(change)
    try:
        yield
    finally:
        cluster.manage(back)


@pytest.mark.parametrize(
    ("change", "back", "word"),
    [
        ("set hook qtandem_node enabled = false", "set hook qtandem_node enabled = true", "switched off"),
        ("set hook qtandem_node event -= execjob_launch", "set hook qtandem_node event += execjob_launch", "launch"),
        ("set resource qpu_east flag = q", "set resource qpu_east flag = qm", "flag m"),
    ],
)
def test_no_job_starts_that_its_host_would_give_no_lease(
    cluster: PbsCluster, change: str, back: str, word: str
) -> None:
    with changed(cluster, change, back):
        job = cluster.submit("true", "east")
        plain = cluster.submit("true")
        view = cluster.until(lambda: cluster.job(job), lambda view: bool(view.comment), 20, "it was refused")
        assert word in view.comment
        assert "qtandem install pbs" in view.comment
        assert cluster.wait_state(plain, "ended").outcome == "completed"
        doctor = cluster.qtandem("doctor", "pbs")
        assert doctor.status != 0
        assert "FAULT" in doctor.stdout
        assert runs(cluster, job) == 0
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)


@pytest.mark.timeout(300)
def test_a_job_that_runs_without_a_lease_is_found_put_back_and_held(cluster: PbsCluster) -> None:
    """Both hooks are off: only the daemon can see it, in the list of what runs."""
    cluster.manage("set hook qtandem_server enabled = false", "set hook qtandem_node enabled = false")
    try:
        job = cluster.submit("sleep 200", args=["-l", "qpu_east=1"])
        cluster.wait_begun(job)
        assert not cluster.leases()
        view = cluster.until(lambda: cluster.job(job), lambda view: view.reason == "JobHeld", 150, "it is held")
        assert "without its QPU" in view.comment
    finally:
        cluster.manage("set hook qtandem_server enabled = true", "set hook qtandem_node enabled = true")
    cluster.pbs(["qrls", "-h", "s", job]).check()
    cluster.wait_begun(job)
    cluster.until(cluster.leases, bool, 20, "it has its lease now")
    cluster.cancel(job)
    cluster.wait_no_leases()
    agreed(cluster)


def test_a_host_that_has_lost_its_copy_of_the_hook(cluster: PbsCluster) -> None:
    """PBS brings it again when its MOM starts anew; a job that is there meanwhile has no lease and no QPU."""
    cluster.kill("pbs_mom", "c1")
    cluster.shell("c1", "rm -f /var/spool/pbs/mom_priv/hooks/qtandem_node.*").check()
    cluster.start("pbs_mom", "c1")
    cluster.until(cluster.ready, bool, 60, "the cluster is ready")
    job = cluster.submit("env", "east", nodes="c1")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    assert f"QTANDEM_RUN={cluster.run_of(job)}" in cluster.output(job)
    agreed(cluster)

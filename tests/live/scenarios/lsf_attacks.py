"""What a user may try on an LSF, whose hooks run as the job's user: words, loops, signals, another's state."""

from __future__ import annotations

import pytest

from tests.live import litter
from tests.live.cluster import QPUS
from tests.live.lsf_cluster import LsfCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("lsf",)
# Starts of one job that the daemon takes at once.
AT_ONCE = 20

HOSTILE = (
    "$(touch /tmp/owned)", "`touch /tmp/owned`", "'; touch /tmp/owned; '", "../../../tmp/owned", "-rf", "%s%s%n",
    "a Nov 30 08:02\n1       alice   RUN   main       ctl         c1          b", "x>, User <alice>, Project <physics>",
    "a\nLSB_SUB_RES_REQ=\"rusage[qpu_physics_only=1]\"", "rusage[qpu_physics_only=1]", "qpu(physics_only)", "x" * 200,
)  # fmt: skip


def test_hostile_names_are_only_names(cluster: LsfCluster) -> None:
    before = len(cluster.witness("physics_only"))
    jobs = []
    for name in HOSTILE:
        done = cluster.try_submit("echo $QRMI_JOB_QPU_RESOURCES", "north", "bob", args=["-J", name])
        # LSF or we may refuse a name; what is taken runs as any other.
        if not done.status:
            jobs.append(cluster.submitted(done))
    assert len(jobs) >= len(HOSTILE) / 2
    # A name with a line break ends the line in the listing before the state.
    shown = [job for job in jobs if job in cluster.jobs()]
    ended = cluster.wait_ended(shown, within=180)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert {cluster.output(job, "bob") for job in shown} == {"north\n"}
    cluster.wait_no_leases(60)
    for host in (cluster.control, *cluster.workers):
        assert cluster.shell(host, "ls -d /tmp/owned* 2>/dev/null").stdout == "", host
    assert len(cluster.witness("physics_only")) == before
    agreed(cluster)


def test_hooks_leave_nothing_in_folders_that_all_write_to(cluster: LsfCluster) -> None:
    """Looked at every millisecond, while jobs are submitted, start and end; LSF's own files there are LSF's."""
    users = ("root", "qtandem", "qtandem-publisher", "qtandem-worker", "alice")
    for host, paths in litter.of_hooks(cluster, users, 25, 90).items():
        assert [path for path in paths if "qtandem" in path.lower() or "qpu" in path.lower()] == [], host


def test_a_loop_of_starts_and_ends_is_bounded_and_delays_nobody(cluster: LsfCluster) -> None:
    """Hooks run as the job's user, who can say what they say; each start is a session at the vendor."""
    job = cluster.submit("touch $HOME/begun; sleep 120", "east", "bob", nodes="c1")
    # Its starter asks for the environment of its run.
    begun = ["test", "-e", "/home/bob/begun"]
    cluster.until(lambda: cluster.exec("c1", begun).status, lambda status: not status, 60, "it has its environment")
    before = len([row for row in cluster.witness("east") if row["event"] == "acquire"])
    end = {"manager": "lsf", "cluster": "lab", "job": job}
    start = {**end, "attempt": 0, "uid": 2002, "native": ""}
    said = []
    for _ in range(2 * AT_ONCE):
        cluster.api("/v1/end", "c1", "bob", "POST", end)
        status, answer = cluster.api("/v1/start", "c1", "bob", "POST", start)
        said.append((status, answer.get("code")))
    acquired = len([row for row in cluster.witness("east") if row["event"] == "acquire"]) - before
    # One each minute comes in addition.
    assert acquired <= AT_ONCE + 2
    assert (429, "too-many-starts") in said
    lines = " ".join(cluster.explain(job, user="bob")["lines"])
    assert "started too often" in lines
    other = cluster.submit("echo fine", "south")
    assert cluster.wait_state(other, "ended", within=60).outcome == "completed"
    cluster.cancel(job)
    agreed(cluster)


def test_a_user_who_kills_the_start_hook_keeps_no_qpu(cluster: LsfCluster) -> None:
    cluster.set("east", latency_s=4.0)
    job = cluster.submit("echo ran $QRMI_JOB_QPU_RESOURCES", "east", "bob", nodes="c1")
    cluster.until(cluster.leases, bool, 60, "the lease is being acquired")
    cluster.shell("c1", "for i in 1 2 3 4 5; do pkill -KILL -u bob -f [q]tandem_lsf.py; sleep 0.2; done", "bob")
    cluster.open("east")
    cluster.until(lambda: cluster.job(job), lambda view: view.state == "ended", 120, "it ended")
    # LSF ended it, or it ran later with a lease of its own.
    assert cluster.output(job, "bob").endswith("ran east\n") or cluster.job(job).outcome == "failed"
    agreed(cluster)


@pytest.mark.timeout(400)
def test_an_owner_who_resumes_what_we_held_gets_no_qpu(cluster: LsfCluster) -> None:
    """OpenLava lets the owner resume; LSF only where ENABLE_USER_RESUME is set."""
    cluster.set("east", fault="401", fault_on="acquire")
    job = cluster.submit("true", "east", "bob")
    cluster.until(lambda: cluster.job(job), lambda view: view.reason == "JobHeld", 200, f"job {job} is held")
    for _ in range(3):
        cluster.lsf(["bresume", job], "bob")
        cluster.until(lambda: cluster.job(job), lambda view: view.reason == "JobHeld", 60, f"job {job} is held again")
        assert not cluster.leases()
    assert cluster.lsf(["bresume", job], "alice").status != 0
    cluster.open("east")
    cluster.cancel(job)
    agreed(cluster)


def test_users_can_write_nowhere_that_a_hook_of_roots_reads(cluster: LsfCluster) -> None:
    for host in (cluster.control, "c1"):
        for attempt in (
            "echo 'east 9' >/run/qtandem/sensors.lsf",
            "ln -sf /home/bob/names /run/qtandem/names",
            "rm -f /run/qtandem/heartbeat.lsf",
            "mv /run/qtandem/sensors.lsf /run/qtandem/away",
            "mkdir /run/qtandem/runs/lsf-1",
            "echo >>/usr/libexec/qtandem/lsf/pre_exec",
            "pkill -KILL -f [e]lim",
        ):
            assert cluster.shell(host, attempt, "bob").status != 0, f"{host}: {attempt}"
    assert cluster.wait_sensors(QPUS)["east"] == 1

"""What goes wrong on an LSF: its daemons, hooks, hostile environments, two starts for one slot, refusals."""

from __future__ import annotations

import time

import pytest

from tests.live.cluster import Measured, all_at_once
from tests.live.lsf_cluster import LsfCluster
from tests.live.scenarios.crowd import agreed
from tests.live.scenarios.lsf_sensors import AGAIN_S, elims, runs

MANAGERS = ("lsf",)
OWN_CLUSTER = True
HOOKS = "/usr/libexec/qtandem/lsf"
# Has the elim report two slots of a QPU that has one, until the daemon mends its files.
TWO_FOR_ONE = """cd /run/qtandem
sed 's/^\\(east\teast\t\\)1$/\\12/' names >names.two && cp names.two names; echo 'east 2' >sensors.lsf"""


# ---- LSF's own daemons
@pytest.mark.timeout(400)
@pytest.mark.parametrize("command", ["badmin reconfig", "badmin mbdrestart", "lsadmin reconfig"])
def test_an_admin_reconfigures_lsf_with_jobs_under_way(cluster: LsfCluster, command: str) -> None:
    running = cluster.submit("sleep 25; echo done", "east")
    cluster.wait_begun(running)
    waiting = cluster.submit("echo done", "east")
    [lease] = cluster.leases()
    # -f: without questions. OpenLava's lsadmin takes options of its words for its own unless getopt is told not to.
    cluster.lsf([*command.split(), "-f"], env={"POSIXLY_CORRECT": "1"}, timeout=60).check()
    time.sleep(5)
    assert [row["id"] for row in cluster.leases()] == [lease["id"]]
    ended = cluster.wait_ended([running, waiting], within=200)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert [cluster.output(job) for job in (running, waiting)] == ["done\n"] * 2
    cluster.wait_sensors(dict.fromkeys(("east",), 1), AGAIN_S)
    assert len(elims(cluster)) == 1
    agreed(cluster)


@pytest.mark.timeout(300)
def test_lim_killed_with_jobs_running_and_waiting(cluster: LsfCluster) -> None:
    running = cluster.submit("sleep 20; echo done", "east")
    cluster.wait_begun(running)
    waiting = cluster.submit("echo done", "east")
    cluster.kill("lim")
    time.sleep(3)
    assert len(cluster.leases()) == 1
    cluster.start("lim")
    ended = cluster.wait_ended([running, waiting], within=150)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert [cluster.output(job) for job in (running, waiting)] == ["done\n"] * 2
    cluster.until(lambda: elims(cluster), lambda pids: len(pids) == 1, 30, "there is one elim")
    agreed(cluster)


@pytest.mark.parametrize("moment", ["starts", "runs"])
@pytest.mark.parametrize("daemon", ["sbatchd", "lim", "res"])
def test_a_daemon_of_the_host_killed_while_a_job(cluster: LsfCluster, daemon: str, moment: str) -> None:
    cluster.set("east", latency_s=3.0 if moment == "starts" else 0.0)
    job = cluster.submit("sleep 6; echo done", "east", nodes="c1")
    cluster.until(cluster.leases, bool, 30, "there is a lease")
    if moment == "runs":
        cluster.wait_begun(job)
    cluster.kill(daemon, "c1")
    time.sleep(1)
    assert len(cluster.leases()) == 1
    cluster.start(daemon, "c1")
    cluster.open("east")
    outcome = cluster.wait_state(job, "ended", within=120).outcome
    # LSF itself may lose how a job ended whose sbatchd was killed.
    assert outcome == "completed" or (daemon, outcome) == ("sbatchd", "failed")
    agreed(cluster)
    runs(cluster, nodes="c1")


@pytest.mark.timeout(400)
def test_a_host_is_lost_with_a_job_that_may_run_again(cluster: LsfCluster) -> None:
    job = cluster.submit("sleep 15; echo done", "east")
    cluster.wait_begun(job)
    first, lost = cluster.leases()[0], cluster.job(job).nodes
    cluster.lose_node(lost)
    cluster.return_node(lost)
    cluster.revive()
    assert cluster.wait_state(job, "ended", within=240).outcome in ("completed", "failed")
    agreed(cluster)
    assert first["id"] not in [row["id"] for row in cluster.leases()]
    runs(cluster)


# ---- hooks
@pytest.mark.timeout(240)
def test_a_broken_start_hook_costs_its_job_a_wait_and_nobody_else_a_thing(cluster: LsfCluster) -> None:
    for host in cluster.workers:
        cluster.shell(
            host, f"cp -p {HOOKS}/qtandem_lsf.py /root/kept; echo 'raise SystemExit(99)' >{HOOKS}/qtandem_lsf.py"
        )
    try:
        job = cluster.submit("echo ran", "east")
        plain = cluster.submit("echo plain")
        assert cluster.wait_state(plain, "ended").outcome == "completed"
        assert cluster.output(plain) == "plain\n"
        time.sleep(5)
        assert cluster.job(job).state in ("starting", "pending")
        assert cluster.job(job).restarts <= 1, "it does not come back at once"
        hosts = cluster.lsf(["bhosts"]).stdout
        queues = cluster.lsf(["bqueues"]).stdout
        assert hosts.count(" ok ") == 2
        assert queues.count("Open:Active") == 2
    finally:
        for host in cluster.workers:
            cluster.shell(host, f"cp -p /root/kept {HOOKS}/qtandem_lsf.py").check()
    assert cluster.wait_state(job, "ended", within=120).outcome == "completed"
    assert cluster.output(job) == "ran\n"
    agreed(cluster)


def test_a_broken_end_hook_leaves_the_release_to_the_reaper(cluster: LsfCluster) -> None:
    job = cluster.submit("sleep 3; exit 3", "east", nodes="c1")
    cluster.wait_begun(job)
    cluster.shell("c1", f"mv {HOOKS}/post_exec /root/").check()
    try:
        assert cluster.wait_state(job, "ended").outcome == "failed"
        cluster.wait_no_leases(30)
    finally:
        cluster.shell("c1", f"mv /root/post_exec {HOOKS}/").check()
    agreed(cluster)


@pytest.mark.timeout(240)
def test_two_jobs_that_start_for_one_slot(cluster: LsfCluster) -> None:
    """LSF is made to count two slots where there is one: one job runs, the other waits again without harm."""
    script = f"for _ in $(seq 300); do {TWO_FOR_ONE}; sleep 0.1; done"
    start = ["sh", "-c", "cat >/run/two; setsid sh /run/two </dev/null >/dev/null 2>&1 &"]
    cluster.exec(cluster.control, start, stdin=script).check()
    cluster.wait_sensors({"east": 2})
    jobs = all_at_once(2, lambda _: cluster.submit("echo once; sleep 6", "east"))
    cluster.until(lambda: cluster.in_use()["east"], lambda used: used == 2, 20, "LSF has started both")
    ended = cluster.wait_ended(jobs, within=150)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert [cluster.output(job) for job in jobs] == ["once\n"] * 2
    agreed(cluster)


def test_a_job_that_reserves_nothing_gets_nothing(cluster: LsfCluster) -> None:
    """Past esub, by a condition alone: LSF would not count it."""
    before = len(cluster.witness("east"))
    job = cluster.submit("true", args=["-R", "select[qpu_east>=1]"], env=cluster.past_esub("alice"))
    assert cluster.wait_state(job, "ended", within=60).outcome == "failed"
    assert "cannot use its QPU" in cluster.output(job)
    assert len(cluster.witness("east")) == before


@pytest.mark.timeout(300)
def test_a_start_that_is_refused_again_and_again_ends_in_a_hold(cluster: LsfCluster) -> None:
    cluster.set("east", fault="401", fault_on="acquire")
    job = cluster.submit("true", "east")
    cluster.until(lambda: cluster.job(job), lambda view: view.reason == "JobHeld", 200, f"job {job} is held")
    assert not cluster.leases()
    assert cluster.explain(job)["lines"]
    tries = cluster.job(job).restarts
    time.sleep(8)
    assert cluster.job(job).restarts == tries, "it is held, and does not start"
    cluster.open("east")
    cluster.expedite(job)
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)


@pytest.mark.timeout(240)
def test_a_vendor_that_fails_for_a_while_costs_back_offs_only(cluster: LsfCluster, measured: Measured) -> None:
    cluster.set("east", fault="500", fault_on="acquire")
    job = cluster.submit("echo once", "east")
    cluster.until(lambda: cluster.job(job), lambda view: view.reason == "BeginTime", 60, "it was put off")
    time.sleep(10)
    tries = cluster.job(job).restarts
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=120).outcome == "completed"
    assert cluster.output(job) == "once\n"
    measured(f"lsf: {tries} tries while the vendor failed")
    assert tries <= 5
    agreed(cluster)


def test_a_job_killed_during_a_slow_start_leaves_it_at_once(cluster: LsfCluster) -> None:
    cluster.set("east", latency_s=4.0)
    job = cluster.submit("true", "east")
    cluster.until(cluster.leases, bool, 30, "the lease is being acquired")
    began = time.monotonic()
    cluster.cancel(job, user="alice")
    assert cluster.wait_state(job, "ended", within=20).outcome == "cancelled"
    assert time.monotonic() - began < 10
    cluster.open("east")
    agreed(cluster)


def test_a_requeue_during_a_slow_start(cluster: LsfCluster) -> None:
    cluster.set("east", latency_s=3.0)
    job = cluster.submit("echo once", "east")
    cluster.until(cluster.leases, bool, 30, "the lease is being acquired")
    cluster.requeue(job)
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=120).outcome == "completed"
    assert cluster.output(job).endswith("once\n")
    agreed(cluster)


# ---- hostile environments
def test_no_process_but_the_users_own_takes_what_the_user_set(cluster: LsfCluster) -> None:
    """The loader of each process that has the user's LD_DEBUG writes a file as the user that the process runs as."""
    evil = "import os\nopen('/tmp/pwned-%d' % os.getuid(), 'w').write('x')\n"
    script = "#!/bin/sh\n/usr/bin/id -u >/tmp/pwned-$(/usr/bin/id -u)\n"
    places = {f"{name}.py": evil for name in ("sitecustomize", "usercustomize", "json", "http", "evil")}
    places |= dict.fromkeys(("python3", "env", "sleep", "sh", "timeout", "stat"), script)
    for name, text in places.items():
        cluster.exec(cluster.control, ["tee", f"/home/bob/{name}"], "bob", stdin=text).check()
        cluster.exec(cluster.control, ["chmod", "755", f"/home/bob/{name}"], "bob").check()
    hostile = {
        "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": "/tmp/loader", "PYTHONPATH": "/home/bob", "PYTHONHOME": "/home/bob",
        "PYTHONSTARTUP": "/home/bob/evil.py", "PERL5LIB": "/home/bob", "BASH_ENV": "/home/bob/sh",
        "ENV": "/home/bob/sh", "IFS": "/", "TMPDIR": "/home/bob", "HOOKS": "/home/bob", "PYTHON": "/home/bob/python3",
        "qtandem_lines": "A=1",
        "LSB_JOBID": "1", "LSB_JOBINDEX": "4", "LSB_EFFECTIVE_RSRCREQ": "", "LSB_JOBEXIT_STAT": "x",
        "QTANDEM_SOCKET": "/home/bob/sock", "QTANDEM_RUN": "lsf:lab:1.0", "QRMI_JOB_QPU_RESOURCES": "direct",
    }  # fmt: skip
    job = cluster.submit("/usr/bin/env", "east", "bob", env=hostile)
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job, "bob")
    env = dict(line.split("=", 1) for line in cluster.output(job, "bob").splitlines() if "=" in line)
    assert env["QRMI_JOB_QPU_RESOURCES"] == "east"
    assert env["QRMI_JOB_UID"] == "2002"
    assert env["QTANDEM_RUN"] == f"lsf:lab:{job}.0"
    assert env["QTANDEM_SOCKET"] == "/run/qtandem/qtandem.sock"
    agreed(cluster)
    traced: set[str] = set()
    for host in (cluster.control, *cluster.workers):
        found = cluster.shell(host, "stat -c '%U %n' /tmp/loader* /tmp/pwned-* 2>/dev/null").stdout.splitlines()
        traced |= {line.split()[0] for line in found}
        cluster.shell(host, "rm -f /tmp/loader* /tmp/pwned-*")
        assert cluster.shell(host, "ls -A /run/qtandem/runs").stdout == ""
    assert traced == {"bob"}, "a process of another user took the job's environment"


def test_a_user_reports_his_own_jobs_alone_and_only_where_they_are(cluster: LsfCluster) -> None:
    job = cluster.submit("sleep 60", "east", nodes="c1")
    cluster.wait_begun(job)
    body = {"manager": "lsf", "cluster": "lab", "job": job}
    start = {**body, "attempt": 0, "uid": 2001, "native": ""}
    for host, user in (("c1", "bob"), ("c2", "alice"), ("c2", "bob")):
        for path, words in (("/v1/end", body), ("/v1/start", start)):
            status, answer = cluster.api(path, host, user, "POST", words)
            assert status == 403, f"{user} on {host}: {path}: {status} {answer}"
    assert len(cluster.leases()) == 1
    # His own lease, given back early, is his own loss; LSF goes on counting the QPU as his.
    status, answer = cluster.api("/v1/end", "c1", "alice", "POST", body)
    assert (status, answer["ended"]) == (200, 1)
    cluster.wait_no_leases()
    assert cluster.in_use()["east"] == 1
    cluster.cancel(job)
    agreed(cluster)


def test_jobs_without_a_qpu_are_never_delayed(cluster: LsfCluster, measured: Measured) -> None:
    """Neither by QPUs that are closed, nor by a daemon and relays that are dead."""
    cluster.close()
    cluster.kill("qtandemd")
    for host in cluster.workers:
        cluster.kill("relay", host)
    waits = []
    for _ in range(5):
        done = cluster.try_submit("date +%s.%N").check()
        job = cluster.submitted(done)
        cluster.wait_state(job, "ended", within=30)
        waits.append(float(cluster.output(job)) - done.at)
    measured(
        f"lsf: jobs without a QPU, all of qtandem dead: submitted to running {sorted(waits)[2]:.2f} s (median of 5)"
    )
    assert sorted(waits)[2] < 5.0

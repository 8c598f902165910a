"""What a user may try on Grid Engine: traps for root's hooks, another run's state, words in another's mouth."""

from __future__ import annotations

import time

import pytest

from tests.live import litter
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.scenarios.crowd import agreed
from tests.live.scenarios.gridengine_forms import unharmed

MANAGERS = ("gridengine",)
RUNS = "/run/qtandem/runs"


def test_hooks_leave_nothing_in_folders_that_all_write_to(cluster: GridEngineCluster) -> None:
    """Looked at every millisecond, while jobs start and end; a job's own TMPDIR is execd's."""
    for paths in litter.of_hooks(cluster, ("root", "sgeadmin", "qtandem", "qtandem-publisher"), 14, 60).values():
        names = [path for path in paths if not path.endswith((".main", ".classical"))]
        assert [path for path in names if "qtandem" in path.lower() or "complexes" in path] == []


def test_links_in_the_way_of_a_run_are_not_followed(cluster: GridEngineCluster) -> None:
    """The next job's number is no secret, but nobody can write where root will."""
    last = int(cluster.submit("true"))
    for attempt in (
        f"mkdir {RUNS}/gridengine-{last + 1}",
        f"ln -s /home/bob/stolen {RUNS}/gridengine-{last + 1}",
        f"mv {RUNS} {RUNS}.away",
        "rm -f /run/qtandem/heartbeat.gridengine",
        "echo qpu_queue_east 0 >/run/qtandem/gridengine.news",
        "ln -sf /home/bob/names /run/qtandem/names",
    ):
        assert cluster.shell("c1", attempt, "bob").status != 0, attempt
    job = cluster.submit("echo $QRMI_JOB_QPU_RESOURCES", "east", nodes="c1")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "east\n"


def test_what_a_run_left_behind_is_not_the_next_ones_with_its_number(cluster: GridEngineCluster) -> None:
    """Numbers come round again, and a host that fell over keeps what it had."""
    last = int(cluster.submit("true"))
    for ahead in range(1, 4):
        place = f"{RUNS}/gridengine-{last + ahead}"
        old = f"mkdir -m 711 {place}; echo QTANDEM_RUN=stale >{place}/environment; ln -s /etc {place}/etc"
        cluster.shell("c1", f"{old}; chown -R bob {place}").check()
    job = cluster.submit("echo $QTANDEM_RUN; sleep 4", "east", nodes="c1")
    cluster.until(lambda: cluster.output(job), bool, 30, "it runs")
    assert "Permission denied" in cluster.shell("c1", f"cat {RUNS}/gridengine-{job}/environment", "bob").text
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == f"gridengine:lab:{job}.0\n"
    assert cluster.shell("c1", "ls /etc/passwd").status == 0
    cluster.shell("c1", f"rm -rf {RUNS}/gridengine-*").check()
    agreed(cluster)


def test_a_number_that_comes_round_again_is_a_run_of_its_own(cluster: GridEngineCluster) -> None:
    """Grid Engine begins with 1 again after 9999999; here qmaster is told that it gave out no such number yet."""
    script = "echo $QTANDEM_RUN $QRMI_JOB_QPU_RESOURCES; sleep 3"
    first = cluster.submit(script, "east")
    assert cluster.wait_state(first, "ended").outcome == "completed"
    cluster.wait_no_leases()
    cluster.kill("controller")
    cluster.shell(cluster.control, f"echo {int(first) - 1} >/var/spool/gridengine/qmaster/jobseqnum").check()
    cluster.start("controller")
    cluster.until(cluster.ready, bool, 60, "the cluster is ready")
    again = cluster.submit(script, "south", "bob")
    assert again == first
    [lease] = cluster.until(cluster.leases, bool, 30, "it has its own lease")
    assert lease["owner"].endswith(f":{again}.1")
    status, _ = cluster.api(f"/v1/runs/{cluster.run_of(first)}/environment", user="bob")
    assert status in (403, 404), "the run of the first owner"
    cluster.until(lambda: cluster.output(again, "bob"), bool, 30, "it runs")
    assert cluster.output(again, "bob") == f"gridengine:lab:{again}.1 south\n"
    assert cluster.output(first) == f"gridengine:lab:{first}.0 east\n"
    assert cluster.wait_state(again, "ended").outcome == "completed"
    unharmed(cluster)
    agreed(cluster)


def test_a_jobs_user_can_neither_change_nor_fill_what_root_leaves_on_its_host(cluster: GridEngineCluster) -> None:
    job = cluster.submit("sleep 60", "east", nodes="c1")
    cluster.wait_begun(job)
    folder = f"{RUNS}/gridengine-{job}"
    assert "QRMI_JOB_QPU_RESOURCES=east" in cluster.shell("c1", f"cat {folder}/environment", "alice").check().stdout
    for command in (
        f"echo X=1 >>{folder}/environment", f"truncate -s 1G {folder}/environment", f"rm -f {folder}/environment",
        f"touch {folder}/more", f"chmod 777 {folder}", f"mv {folder} {RUNS}/gridengine-{int(job) + 1}",
    ):  # fmt: skip
        assert cluster.shell("c1", command, "alice").status != 0, command
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    cluster.until(lambda: cluster.shell("c1", f"ls -d {folder}").status, lambda status: status != 0, 10, "it is gone")
    agreed(cluster)


def test_a_job_that_writes_into_its_own_spool_harms_itself_alone(cluster: GridEngineCluster) -> None:
    """Grid Engine gives the job's user the shepherd's record of it, which the prolog reads for a deletion."""
    other = cluster.submit("sleep 20; echo fine", "south", user="bob", nodes="c1")
    script = (
        "d=$SGE_JOB_SPOOL_DIR; ls -ld $d; echo 'queued signal KILL' >>$d/trace\n"
        "for f in config environment pe_hostfile; do echo evil=1 >>$d/$f; ln -sf /etc/passwd $d/$f; done\n"
        "touch $d/qtandem; exit 0\n"
    )
    job = cluster.submit(script, "east", nodes="c1")
    cluster.wait_state(job, "ended")
    assert cluster.wait_state(other, "ended", within=60).outcome == "completed"
    assert cluster.output(other, "bob") == "fine\n"
    unharmed(cluster)
    agreed(cluster)


def test_a_submission_cannot_speak_for_another(cluster: GridEngineCluster) -> None:
    """What a client-side script, variable or context says counts for nothing; nor does a copy of a job."""
    claims = ["-v", "QTANDEM_QPU=1,USER=alice,LOGNAME=alice,SGE_O_LOGNAME=alice", "-ac", "qtandem_lease=stolen"]
    done = cluster.try_submit("true", "physics_only", "bob", args=claims)
    assert done.status != 0
    assert "bob" in done.text
    for forged in ("qpu_physics_only=1", "qpu_physics_only=1,qpu=physics_only"):
        assert cluster.try_submit("true", user="bob", args=["-l", forged]).status != 0
    mine = cluster.submit("sleep 30", "physics_only")
    copy = cluster.sge(["qresub", mine], user="bob")
    assert copy.status != 0, copy.text
    cluster.cancel(mine)


def test_a_client_side_jsv_takes_no_check_away(cluster: GridEngineCluster) -> None:
    evil = (
        "#!/bin/sh\nwhile read w r; do case $w in START) echo STARTED;; BEGIN) echo 'PARAM l_hard qpu_physics_only=1'; "
    )
    evil += "echo 'ENV ADD QTANDEM_QPU 1'; echo 'RESULT STATE CORRECT';; QUIT) exit;; esac; done\n"
    cluster.exec(cluster.control, ["tee", "/home/bob/jsv.sh"], "bob", stdin=evil).check()
    cluster.exec(cluster.control, ["chmod", "755", "/home/bob/jsv.sh"], "bob").check()
    done = cluster.try_submit("true", user="bob", args=["-jsv", "/home/bob/jsv.sh"])
    assert done.status != 0
    assert "bob" in done.text


@pytest.mark.parametrize("kind", ["start", "end"])
def test_users_report_no_starts_and_ends(cluster: GridEngineCluster, kind: str) -> None:
    job = cluster.submit("sleep 60", "east", nodes="c1")
    cluster.wait_begun(job)
    body = {"manager": "gridengine", "cluster": "lab", "job": job, **({"uid": 2001} if kind == "start" else {})}
    for host in (cluster.control, "c1", "c2"):
        for user in ("alice", "bob"):
            status, answer = cluster.api(f"/v1/{kind}", host, user, "POST", body)
            assert status in (403, 404), f"{host} {user}: {status} {answer}"
    status, _ = cluster.api(f"/v1/{kind}", "c2", "", "POST", body)
    assert status in (403, 404), "root of a host that the job is not on"
    assert len(cluster.leases()) == 1
    time.sleep(0.5)
    assert cluster.job(job).state == "running"
    cluster.cancel(job)
    agreed(cluster)


@pytest.mark.parametrize(
    "argument", ["x\nBEGIN", "x\nBEGIN\nSTART\nBEGIN", "x\nQUIT", "x\rBEGIN\r", "x\nPARAM USER bob"]
)
def test_an_argument_with_words_of_the_jsv_shifts_no_answer(cluster: GridEngineCluster, argument: str) -> None:
    """Grid Engine writes a job's arguments to the JSV as they are, line breaks too."""
    qsub = ["qsub", "-h", "-b", "y", "-terse", "-o", "/dev/null", "-e", "/dev/null"]
    for _ in range(3):
        cluster.sge([*qsub, "-l", "qpu=east", "/bin/true", argument], user="alice")
        plain = cluster.sge([*qsub, "-l", "h_rt=60", "/bin/true"], user="bob").check()
        asked = cluster.sge([*qsub, "-l", "qpu=north", "/bin/true"], user="bob").check()
        wanted = [cluster.sge(["qstat", "-j", job.stdout.strip()]).check().stdout for job in (plain, asked)]
        assert "qpu" not in wanted[0].partition("hard resource_list:")[2].partition("\n")[0]
        assert "qpu_north=1" in wanted[1].partition("hard resource_list:")[2].partition("\n")[0]
    for user in ("alice", "bob"):
        cluster.sge(["qdel", "-u", user])
    agreed(cluster)

"""Attacks by a user of the cluster: nothing is stolen, closed, read or gained."""

from __future__ import annotations

import json
import time

import pytest

from tests.live.cluster import SOCKET, Cluster
from tests.live.scenarios.crowd import agreed
from tests.live.slurm_cluster import licences_of

MANAGERS = ("slurm",)
SAY = "echo $QRMI_JOB_QPU_RESOURCES"


def _waiting(cluster: Cluster, user: str = "bob", qpu: str = "east", **options: object) -> str:
    cluster.close("east", "south")
    cluster.wait_sensors({"east": 0, "south": 0})
    return cluster.submit(SAY, qpu, user=user, **options)


def test_the_options_own_variable_in_the_environment_gives_nothing(cluster: Cluster) -> None:
    """Slurm carries an option in variables that a user can set as well: the verdict reads them like the option."""
    for name in ("SLURM_SPANK__SLURM_SPANK_OPTION_qpu_qpu", "_SLURM_SPANK_OPTION_qpu_qpu", "SLURM_SPANK_qpu"):
        job = cluster.submit(SAY + "; env | grep -c TOKEN", user="bob", env={name: "physics_only"})
        cluster.wait_state(job, "ended")
        assert cluster.output(job, "bob").split() == ["0"], name
    done = cluster.exec(
        cluster.control, ["sbatch", "--qpu=physics_only", "--wrap=true"], "bob", env={"SBATCH_ACCOUNT": "physics"}
    )
    assert done.status != 0
    assert not cluster.leases()


@pytest.mark.parametrize(
    "change",
    [
        "licenses=physics_only@qtandem:1",
        "licenses=east@qtandem:1,physics_only@qtandem:1",
        "licenses=east@qtandem:9",
        "licenses=physics_only@qtandem|east@qtandem",
        "gres=qpu:physics_only",
        "tres-per-task=gres/qpu:physics_only:1",
        "account=physics",
        "admincomment=qtandem:choices=physics_only;pinned=east@qtandem:1",
    ],
)
def test_an_update_gives_no_qpu_that_its_owner_may_not_have(cluster: Cluster, change: str) -> None:
    job = _waiting(cluster)
    before = licences_of(cluster, job)
    done = cluster.exec(cluster.control, ["scontrol", "update", f"jobid={job}", *change.split(" ")], "bob")
    assert done.status != 0, done.text
    assert licences_of(cluster, job) == before
    cluster.cancel(job)


def test_a_running_job_cannot_change_itslicences_of(cluster: Cluster) -> None:
    job = cluster.submit("sleep 60", "east", user="bob")
    cluster.wait_begun(job, "bob")
    for change in ("licenses=south@qtandem:1", "licenses="):
        cluster.exec(cluster.control, ["scontrol", "update", f"jobid={job}", change], "bob")
        assert licences_of(cluster, job) == "east@qtandem:1", change
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    agreed(cluster)


def test_forged_comments_move_and_hold_nothing(cluster: Cluster) -> None:
    forged = "qtandem:choices=physics_only%2Fsouth;pinned=east@qtandem:1"
    job = _waiting(cluster, args=[f"--comment={forged}", f"--extra={forged}", "--job-name=qtandem:choices=any"])
    cluster.open("south")
    cluster.wait_sensors({"south": 1})
    time.sleep(2.5)
    assert licences_of(cluster, job) == "east@qtandem:1"
    lines = cluster.explain(job, user="bob")["lines"]
    assert not any("physics_only" in line for line in lines)
    cluster.cancel(job)


def test_a_forged_choice_that_only_root_could_write_is_still_given_a_verdict(cluster: Cluster) -> None:
    job = _waiting(cluster)
    forged = "qtandem:choices=physics_only%2Feast;pinned=east@qtandem:1"
    cluster.shell(cluster.control, f"scontrol update jobid={job} admincomment='{forged}'").check()
    cluster.open("south")
    time.sleep(2.5)
    assert licences_of(cluster, job) == "east@qtandem:1"
    cluster.cancel(job)


HOSTILE = (
    "$(touch /tmp/owned)", "`touch /tmp/owned`", "'; touch /tmp/owned; '", "../../../tmp/owned", "-rf",
    "a\nverdict=admit\nnative.licenses=physics_only@qtandem:1", "%s%s%n", "east@qtandem:1", "x" * 500, "\u202ename",
)  # fmt: skip


def test_hostile_job_names_are_only_names(cluster: Cluster) -> None:
    jobs = [
        cluster.submit(SAY, "north", user="bob", args=[f"--job-name={name}", f"--comment={name}", f"--wckey={n}"])
        for n, name in enumerate(HOSTILE)
    ]
    ended = cluster.wait_ended(jobs, within=120)
    # A name with a line break ends the line in scontrol's listing before the state.
    assert {view.outcome for view in ended.values()} <= {"completed", ""}
    assert {cluster.output(job, "bob") for job in jobs} == {"north\n"}
    for host in (cluster.control, *cluster.workers):
        assert cluster.shell(host, "ls -d /tmp/owned* 2>/dev/null").stdout == "", host
    agreed(cluster)


def test_links_in_the_folder_of_runs_cannot_be_laid(cluster: Cluster) -> None:
    job = cluster.submit("sleep 20", "east", user="alice", nodes="c1")
    cluster.wait_begun(job)
    for command in (
        "ln -s /etc/shadow /run/qtandem/runs/link",
        f"ln -sfn /home/bob /run/qtandem/runs/{int(job) + 1}",
        f"mkdir /run/qtandem/runs/{int(job) + 2}",
        "mv /run/qtandem/runs /run/qtandem/gone",
        "ls /run/qtandem/runs",
        f"cat /run/qtandem/runs/{job}/environment",
        "rm -f /run/qtandem/qtandem.sock /run/qtandem/names /run/qtandem/heartbeat",
        "echo x >/run/qtandem/names",
    ):
        done = cluster.shell("c1", command, "bob")
        assert done.status != 0, command
    assert cluster.shell("c1", "ls -A /run/qtandem/runs").stdout.split() == [job]
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    agreed(cluster)


def test_a_jobs_user_can_neither_change_nor_fill_what_root_leaves_on_its_node(cluster: Cluster) -> None:
    """/run is small, and every service needs it; and what root does there next must meet no trap."""
    job = cluster.submit("sleep 60", "east", user="alice", nodes="c1")
    cluster.wait_begun(job)
    folder = f"/run/qtandem/runs/{job}"
    file = f"{folder}/environment"
    assert "QRMI_JOB_QPU_RESOURCES=east" in cluster.shell("c1", f"cat {file}", "alice").check().stdout
    for command in (
        f"echo X=1 >>{file}",
        f"truncate -s 1G {file}",
        f"chmod 600 {file}",
        f"rm -f {file}",
        f"ln -sfn /home/alice/stolen {file}",
        f"touch {folder}/more",
        f"ln -s /etc {folder}/etc",
        f"chmod 777 {folder}",
        f"mv {folder} /run/qtandem/runs/{int(job) + 1}",
    ):
        done = cluster.shell("c1", command, "alice")
        assert done.status != 0, command
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    cluster.until(lambda: cluster.shell("c1", f"ls -d {folder}").status, lambda status: status != 0, 10, "it is gone")
    agreed(cluster)


def test_another_users_run_id_and_token_are_worth_nothing(cluster: Cluster) -> None:
    job = cluster.submit("sleep 60", "east", user="alice", nodes="c1")
    cluster.wait_begun(job)
    [lease] = cluster.leases()
    env = {"QTANDEM_RUN": f"slurm:lab:{job}.0", "QRMI_JOB_QPU_RESOURCES": "east", "QTANDEM_SOCKET": SOCKET,
           "east_QRMI_JOB_ACQUISITION_TOKEN": lease["id"], "SLURM_JOB_ID": job, "PATH": "/usr/bin:/bin"}  # fmt: skip
    for host in (cluster.control, "c1", "c2"):
        stolen = cluster.exec(host, ["qtandem", "env"], "bob", env=env)
        assert lease["id"] not in stolen.stdout.replace(env["QTANDEM_RUN"], ""), stolen.text
        assert stolen.status != 0 or "TOKEN" not in stolen.stdout
        text = 'OPENQASM 2.0; include "qelib1.inc"; qreg q[1]; creg c[1]; measure q -> c;'
        done = cluster.exec(host, ["qtandem", "task", "run", "--shots", "1", "-"], "bob", env=env, stdin=text)
        assert done.status != 0, done.text
    assert [row["event"] for row in cluster.witness("east")][-1] == "acquire"
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    agreed(cluster)


def test_replayed_lifecycle_calls_change_nothing(cluster: Cluster) -> None:
    """What the hooks said once, said again: by a user anywhere, by root of a node, and by the hooks themselves."""
    job = cluster.submit("sleep 60", "east", user="alice", nodes="c1")
    cluster.wait_begun(job)
    [lease] = cluster.leases()
    words = {"manager": "slurm", "cluster": "lab", "job": job, "attempt": 0}
    start = {**words, "uid": 2001, "user": "alice", "native": "east@qtandem:1", "nodes": "c1"}
    for user, host in (("bob", "c1"), ("alice", "c1"), ("", "c1"), ("bob", cluster.control)):
        for path, body in (("/v1/start", start), ("/v1/end", words)):
            status, answer = cluster.api(path, host, user, "POST", body)
            assert status == 403, f"{user}@{host} {path}: {status} {json.dumps(answer)}"
    status, answer = cluster.api("/v1/start", method="POST", body=start)
    assert (status, answer["verdict"]) == (200, "admit")
    assert [row["id"] for row in cluster.leases()] == [lease["id"]], "the same start is the same lease"
    cluster.cancel(job)
    cluster.wait_state(job, "ended")
    cluster.wait_no_leases()
    for _ in range(2):
        status, answer = cluster.api("/v1/end", method="POST", body=words)
        assert (status, answer["ended"]) == (200, 0)
    cluster.api("/v1/start", method="POST", body=start)
    cluster.wait_no_leases(30)
    agreed(cluster)

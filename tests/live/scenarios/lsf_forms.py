"""What LSF alone has: its forms of a request, its refusals at the terminal, arrays, bmod and interactive jobs."""

from __future__ import annotations

import re
import time

import pytest

from tests.live.cluster import Cluster
from tests.live.hosts import Result
from tests.live.lsf_cluster import LsfCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("lsf",)
SAYS = "echo $QRMI_JOB_QPU_RESOURCES"


def asked(cluster: LsfCluster, job: str) -> str:
    """The resource requirement that LSF has of a job."""
    text = re.sub(r"\n {20,}", "", cluster.lsf(["bjobs", "-l", job]).check().stdout)
    match = re.search(r"Requested Resources <(.*?)>[;,]", text)
    return match[1] if match else ""


def closed(cluster: LsfCluster, *qpus: str) -> None:
    cluster.close(*qpus)
    cluster.wait_sensors(dict.fromkeys(qpus, 0))


# ---- forms
FORMS: list[tuple[list[str], dict[str, str], str]] = [
    (["-a", "qpu(east)"], {}, "east"),
    (["-a", "qpu(east,south)"], {}, "east,south"),
    (["-a", "qpu( south + east )"], {}, "south,east"),
    ([], {"QRMI_QPU_RESOURCES": "south"}, "south"),
    (["-a", "qpu(east)"], {"QRMI_QPU_RESOURCES": "south"}, "east"),
    (["-R", "rusage[qpu_east=1]"], {}, "east"),
    (["-R", "select[qpu_south>=1 && type==any] rusage[mem=1]"], {}, "south"),
    (["-R", "select[(mem>1 || swp>=0) && type==any] rusage[mem=1] span[hosts=1]", "-a", "qpu(east)"], {}, "east"),
    (["-R", "select[type==any]\n  rusage[mem=1]", "-a", "qpu(east)"], {}, "east"),
    (["-n", "2", "-a", "qpu(east)"], {}, "east"),
]


@pytest.mark.parametrize(("args", "env", "got"), FORMS, ids=[" ".join([*args, *env]) for args, env, _ in FORMS])
def test_a_form_of_a_request(cluster: LsfCluster, args: list[str], env: dict[str, str], got: str) -> None:
    job = cluster.submit(SAYS, args=args, env=env)
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
    assert cluster.output(job) == f"{got}\n"


def test_the_directive_in_the_script_is_read(cluster: LsfCluster) -> None:
    job = cluster.submit(f"#!/bin/sh\n#BSUB -a qpu(east)\n{SAYS}\n")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "east\n"


def test_any_open_qpu_by_the_words_for_none_in_particular(cluster: LsfCluster) -> None:
    closed(cluster, "north", "east")
    job = cluster.submit(SAYS, args=["-R", "select[qpu_ready==1]"])
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "south\n"


def test_what_the_user_asks_for_besides_is_kept(cluster: LsfCluster) -> None:
    closed(cluster, "north")
    own = "select[(mem>1 || swp>1) && type==any] order[ut] rusage[mem=5] span[hosts=1]"
    job = cluster.submit("true", "north:2", args=["-R", own])
    found = asked(cluster, job)
    for part in ("(mem>1 || swp>1)", "type==any", "qpu_north>=2", "order[ut]", "mem=5", "qpu_north=2", "span[hosts=1]"):
        assert part in found
    cluster.cancel(job)


# ---- refusals
@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["-R", "rusage[qpu_east=1||qpu_south=1]"], "qpu(NAME/NAME)"),
        (["-R", "select[qpu_east>=1 || qpu_south>=1]"], "qpu"),
        (["-R", "rusage[qpu_east=2]"], "slots"),
        (["-R", "rusage[qpu_physics_only=1]", "-P", "chemistry"], "alice"),
        (["-a", "qpu(east)", "-R", "rusage[qpu_south=1]"], "south"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_at_the_terminal(cluster: LsfCluster, args: list[str], word: str) -> None:
    done = cluster.try_submit("true", args=args)
    assert done.status != 0, done.text
    assert word in done.stderr
    assert "qtandem" in done.stderr
    assert "is submitted" not in done.text


def test_an_index_that_is_none_is_lsfs_to_refuse(cluster: LsfCluster) -> None:
    done = cluster.try_submit("true", args=["-R", "rusage[qpu_nowhere=1]"])
    assert done.status != 0, done.text


# ---- arrays
def test_elements_of_an_array_have_a_lease_each(cluster: LsfCluster) -> None:
    before = len(cluster.witness("north"))
    script = "sleep 1; echo $QTANDEM_RUN >>$HOME/array-$LSB_JOBID"
    job = cluster.submit(script, "north", args=["-J", "many[1-5:2]"])
    cluster.wait_state(job, "ended", within=90)
    said = cluster.exec(cluster.control, ["cat", f"/home/alice/array-{job}"]).stdout.split()
    assert sorted(said) == [f"lsf:lab:{job}_{index}.0" for index in (1, 3, 5)]
    acquired = [row for row in cluster.witness("north")[before:] if row["event"] == "acquire"]
    assert len(acquired) == 3
    agreed(cluster)


def test_one_element_is_killed_and_the_others_go_on(cluster: LsfCluster) -> None:
    job = cluster.submit("sleep 20", "north", args=["-J", "pair[1-2]"])
    for index in (1, 2):
        cluster.wait_state(f"{job}[{index}]", "running", within=40)
    cluster.cancel(f"{job}[1]", user="alice")
    rows = cluster.until(cluster.leases, lambda rows: len(rows) == 1, 30, "one lease is left")
    assert f"lsf:lab:{job}_2." in rows[0]["owner"]
    cluster.cancel(job)
    agreed(cluster)


# ---- suspension
def test_a_job_that_is_suspended_keeps_its_qpu(cluster: LsfCluster) -> None:
    job = cluster.submit("sleep 8; echo done", "east")
    cluster.wait_begun(job)
    [lease] = cluster.leases()
    cluster.lsf(["bstop", job], "alice").check()
    cluster.wait_state(job, "suspended")
    waiting = cluster.submit("echo done", "east")
    time.sleep(8)
    assert [row["id"] for row in cluster.leases()] == [lease["id"]]
    assert cluster.job(waiting).state == "pending"
    cluster.lsf(["bresume", job], "alice").check()
    ended = cluster.wait_ended([job, waiting], within=90)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert [cluster.output(each) for each in (job, waiting)] == ["done\n"] * 2
    agreed(cluster)


# ---- bmod
def modified(cluster: LsfCluster, job: str, *args: str, user: str = "alice") -> Result:
    return cluster.lsf(["bmod", *args, job], user)


def test_a_change_of_the_requirement_gets_a_verdict(cluster: LsfCluster) -> None:
    closed(cluster, "east", "south")
    job = cluster.submit("true", "east", user="bob")
    for args, word in (
        (["-R", "rusage[qpu_physics_only=1]"], "bob"),
        (["-R", "rusage[qpu_east=7]"], "slots"),
        (["-a", "qpu(south)"], "-R"),
    ):
        done = modified(cluster, job, *args, user="bob")
        assert word in done.stderr, done.text
        assert "not modified" in done.text
    assert "qpu_east=1" in asked(cluster, job)
    modified(cluster, job, "-a", "qpu(south)", "-R", "rusage[mem=1]", user="bob").check()
    found = asked(cluster, job)
    assert "qpu_south=1" in found
    assert "east" not in found
    modified(cluster, job, "-W", "5", user="bob").check()
    assert asked(cluster, job) == found, "a change of something else leaves it alone"
    cluster.open()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)


def test_a_requirement_for_what_one_may_not_have_gets_no_lease(cluster: LsfCluster) -> None:
    """Esub is at the client and can be left out; what a job may have is decided where it starts."""
    before = len(cluster.witness("physics_only"))
    job = cluster.submit("true", user="bob", args=["-R", "rusage[qpu_physics_only=1]"], env=cluster.past_esub("bob"))
    cluster.until(lambda: cluster.job(job), lambda view: view.restarts >= 1, 60, "its start was refused")
    assert len(cluster.witness("physics_only")) == before
    cluster.cancel(job)


# ---- interactive
@pytest.mark.parametrize("flag", ["-I", "-Is", "-Ip"])
def test_interactive_jobs_go_the_same_way(cluster: LsfCluster, flag: str) -> None:
    command = 'printf "%s\\n" "a  b" "$QRMI_JOB_QPU_RESOURCES" "$QTANDEM_RUN"; exit 3'
    done = cluster.lsf(["bsub", flag, "-a", "qpu(east)", command], "alice", timeout=60)
    assert done.status == 3, done.text
    lines = [line.rstrip("\r") for line in done.stdout.splitlines()]
    assert lines[-3:-1] == ["a  b", "east"], done.text
    assert re.fullmatch(r"lsf:lab:\d+\.0", lines[-1])
    agreed(cluster)


def test_an_interactive_job_waits_for_its_qpu(cluster: LsfCluster) -> None:
    closed(cluster, "east")
    waits = cluster.lsf(["bsub", "-I", "-a", "qpu(east)", "echo ran"], "alice", timeout=8)
    assert waits.status == 124
    assert "ran" not in waits.stdout.splitlines()
    [job] = [name for name, view in cluster.jobs().items() if view.state == "pending"]
    cluster.cancel(job)


# ---- what a user wrote is what runs
SCRIPTS = [
    ('echo "a  b" \'$HOME\' "$0" | sed "s|/.*/||;s|[0-9.]*shell|SHELL|"; exit 4', 4),
    ('#!/bin/bash\nshopt -s nullglob; echo *.none "$BASH_VERSION" | cut -c1; exit 5\n', 5),
    ("kill -TERM $$", 143),
]


@pytest.mark.parametrize("qpu", ["", "east"])
@pytest.mark.parametrize(("script", "status"), SCRIPTS)
def test_a_script_runs_as_it_is_and_keeps_its_status(cluster: Cluster, script: str, status: int, qpu: str) -> None:
    assert isinstance(cluster, LsfCluster)
    job = cluster.submit(script, qpu)
    cluster.wait_state(job, "ended")
    assert re.search(rf"[Ee]xited with exit code {status}\b|by signal", cluster.history()[job]), cluster.history()[job]


def test_a_command_with_quotes_is_what_it_is_without_us(cluster: LsfCluster) -> None:
    command = 'echo "a  b" `echo c` $((1+1)); (exit 7)'
    for args in ([], ["-a", "qpu(east)"]):
        done = cluster.lsf(["bsub", "-N", "-o", "/home/alice/job-%J.out", *args, command], "alice").check()
        job = cluster.submitted(done)
        cluster.wait_state(job, "ended")
        assert cluster.output(job) == "a  b c 2\n"
        assert "exit code 7" in cluster.history()[job]


def test_doctor_finds_no_fault_on_any_host(cluster: LsfCluster) -> None:
    """The hosts but the daemon's have no qrmi_config.json, which the doctor says beside."""
    for host in (cluster.control, *cluster.workers):
        done = cluster.qtandem("doctor", "lsf", host=host)
        assert "FAULT" not in done.stdout, f"{host}: {done.text}"
        assert done.status == 0 or host != cluster.control, done.text

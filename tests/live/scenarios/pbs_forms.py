"""What PBS alone has: its forms of a request, its arrays and interactive jobs, its way with values."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.hosts import PYTHON, Result
from tests.live.pbs_cluster import BIN, PbsCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("pbs",)
SAYS = "env | grep ^QRMI_JOB_QPU_RESOURCES="


def asked(cluster: PbsCluster, job: str) -> dict[str, object]:
    return dict(cluster.told()[job]["Resource_List"])


def counted(cluster: PbsCluster, job: str) -> dict[str, int]:
    """The QPUs for which PBS counts the job."""
    return {name: int(str(n)) for name, n in asked(cluster, job).items() if name.startswith("qpu_") and int(str(n))}


ONE = [
    ["-l", "qpu=east"],
    ["-l", "quantum_resources=east"],
    ["-v", "QRMI_QPU_RESOURCES=east"],
    ["-l", "select=1:ncpus=1:east=1"],
    ["-l", "select=1:ncpus=1:qpu_east=1"],
    ["-l", "qpu_east=1"],
    ["-l", "qpu=east", "-l", "quantum_resources=east", "-v", "QRMI_QPU_RESOURCES=east"],
]
TWO = [
    ["-l", "qpu=east+south"],
    ["-l", 'quantum_resources="east,south"'],
    ["-v", "QRMI_QPU_RESOURCES=east\\,south"],
    ["-v", "QRMI_QPU_RESOURCES=east:south"],
    ["-l", "select=1:ncpus=1:east=1:south=1"],
    ["-l", "qpu_east=1,qpu_south=1"],
]


@pytest.mark.parametrize("args", ONE, ids=" ".join)
def test_a_form_of_one_qpu(cluster: PbsCluster, args: list[str]) -> None:
    job = cluster.submit(SAYS, args=args)
    assert cluster.wait_state(job, "ended").outcome == "completed", cluster.output(job)
    assert cluster.output(job) == "QRMI_JOB_QPU_RESOURCES=east\n"
    assert counted(cluster, job) == {"qpu_east": 1}
    assert "east" not in str(asked(cluster, job)["select"])


@pytest.mark.parametrize("args", TWO, ids=" ".join)
def test_a_form_of_two_qpus(cluster: PbsCluster, args: list[str]) -> None:
    job = cluster.submit(SAYS, args=args)
    assert cluster.wait_state(job, "ended").outcome == "completed", cluster.output(job)
    assert cluster.output(job) == "QRMI_JOB_QPU_RESOURCES=east,south\n"
    assert counted(cluster, job) == {"qpu_east": 1, "qpu_south": 1}


def test_the_directive_in_the_script_is_read(cluster: PbsCluster) -> None:
    job = cluster.submit(f"#!/bin/sh\n#PBS -l qpu=north:2\n{SAYS}\n")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "QRMI_JOB_QPU_RESOURCES=north\n"
    assert counted(cluster, job) == {"qpu_north": 2}


def test_jobs_without_a_qpu_are_left_as_they_are(cluster: PbsCluster) -> None:
    job = cluster.submit("env", args=["-v", "A=b", "-l", "select=1:ncpus=1:mem=1mb"])
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert "qpu" not in json.dumps(asked(cluster, job))
    assert "QTANDEM" not in cluster.output(job)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["-l", "qpu=east", "-l", "quantum_resources=south"], "do not mean the same"),
        (["-l", "qpu=east", "-l", "qpu_south=1"], "not mean the same"),
        (["-l", "qpu=nort"], "north"),
        (["-l", "qpu=east:shots"], "shots"),
        (["-l", "qpu_nowhere=1"], "qpu_nowhere"),
        (["-l", "qpu_east=2"], "slots"),
        (["-l", "select=1:ncpus=1:nowhere=1"], "nowhere"),
        (["-v", "QRMI_QPU_RESOURCES=nowhere"], "nowhere"),
        (["-l", "qpu=physics_only"], "bob"),
        (["-l", "qpu_physics_only=1"], "bob"),
        (["-J", "1-3", "-l", "qpu=physics_only"], "bob"),
        (["-l", 'qpu="east,nowhere"'], "nowhere"),
        (["-l", 'qpu="a;$(id)"'], "a;$(id)"),
    ],
)
def test_what_makes_no_sense_is_refused_on_the_terminal(cluster: PbsCluster, args: list[str], word: str) -> None:
    done = cluster.try_submit("true", user="bob", args=args)
    assert done.status != 0, done.text
    assert word in done.stderr, done.stderr
    assert done.seconds < 2.0


def test_qalter_moves_a_waiting_job_and_gets_past_no_verdict(cluster: PbsCluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit("true", "east", "bob")
    for change in ("qpu_east=0", "qpu_physics_only=1", "qpu=physics_only", "qpu=", "qpu=nowhere",
                   "select=1:ncpus=1:physics_only=1", "quantum_resources=physics_only"):  # fmt: skip
        done = cluster.pbs(["qalter", "-l", change, job], "bob")
        assert done.status != 0, f"{change}: {done.text}"
        assert counted(cluster, job) == {"qpu_east": 1}, change
    assert cluster.pbs(["qalter", "-l", "qpu=south", job], "alice").status != 0, "not her job"
    cluster.pbs(["qalter", "-l", "qpu=south", job], "bob").check()
    assert counted(cluster, job) == {"qpu_south": 1}
    # PBS itself looks at an altered job in its next cycle only, ten minutes later.
    assert cluster.wait_state(job, "ended").outcome == "completed"
    cluster.open("east")
    agreed(cluster)


def test_a_job_that_has_begun_keeps_its_qpu(cluster: PbsCluster) -> None:
    job = cluster.submit("sleep 20", "east")
    cluster.wait_begun(job)
    assert "has begun" in cluster.pbs(["qalter", "-l", "qpu=south", job], "alice").text
    assert cluster.pbs(["qalter", "-l", "qpu_east=0", job]).status != 0
    assert counted(cluster, job) == {"qpu_east": 1}


def test_a_queue_that_cannot_reach_the_qpu_gets_no_lease_by_qmove(cluster: PbsCluster) -> None:
    """PBS asks no hook of ours when a job changes its queue; its start is judged all the same."""
    job = cluster.submit("true", "main_only", held=True, partition="main")
    cluster.pbs(["qmove", "classical", job], "alice").check()
    cluster.pbs(["qrls", job], "alice").check()
    view = cluster.until(lambda: cluster.job(job), lambda view: view.reason in ("JobHeld", "BeginTime"), 30, "refused")
    assert "classical" in view.comment
    assert not [row for row in cluster.witness("main_only") if row["event"] == "acquire"]


def test_elements_of_an_array_have_a_lease_each(cluster: PbsCluster) -> None:
    before = len(cluster.witness("north"))
    job = cluster.submit("sleep 1; echo $QTANDEM_RUN", "north", args=["-J", "1-5:2"])
    elements = [job.replace("[]", f"[{index}]") for index in (1, 3, 5)]
    cluster.wait_state(job, "ended", within=90)
    number = job.removesuffix("[]")
    assert [cluster.output(each) for each in elements] == [f"pbs:lab:{number}_{index}.1\n" for index in (1, 3, 5)]
    acquired = [row for row in cluster.witness("north")[before:] if row["event"] == "acquire"]
    assert len(acquired) == 3
    agreed(cluster)


def test_an_element_that_is_deleted_gives_back_its_own_lease(cluster: PbsCluster) -> None:
    job = cluster.submit("sleep 60", "north", args=["-J", "1-2"])
    first, second = (job.replace("[]", f"[{index}]") for index in (1, 2))
    for each in (first, second):
        cluster.wait_begun(each)
    cluster.cancel(first, "alice")
    left = cluster.until(cluster.leases, lambda rows: len(rows) == 1, 20, "one lease is given back")
    assert left[0]["owner"].endswith("_2.1")
    cluster.cancel(job, "alice")
    cluster.wait_no_leases()
    agreed(cluster)


def test_interactive_jobs_go_the_same_way(cluster: PbsCluster) -> None:
    typed = "env | grep -c ^QTANDEM_RUN=pbs; qtandem env | grep -c east_QRMI_JOB_ACQUISITION_TOKEN; exit\n"
    command = f"script -qec '{BIN}/qsub -I -A physics -l qpu=east' /dev/null"
    done = cluster.shell(cluster.control, f"(sleep 8; printf '%s' \"{typed}\") | {command}", "alice", timeout=60)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines.count("1") == 2, done.text
    agreed(cluster)


def test_an_interactive_job_that_is_deleted_gives_its_qpu_back(cluster: PbsCluster) -> None:
    session = f"sleep 60 | script -qec '{BIN}/qsub -I -A physics -l qpu=east' /dev/null"
    apart = ["sh", "-c", 'exec setsid -f sh -c "$0" >/dev/null 2>&1', session]
    cluster.exec(cluster.control, apart, "alice").check()
    held = cluster.until(cluster.leases, lambda rows: [row["state"] for row in rows] == ["held"], 30, "it has a lease")
    cluster.cancel(held[0]["owner"].rpartition(":")[2].partition(".")[0], "alice")
    agreed(cluster)


def test_tasks_on_each_host_have_what_the_first_one_has(cluster: PbsCluster) -> None:
    """By PBS's own way to other hosts; what is secret too, and nothing of it stays there."""
    script = f"""{BIN}/pbsdsh -- sh -c 'env | grep "^QRMI_JOB\\|^QTANDEM\\|^direct_" | sort >$HOME/seen.$PBS_NODENUM'
cd $HOME; ls seen.* | wc -l; sort -u seen.0 seen.1 | wc -l; wc -l <seen.0; grep -c ^direct_ seen.1; rm seen.*"""
    job = cluster.submit(script, "direct", args=["-l", "select=2:ncpus=1", "-l", "place=scatter"])
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
    assert cluster.job(job).nodes == "c1+c2"
    files, together, first, direct = map(int, cluster.output(job).split())
    assert (files, together) == (2, first), "the same on both"
    assert direct > 1

    def left() -> str:
        return "".join(cluster.shell(host, "ls /run/qtandem/runs").stdout for host in cluster.workers)

    cluster.until(left, lambda names: f"-{job}." not in names, 20, "no host keeps anything of it")
    agreed(cluster)


# ---- reservations of PBS itself
def ahead(cluster: PbsCluster, user: str, *args: str) -> Result:
    """A reservation that begins in a few seconds, for a minute."""
    at = cluster.shell(cluster.control, "date -d '+8 seconds' +%Y%m%d%H%M.%S").check().stdout.strip()
    return cluster.pbs(["pbs_rsub", "-R", at, "-D", "60", "-I", "15", *args], user, timeout=40)


def test_a_reservation_of_a_qpu_is_judged_like_a_job(cluster: PbsCluster) -> None:
    """It would take the QPU from all others. Its jobs have leases as all have."""
    for args in (["-l", "qpu=nowhere"], ["-l", "qpu_east=2"], ["-l", "qpu_physics_only=1"]):
        refused = ahead(cluster, "bob", "-l", "select=1:ncpus=1", *args)
        assert (refused.status != 0, "qtandem" in refused.text) == (True, True), refused.text
    made = ahead(cluster, "bob", "-l", "select=1:ncpus=1", "-l", "qpu=east").check()
    name = made.stdout.split()[0]
    try:
        cluster.until(lambda: cluster.in_use().get("east"), lambda used: used == 1, 30, "the reservation has begun")
        assert not cluster.leases()
        other = cluster.submit("true", "east")
        inside = cluster.submit("env | grep -c ^QTANDEM_RUN=", "east", "bob", partition=name.partition(".")[0])
        assert cluster.wait_state(inside, "ended", within=40).outcome == "completed"
        assert cluster.output(inside, "bob") == "1\n"
        assert cluster.job(other).state == "pending"
    finally:
        cluster.pbs(["pbs_rdel", name])
    assert cluster.wait_state(other, "ended", within=60).outcome == "completed"
    agreed(cluster)


def test_a_time_limit_or_none_is_what_the_job_is_told(cluster: PbsCluster) -> None:
    says = "env | grep QRMI_JOB_TIMEOUT_SECONDS"
    jobs = {cluster.submit(says, qpu, minutes=minutes): minutes for qpu, minutes in (("east", 2), ("south", 0))}
    cluster.wait_ended(jobs)
    assert [cluster.output(job).strip() for job in jobs] == [
        "east_QRMI_JOB_TIMEOUT_SECONDS=120",
        "south_QRMI_JOB_TIMEOUT_SECONDS=604800",
    ]


# What goes through the shell of a user, and what the daemon gives to a job; PBS reads both as its own list.
VALUES = [
    "a,b", 'say "hi"', "it's", "a\\b", "c:\\dir\\", "a=b=c", "two\nlines", "tab\there", " lead and trail ",
    "100% $(id) `id` ;|&", "{\"json\": [1, \"a,b\"]}", "käse ☃", "ends,", ",", "a,QINJ=evil", "''\"\"", "x" * 3000,
]  # fmt: skip
SHOW = (
    "import base64, json, os; seen = {k: v for k, v in os.environ.items() if k[:3] in ('VAL', 'QIN', 'dir')}; "
    "print(base64.b64encode(json.dumps(seen).encode()).decode())"
)
DUMP = f'{PYTHON} -c "{SHOW}"'


def dumped(cluster: PbsCluster, job: str) -> dict[str, str]:
    """The variables that the job saw, however odd."""
    return dict(json.loads(base64.b64decode(cluster.output(job))))


def test_values_of_the_users_reach_the_job_as_without_us(cluster: PbsCluster) -> None:
    """What PBS's qsub makes of a value, or refuses, is the same for a job with a QPU; most it takes as they are."""
    pairs: list[tuple[str, str, str]] = []
    for value in VALUES:
        made = [cluster.try_submit(DUMP, qpu, args=["-v", "VAL"], env={"VAL": value}) for qpu in ("", "north")]
        assert made[0].status == made[1].status, (value, made[1].text)
        if made[0].status == 0:
            plain, ours = (cluster.submitted(done) for done in made)
            pairs.append((value, plain, ours))
    assert len(pairs) > len(VALUES) / 2
    cluster.wait_ended([job for _, *jobs in pairs for job in jobs], within=240)
    for value, plain, ours in pairs:
        assert dumped(cluster, ours) == dumped(cluster, plain), value
        assert "QINJ" not in dumped(cluster, ours)
    kept = [value for value, _, ours in pairs if dumped(cluster, ours).get("VAL") == value]
    assert {"a,b", "a=b=c", "two\nlines", "käse ☃"} <= set(kept)


@contextmanager
def keys_of_direct(cluster: PbsCluster, values: dict[str, str]) -> Iterator[None]:
    """The QPU `direct` gives its jobs these settings too, all of which count as secret."""
    path = "/etc/qtandem/qtandem.toml"
    config = cluster.shell(cluster.control, f"cat {path}").check().stdout
    head, section, tail = config.partition("[resources.direct]\n")
    assert "qubits = 5 }" in tail
    # A text of JSON is one of TOML.
    more = "".join(f", {name} = {json.dumps(value)}" for name, value in values.items())
    changed = head + section + tail.replace("qubits = 5 }", f"qubits = 5{more} }}", 1)
    cluster.exec(cluster.control, ["tee", path], stdin=changed).check()
    try:
        cluster.reload()
        yield
    finally:
        cluster.exec(cluster.control, ["tee", path], stdin=config).check()
        cluster.reload()


def test_values_of_ours_reach_the_job_byte_for_byte(cluster: PbsCluster) -> None:
    """The keys of a `direct` resource are texts of somebody else's making, and stand in no log of PBS."""
    # A long one of our own: PBS logs what users set.
    ours = [*VALUES[:-1], "y" * 3000, "a\\,QINJ=evil"]
    values = {f"k{number}": value for number, value in enumerate(ours)}
    with keys_of_direct(cluster, values):
        job = cluster.submit(DUMP, "direct")
        assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
    seen = dumped(cluster, job)
    # It has the QPU's key in it, for which other scenarios look everywhere.
    cluster.shell(cluster.control, f"rm /home/alice/{job}.*").check()
    assert {name: seen.get(f"direct_{name}") for name in values} == values
    assert "QINJ" not in seen
    for host in (cluster.control, *cluster.workers):
        logs = cluster.shell(host, "cat /var/spool/pbs/*_logs/*").stdout
        assert "QINJ" not in logs
        assert values["k0"] + "," not in logs
        assert "y" * 300 not in logs
    agreed(cluster)

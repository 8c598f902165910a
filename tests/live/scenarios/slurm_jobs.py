"""The kinds of jobs that Slurm has, each with a QPU: arrays, many tasks, heterogeneous, dependent, suspended …"""

from __future__ import annotations

import re
import time

import pytest

from tests.live.cluster import Cluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("slurm",)
SAY = "echo $QRMI_JOB_QPU_RESOURCES $QTANDEM_RUN"


def _acquired(cluster: Cluster, qpu: str, since: int) -> int:
    rows = cluster.witness(qpu)[since:]
    return sum(row["event"] == "acquire" and not row.get("again") for row in rows)


def _elements(cluster: Cluster, job: str) -> list[str]:
    """What `sacct`-less Slurm shows of an array: state and restarts of each element."""
    text = cluster.shell(cluster.control, f"squeue -h -r -t all -j {job} -o '%T %K'").stdout
    return text.split("\n")[:-1]


@pytest.mark.timeout(400)
def test_an_array_of_fifty_takes_one_lease_an_element(cluster: Cluster) -> None:
    before = len(cluster.witness("north"))
    job = cluster.submit(SAY, "north", args=["--array=0-49", "--output=/home/alice/element-%a.out"])
    cluster.until(
        lambda: _elements(cluster, job),
        lambda rows: len(rows) == 50 and all(row.startswith("COMPLETED") for row in rows),
        350,
        "all elements completed",
    )
    said = cluster.shell(cluster.control, "cat /home/alice/element-*.out", "alice").stdout.splitlines()
    assert sorted(said) == sorted(f"north slurm:lab:{job}_{index}.0" for index in range(50))
    assert _acquired(cluster, "north", before) == 50
    agreed(cluster)


def _calls(cluster: Cluster) -> int:
    """Verdicts of starts and calls for environments that the daemon has counted."""
    text = cluster.shell(cluster.control, "curl -s http://127.0.0.1:9447/metrics").check().stdout
    pattern = r"^qtandem_\w*(?:requests|calls)\w*_total\{([^}]*)\} ([\d.e+]+)"
    return round(sum(float(value) for labels, value in re.findall(pattern, text, re.MULTILINE) if "envir" in labels))


@pytest.mark.timeout(400)
def test_a_step_of_a_thousand_tasks_calls_nobody(cluster: Cluster) -> None:
    """A task's environment comes from its node's file: it is there although the relay and the daemon are dead."""
    script = (
        "touch $HOME/begun; while [ ! -e $HOME/go ]; do sleep 0.2; done\n"
        "for i in $(seq 20); do srun -Qn50 --overcommit sh -c 'echo $QRMI_JOB_QPU_RESOURCES'; done | sort | uniq -c"
    )
    before = len(cluster.witness("east"))
    cluster.shell(cluster.control, "rm -f begun go", "alice")
    job = cluster.submit(script, "east", nodes="c1", args=["-n", "30"])
    cluster.wait_begun(job)
    cluster.kill("relay", "c1")
    cluster.shell(cluster.control, "touch go", "alice").check()
    assert cluster.wait_state(job, "ended", within=300).outcome == "completed", cluster.output(job)
    assert cluster.output(job).split() == ["1000", "east"]
    assert _acquired(cluster, "east", before) == 1
    cluster.start("relay", "c1")
    agreed(cluster)


def test_a_heterogeneous_job_has_one_qpu(cluster: Cluster) -> None:
    before = len(cluster.witness("east"))
    job = cluster.submit(
        f"#!/bin/sh\n#SBATCH --qpu=east\n#SBATCH hetjob\n#SBATCH -n1\n{SAY}\nsrun --het-group=0,1 true\n"
    )
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
    assert cluster.output(job) == f"east slurm:lab:{job}.0\n"
    assert _acquired(cluster, "east", before) == 1
    agreed(cluster)


def test_a_later_component_that_asks_alone_is_refused(cluster: Cluster) -> None:
    text = "#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH --gres=qpu:east\ntrue\n"
    done = cluster.try_submit(text)
    assert done.status != 0
    assert "first component" in done.text


def test_several_partitions(cluster: Cluster) -> None:
    job = cluster.submit(SAY, "east", partition="main,classical")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job).split()[0] == "east"
    agreed(cluster)


def test_a_job_that_depends_on_another_takes_its_qpu_after_it(cluster: Cluster) -> None:
    first = cluster.submit("sleep 2", "east")
    second = cluster.submit(SAY, "east", args=[f"--dependency=afterok:{first}"])
    ended = cluster.wait_ended([first, second])
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert {view.restarts for view in ended.values()} == {0}
    agreed(cluster)


def test_a_job_in_a_reservation(cluster: Cluster) -> None:
    make = "scontrol create reservation reservationname=ours starttime=now duration=10 users=alice nodes=c2"
    cluster.shell(cluster.control, make).check()
    try:
        job = cluster.submit(SAY, "east", args=["--reservation=ours"])
        assert cluster.wait_state(job, "ended").outcome == "completed"
    finally:
        cluster.shell(cluster.control, "scontrol delete reservationname=ours").check()
    agreed(cluster)


def test_a_suspended_job_keeps_its_qpu(cluster: Cluster) -> None:
    job = cluster.submit("sleep 8; echo done", "east")
    cluster.wait_begun(job)
    lease = cluster.leases()[0]["id"]
    cluster.shell(cluster.control, f"scontrol suspend {job}").check()
    time.sleep(6)
    assert [row["id"] for row in cluster.leases()] == [lease]
    assert cluster.sensors()["east"] == 0
    cluster.shell(cluster.control, f"scontrol resume {job}").check()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", ["sbatch", "srun"])
def test_a_job_that_cannot_be_requeued_waits_bounded_and_ends_with_a_message(cluster: Cluster, command: str) -> None:
    """`no_requeue_wait_s` of the cluster is 20 s."""
    cluster.set("east", fault="500", fault_on="acquire")
    began = time.monotonic()
    if command == "srun":
        done = cluster.exec(cluster.control, ["srun", "--qpu=east", "true"], "alice", timeout=120)
        assert done.status != 0
        job = max(cluster.jobs(), key=int)
    else:
        job = cluster.submit("true", "east", requeue=False)
    view = cluster.wait_state(job, "ended", within=120)
    assert view.outcome in ("cancelled", "failed")
    assert view.comment.startswith("qtandem:"), view
    assert "500" in view.comment, view
    assert 15 < time.monotonic() - began < 90
    cluster.open("east")
    agreed(cluster)

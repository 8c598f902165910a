"""The main job: ask for a QPU, run quantum tasks on it, get counts, see it accounted."""

from __future__ import annotations

import json

import pytest

from tests.live.cluster import Cluster
from tests.live.scenarios.crowd import agreed

BELL = """OPENQASM 2.0;
include "qelib1.inc";
qreg q[2];
creg c[2];
h q[0];
cx q[0],q[1];
measure q -> c;
"""

TASK = f"""cat > $HOME/bell.qasm <<'END'
{BELL}END
qtandem task run --shots 200 --json $HOME/bell.qasm
"""

# A program of the qrmi library, with its import changed.
PROGRAM = f"""#!/opt/qtandem/bin/python
import time
from qtandem.core.client import Payload, QRMIService, TaskStatus

[resource] = QRMIService().resources()
token = resource.acquire()
task = resource.task_start(Payload.QASM2({BELL!r}, 100))
while resource.task_status(task) in (TaskStatus.Queued, TaskStatus.Running):
    time.sleep(0.1)
print(resource.task_result(task).value)
resource.release(token)
"""


def _counts(text: str) -> dict[str, int]:
    """The counts in the last JSON object that a job printed."""
    body = json.loads(text[text.index("{") :])
    return dict(body.get("result", body)["counts"])


def test_a_job_runs_a_task_and_gets_counts(cluster: Cluster) -> None:
    job = cluster.submit(TASK, qpu="east")
    view = cluster.wait_state(job, "ended", within=60)
    said = cluster.output(job)
    assert view.outcome == "completed", said
    counts = _counts(said)
    assert sum(counts.values()) == 200
    assert set(counts) <= {"00", "11"}
    agreed(cluster)

    usage = cluster.qtandem("usage", "--json").check().stdout
    rows = json.loads(usage)
    rows = rows["usage"] if isinstance(rows, dict) else rows
    [mine] = [row for row in rows if row["run"].split(":")[2].partition(".")[0] == job]
    assert (mine["user"], mine["resource"], mine["tasks"], mine["shots"]) == ("alice", "east", 1, 200)


def test_a_program_of_the_qrmi_library_runs_as_it_is(cluster: Cluster) -> None:
    job = cluster.submit(PROGRAM, qpu="south")
    view = cluster.wait_state(job, "ended", within=60)
    assert view.outcome == "completed", cluster.output(job)
    assert sum(_counts(cluster.output(job)).values()) == 100
    agreed(cluster)


@pytest.mark.parametrize("host", ["c1", "c2"])
def test_any_host_can_submit_and_run(cluster: Cluster, host: str) -> None:
    job = cluster.submit(TASK, qpu="south", nodes=host, host=host)
    view = cluster.wait_state(job, "ended", within=60)
    assert view.outcome == "completed", cluster.output(job)
    assert sum(_counts(cluster.output(job)).values()) == 200


def test_the_directive_in_the_script_is_read(cluster: Cluster) -> None:
    cluster.needs("directives")
    job = cluster.submit("#!/bin/sh\n#SBATCH --qpu=east\nenv | grep -c QRMI_JOB_QPU_RESOURCES=east\n")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "1\n"


def test_the_job_has_the_environment_of_qrmi_and_no_key(cluster: Cluster) -> None:
    job = cluster.submit("env", qpu="north:2+east")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    env = dict(line.split("=", 1) for line in cluster.output(job).splitlines() if "=" in line)
    assert env["QRMI_JOB_QPU_RESOURCES"] == "north,east"
    assert env["QRMI_JOB_QPU_TYPES"] == "simulator,simulator"
    assert env["QRMI_JOB_ID"]
    assert env["QRMI_JOB_UID"] == "2001"
    assert env["north_QRMI_JOB_ACQUISITION_TOKEN"]
    assert env["QTANDEM_RUN"] == cluster.run_of(job)


def test_interactive_jobs_go_the_same_way(cluster: Cluster) -> None:
    cluster.needs("interactive")
    done = cluster.exec("ctl", ["srun", "--qpu=east", "sh", "-c", "env | grep ^QRMI_"], "alice", timeout=60)
    assert "QRMI_JOB_QPU_RESOURCES=east" in done.check().stdout
    agreed(cluster)


def test_a_step_inside_a_job_never_leases_again(cluster: Cluster) -> None:
    cluster.needs("steps")
    before = len(cluster.witness("east"))
    job = cluster.submit("srun true; srun env | grep -c ^QTANDEM_RUN=; srun true", qpu="east")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    assert cluster.output(job) == "1\n"
    events = [row["event"] for row in cluster.witness("east")[before:] if row["event"] in ("acquire", "release")]
    assert events == ["acquire", "release"]

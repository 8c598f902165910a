"""The programs and workflows of `examples/`, as users run them: circuit cutting as an array of 216, and by Snakemake.

They take minutes, and an image with packages of their own: only `make live` runs them.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.live.cluster import Cluster, Measured
from tests.live.conftest import bring_up, tidy
from tests.live.hosts import ROOT, docker
from tests.live.scenarios.crowd import agreed

MANAGERS = ("slurm",)
REQUEST = "north/east/south"
ASKED = "all" in os.environ.get("QTANDEM_LIVE", "").split(",")
pytestmark = pytest.mark.skipif(not ASKED, reason="run it by make live, or with QTANDEM_LIVE=all")
HERE = "export PATH=/opt/examples/bin:$PATH; cd"


@pytest.fixture(scope="module")
def site(manager: str, image: str) -> Iterator[Cluster]:
    """A cluster whose hosts have what the workflows need, and the examples."""
    built = subprocess.run([ROOT / "containers/build", "slurm-examples"], capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.fail(f"containers/build slurm-examples: {built.stderr[-3000:]}", pytrace=False)
    for cluster in bring_up(manager, "qtandem-slurm-examples"):
        docker("cp", str(ROOT / "examples"), f"{cluster.containers[cluster.control]}:/home/examples")
        cluster.shell(cluster.control, "chmod -R a+rX /home/examples").check()
        yield cluster


@pytest.fixture
def cluster(site: Cluster) -> Iterator[Cluster]:
    tidy(site)
    yield site
    for job, view in site.jobs().items():
        if view.state != "ended":
            site.cancel(job)


# Each with a request for this cluster in place of the one in its header.
PROGRAMS = {
    "bell.py": "north", "bell.sh": "east", "qrmi_verbs.py": "south", "two_qpus.py": "east+south", "aio.py": "north:2",
    "sampler.py": "north", "estimator.py": "east", "vqe.py": "north", "qaoa.py": REQUEST,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_programs_run_as_they_are(cluster: Cluster) -> None:
    submitted = {}
    for name, request in PROGRAMS.items():
        text = f"{HERE} /home/examples; sbatch --parsable --qpu={request} -o /home/alice/{name}-%a.txt {name}"
        submitted[name] = cluster.shell(cluster.control, text, "alice").check().stdout.strip()
    cluster.until(
        lambda: _states(cluster, *submitted.values()),
        lambda rows: set(rows) == {"COMPLETED"} and sum(rows.values()) == len(PROGRAMS) + 15,
        850,
        "all programs completed",
    )
    for name in PROGRAMS:
        assert cluster.shell(cluster.control, f"cat /home/alice/{name}-*.txt").check().stdout.strip(), name
    agreed(cluster)


def _states(cluster: Cluster, *jobs: str) -> Counter[str]:
    """By the accounting: slurmctld forgets jobs that ended five minutes ago."""
    text = cluster.shell(cluster.control, f"sacct -nXP -j {','.join(jobs)} -o state", timeout=60).check().stdout
    return Counter(text.split())


def _values(text: str) -> dict[str, tuple[float, float]]:
    """What `workflow.py join` printed: the value that was put together, and the exact one, by observable."""
    rows = [line.split() for line in text.splitlines() if " exact " in line]
    return {row[0]: (float(row[1]), float(row[3])) for row in rows}


def _right(values: dict[str, tuple[float, float]], by: float) -> None:
    assert set(values) == {"ZZII", "IZZI", "IIZZ"}
    for observable, (found, exact) in values.items():
        assert abs(found - exact) < by, f"{observable}: {found} for {exact}"


@pytest.mark.timeout(3600)
def test_circuit_cutting_is_an_array_of_216_between_two_jobs(cluster: Cluster, measured: Measured) -> None:
    began = time.monotonic()
    text = f"{HERE}; sh /home/examples/cutting/submit.sh {REQUEST} 3"
    said = cluster.shell(cluster.control, text, "alice", timeout=60).check().stdout
    cut, run, join = (part.split()[1] for part in said.partition(":")[0].split(", "))
    cluster.until(
        lambda: _states(cluster, run),
        lambda rows: rows == {"COMPLETED": 216},
        3400,
        "all elements completed",
    )
    cluster.until(lambda: _states(cluster, cut, join), lambda rows: rows == {"COMPLETED": 2}, 180, "cut and join")
    _right(_values(cluster.shell(cluster.control, f"cat /home/alice/cutting-out-{join}.txt").check().stdout), 0.35)
    usage = cluster.qtandem("usage", "--since", "2h", "--json", timeout=60).check().stdout
    assert usage.count(f"slurm:lab:{run}_") == 216, "one lease an element"
    measured(f"circuit cutting, 216 elements on four slots: {time.monotonic() - began:.0f} s")
    agreed(cluster)


@pytest.mark.timeout(2400)
def test_snakemake_submits_the_same_workflow(cluster: Cluster, measured: Measured) -> None:
    """36 elements: each is a job, in which Snakemake starts itself again."""
    began = time.monotonic()
    command = (
        f"{HERE}; mkdir -p snake; cd snake; snakemake --snakefile /home/examples/snakemake/Snakefile --executor slurm"
        f" --jobs 8 --config cuts=2 qpu={REQUEST} --default-resources slurm_account=physics slurm_partition=main"
        " --latency-wait 60 >log 2>&1"
    )
    done = cluster.shell(cluster.control, command, "alice", timeout=2300)
    log = cluster.shell(cluster.control, "tail -n 40 snake/log", "alice").stdout
    assert done.status == 0, log
    _right(_values(cluster.shell(cluster.control, "cat snake/cutting-out/values", "alice").check().stdout), 0.5)
    measured(f"Snakemake, 36 elements: {time.monotonic() - began:.0f} s")
    agreed(cluster)

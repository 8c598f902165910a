"""A Slurm cluster in containers for the benches, and the reason where there can be none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.live.hosts import ROOT, no_docker, unique_project
from tests.live.slurm_cluster import SlurmCluster


def skip() -> str:
    lack = no_docker()
    return f"no cluster in containers: {lack}" if lack else ""


@contextmanager
def cluster() -> Iterator[SlurmCluster]:
    image = os.environ.get("QTANDEM_SLURM_IMAGE", "")
    if not image:
        image = "qtandem-slurm"
        subprocess.run([ROOT / "containers/build", "slurm"], check=True)
    built = SlurmCluster(unique_project("slurm"), {"QTANDEM_SLURM_IMAGE": image})
    try:
        yield built.up()
    finally:
        built.down()

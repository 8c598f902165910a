"""Clusters in containers for the benches, and the reason where there can be none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.live.cluster import Cluster
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.hosts import ROOT, no_docker, unique_project
from tests.live.slurm_cluster import SlurmCluster

Made = TypeVar("Made", bound=Cluster)


def skip() -> str:
    lack = no_docker()
    return f"no cluster in containers: {lack}" if lack else ""


@contextmanager
def cluster() -> Iterator[SlurmCluster]:
    yield from _up(SlurmCluster)


@contextmanager
def gridengine() -> Iterator[GridEngineCluster]:
    yield from _up(GridEngineCluster)


def _up(kind: type[Made]) -> Iterator[Made]:
    name = f"QTANDEM_{kind.manager.upper()}_IMAGE"
    image = os.environ.get(name, "")
    if not image:
        image = f"qtandem-{kind.manager}"
        subprocess.run([ROOT / "containers/build", kind.manager], check=True)
    built = kind(unique_project(kind.manager), {name: image})
    try:
        yield built.up()
    finally:
        built.down()

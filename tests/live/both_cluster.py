"""A Slurm and a Grid Engine cluster that one daemon serves, of `containers/both`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

from tests.live.gridengine_cluster import SGE, GridEngineCluster
from tests.live.hosts import ROOT, Agent, Project
from tests.live.slurm_cluster import SlurmCluster

FILE = ROOT / "containers/both/docker-compose.yml"
LAUNCHER = "/etc/qtandem/launcher.toml"


class Guest(GridEngineCluster):
    """The Grid Engine cluster, whose hosts reach the daemon of the other one by relays."""

    control = "gctl"
    workers = ("g1",)

    def join(self, host: SlurmCluster) -> None:
        self.project = host.project
        for name in (self.control, *self.workers):
            self.containers[name] = self.project.container(name)
            self.agents[name] = Agent(self.containers[name])
        self.devices = host.devices


class Host(SlurmCluster):
    """The Slurm cluster with the daemon; `guest` is the other one."""

    def __init__(self, project: str, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(project, environment)
        self.project = Project(project, FILE, environment)
        self.guest = Guest(project, environment)

    def up(self, within: float = 120.0) -> Self:
        super().up(within)
        self.guest.join(self)
        self.until(self.guest.hosts_ready, bool, within, "the other cluster's hosts are up")
        self._serve_guest()
        self.until(self.guest.ready, bool, within, "the other cluster is ready")
        return self

    def down(self) -> None:
        for name in (self.guest.control, *self.guest.workers):
            if name in self.guest.agents:
                self.guest.agents[name].close()
        super().down()

    def _serve_guest(self) -> None:
        """What an admin does by hand for the second manager of a daemon: its commands in root's file."""
        sge = [f"{key}={value}" for key, value in SGE.items()]
        said = self.exec(self.control, ["env", *sge, "qtandem", "install", "gridengine", "--json"]).check().stdout
        [text] = [one["detail"] for one in json.loads(said)["changes"] if one["id"] == f"file:{LAUNCHER}"]
        section = text[text.index("[managers.gridengine]") :]
        self.exec(self.control, ["tee", "-a", LAUNCHER], stdin=f"\n{section}").check()
        self.kill("launcher")
        self.start("launcher")
        self.until(self.daemon_answers, bool, 60, "the daemon is healthy")

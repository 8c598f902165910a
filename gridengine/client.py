"""Grid Engine's commands, where they are, and what they say when qmaster does not answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from qtandem.core import commands
from qtandem.core.commands import CommandError
from qtandem.core.manager_commands import TIMEOUT_S, ManagerCommands
from qtandem.core.managers import ManagerSection
from qtandem.core.processes import Start, start_child
from qtandem.gridengine import complexes

_UNREACHABLE = (
    "unable to send message to qmaster", "unable to contact qmaster", "commlib error", "can't connect to service",
    "got select error", "got send error", "connection refused", "failed receiving gdi request", "error reading answer",
    "environment variable is not set", "can't get configuration from qmaster", "qmaster is not running",
)  # fmt: skip


class GridEngineSettings(ManagerSection, Protocol):
    """What this manager needs of its section in the configuration.

    `options`: `root` and `cell` are SGE_ROOT and SGE_CELL where they are not Debian's, `state` is the file for holds.
    """


class Client(ManagerCommands):
    """Grid Engine's commands, and the cell that they speak to."""

    def __init__(self, settings: GridEngineSettings, start: Start = start_child) -> None:
        options = settings.options
        self.root = options.get("root") or os.environ.get("SGE_ROOT") or "/var/lib/gridengine"
        self.cell = options.get("cell") or os.environ.get("SGE_CELL") or "default"
        self.environment = {"SGE_ROOT": self.root, "SGE_CELL": self.cell, "SGE_SINGLE_LINE": "1"}
        super().__init__(settings.bin_dir, self.environment, _UNREACHABLE, start)

    @property
    def common(self) -> Path:
        """The folder that all hosts of the cell share."""
        return Path(self.root) / self.cell / "common"

    def master(self) -> list[str]:
        """The host of qmaster, as the cell's own file names it; empty where that is not there."""
        try:
            return (self.common / "act_qmaster").read_text().split()
        except OSError:
            return []

    def bootstrap(self) -> dict[str, str]:
        """What the cell's daemons read at their start; empty where it is not there."""
        try:
            return complexes.attributes((self.common / "bootstrap").read_text())
        except OSError:
            return {}

    def shepherds(self) -> list[str]:
        """Where Grid Engine's own shepherd may be on this host, in the order in which execd looks."""
        folder = Path(self.bootstrap().get("binary_path", "/usr/sbin"))
        try:
            said = commands.run_sync([str(Path(self.root) / "util" / "arch")], timeout_s=TIMEOUT_S).stdout.split()
        except CommandError:
            said = []
        return [*(str(folder / arch / "sge_shepherd") for arch in said[:1]), str(folder / "sge_shepherd")]

"""Slurm's commands: where they are, their environment, and which of their failures mean no answer."""

from __future__ import annotations

from typing import Protocol

from qtandem.core.manager_commands import ManagerCommands
from qtandem.core.managers import ManagerSection
from qtandem.core.processes import Start, start_child

UNREACHABLE = (
    "unable to contact", "connection refused", "connect failure", "persistent connection", "timed out",
    "zero bytes", "could not establish", "protocol authentication",
)  # fmt: skip


class SlurmSettings(ManagerSection, Protocol):
    """What this manager needs of its section in the configuration.

    `options`: `conf` is the path of slurm.conf where it is not the default.
    """

    @property
    def server(self) -> str: ...


def environment(settings: SlurmSettings) -> dict[str, str]:
    """What Slurm's commands need in their environment to be read by us."""
    conf = settings.options.get("conf")
    return {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"} | ({"SLURM_CONF": conf} if conf else {})


class Client(ManagerCommands):
    """Slurm's commands."""

    def __init__(self, settings: SlurmSettings, start: Start = start_child) -> None:
        super().__init__(settings.bin_dir, environment(settings), UNREACHABLE, start)

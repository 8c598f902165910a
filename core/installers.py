"""What the installers of all managers do alike; `install.py` of each has what is its own."""

from __future__ import annotations

import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from qtandem.core import accounts
from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among
from qtandem.core.installing import Change, HostFiles, Step, assembled, run_steps, with_constants
from qtandem.core.manager_commands import ManagerCommands
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings

LIBEXEC = Path("/usr/libexec/qtandem")


class Installer(ABC):
    """A manager's installer on this host.

    Each has its name as `manager`, in `absent` what to do where the configuration has no section for it, and its hook
    files in the folder `source`: name, language of the constants, mode. Raises `bad-config` without the section.
    """

    manager: ClassVar[str]
    absent: ClassVar[str]
    source: ClassVar[Path]
    hook_files: ClassVar[Sequence[tuple[str, str, int]]]
    client: ManagerCommands

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        if self.manager not in settings.managers:
            message = f"The configuration has no section [managers.{self.manager}]"
            raise QtandemError("bad-config", message, remedy=self.absent)
        self.settings, self.catalog = settings, catalog
        self.section = settings.managers[self.manager]
        self.host = host or socket.gethostname()
        self.files = HostFiles(settings.daemon.state_dir / "install" / f"{self.manager}.json")
        self.hooks = Path(self.section.options.get("hooks_dir") or LIBEXEC / self.manager)

    def changes(self) -> list[Change]:
        """Everything that an installed host has, each done or to do. Reads only."""
        return [step.change for step in self._steps()]

    def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Make those of the changes that are to do; returns them with what became of them."""
        wanted = {change.id for change in changes}
        return run_steps(step for step in self._steps() if step.change.id in wanted)

    def removals(self) -> list[Change]:
        """What `undo` would take back: what this installer made and nobody changed since."""
        return [step.change for step in self._undo_steps()]

    def undo(self) -> list[Change]:
        """Take back what was installed; what cannot be taken back now stays and is named."""
        return run_steps(self._undo_steps())

    def hook_texts(self) -> dict[Path, tuple[bytes, int]]:
        """Each hook file as it is installed: path, content, mode."""
        values = self._constants()
        return {
            self.hooks / name: (with_constants(self._hook_text(name), values, language).encode(), mode)
            for name, language, mode in self.hook_files
        }

    def launches(self) -> bool:
        """Whether a launcher starts the manager's commands on this host: the daemon's."""
        daemon = self.settings.daemon
        return bool(daemon.launcher) and (self._has_daemon() or daemon.launcher_config.exists())

    @abstractmethod
    def launched(self) -> accounts.Commands:
        """The manager's commands that a launcher may start."""

    @abstractmethod
    def _steps(self) -> Iterable[Step]:
        """All steps. Those of a generator are asked for when the ones before have been made."""

    @abstractmethod
    def _undo_steps(self) -> list[Step]: ...

    def _hook_file_steps(self) -> list[Step]:
        return [self.files.step(path, data, mode) for path, (data, mode) in self.hook_texts().items()]

    def _launcher_steps(self) -> list[Step]:
        return [accounts.step(self.settings.daemon, self.launched(), self.files)] if self.launches() else []

    def _has_daemon(self) -> bool:
        server = self.settings.relay.server.rpartition(":")[0]
        return not server or among(self.host, [server])

    def _hook_text(self, name: str) -> str:
        text = assembled((self.source / name).read_text(), self.source)
        return text.replace(str(LIBEXEC / self.manager), str(self.hooks))

    def _constants(self) -> dict[str, str | int | float | Iterable[str]]:
        """The constants that hook files of several managers have."""
        daemon, timing = self.settings.daemon, self.settings.timing
        return {
            "CLUSTER": self.section.cluster,
            "SOCKET": str(daemon.socket),
            "RUNTIME": str(daemon.runtime_dir),
            "BEAT": str(daemon.runtime_dir / f"heartbeat.{self.manager}"),
            "NAMES": str(daemon.runtime_dir / "names"),
            "RUNS": str(daemon.runtime_dir / "runs"),
            "HOOKS": str(self.hooks),
            "PYTHON": system_python() or shutil.which("python3") or "/usr/bin/python3",
            "DEADLINE_MS": round(timing.submit_ms),
            "LIMIT": round(timing.deadman_s),
            "PAUSE": 30,
            "REFUSED_PAUSE_S": 30,
            "CALL_S": 10,
            # Sensors are closed by then, so that a job which waits again does not start at once.
            "DAEMON_DOWN_S": round(timing.deadman_s) + 10,
            "TOTAL_S": self._total_s(),
        }

    def _total_s(self) -> int:
        """For so long the start of a job is tried."""
        timing = self.settings.timing
        return round(2 * max(timing.no_requeue_wait_s, timing.releasing_wait_s)) + 60


def system_python() -> str:
    """The system's interpreter, empty if it is not there: hooks must not depend on an environment of ours."""
    return next(filter(os.path.exists, ("/usr/bin/python3", "/usr/libexec/platform-python")), "")

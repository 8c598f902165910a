"""Installs Grid Engine's side on one host: hook files, and on the master what the cell must know of them.

Scripts and settings of the site are never replaced: where one is in the way, the lines to add are shown. A manifest
records what was done, so that it can be undone.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qtandem.core import accounts
from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among
from qtandem.core.installing import Change, ChangeState, HostFiles, Step, assembled, run_steps, with_constants
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.gridengine import complexes, records, rights
from qtandem.gridengine.cell import Cell
from qtandem.gridengine.client import Client

SOURCE = Path(__file__).parent
HOOKS = Path("/usr/libexec/qtandem/gridengine")
# File name, language of its constants, mode.
HOOK_FILES: tuple[tuple[str, str, int], ...] = (
    ("jsv", "python", 0o755),
    ("qtandem_gridengine.py", "python", 0o644),
    ("prolog", "sh", 0o755),
    ("epilog", "sh", 0o755),
    ("starter_method", "sh", 0o755),
    ("load_sensor", "sh", 0o755),
    ("shepherd", "sh", 0o755),
)


class Installer:
    """Grid Engine's installer on this host."""

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        if "gridengine" not in settings.managers:
            message = "The configuration has no section [managers.gridengine]"
            raise QtandemError("bad-config", message, remedy="Add it, with a name for the cell as `cluster`.")
        self._settings = settings
        self.section = settings.managers["gridengine"]
        self._catalog = catalog
        self._host = host or socket.gethostname()
        self.client = Client(self.section)
        self.files = HostFiles(settings.daemon.state_dir / "install" / "gridengine.json")
        self.hooks = Path(self.section.options.get("hooks_dir") or HOOKS)
        managers = rights.managers(settings.daemon)
        self.cell = Cell(self.client, catalog, self.files, self.hooks, self.jsv_user(), managers)
        twice = complexes.taken_twice([one.native for one in catalog.resources.values()])
        if twice:
            message = f"The complex {', '.join(sorted(twice))} would have two meanings"
            raise QtandemError("bad-config", message, remedy="Give one of the QPUs another `native` name.")

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
        """Take back what was installed; not while a job asks for a QPU."""
        done = run_steps(self.cell.undo_steps())
        return done + run_steps(self._file_removals(after=done))

    def hook_texts(self) -> dict[Path, tuple[bytes, int]]:
        """Each hook file as it is installed: path, content, mode."""
        values = self._constants()
        out: dict[Path, tuple[bytes, int]] = {}
        for name, language, mode in HOOK_FILES:
            text = assembled((SOURCE / "hooks" / name).read_text()).replace(str(HOOKS), str(self.hooks))
            out[self.hooks / name] = (with_constants(text, values, language).encode(), mode)
        return out

    def is_master(self) -> bool:
        """Whether qmaster runs on this host, by act_qmaster or by the configuration's control_hosts."""
        return among(self._host, [*self.client.master(), *self.section.control_hosts])

    def launches(self) -> bool:
        """Whether a launcher starts Grid Engine's commands on this host: the daemon's."""
        daemon = self._settings.daemon
        at_daemon = among(self._host, [self._settings.relay.server.rpartition(":")[0] or self._host])
        return bool(daemon.launcher) and (at_daemon or daemon.launcher_config.exists())

    def jsv_user(self) -> str:
        """Whom qmaster runs the JSV as: a service user, so that the daemon takes its word."""
        users = [user for user in self.section.service_users if user != "root"]
        return users[0] if users else "root"

    def _steps(self) -> list[Step]:
        steps = [self.files.step(path, data, mode) for path, (data, mode) in self.hook_texts().items()]
        if self.launches():
            steps.append(accounts.step(self._settings.daemon, rights.commands(self.section), self.files))
        return steps + (self.cell.steps() if self.is_master() else [])

    def _undo_steps(self) -> list[Step]:
        steps = self.cell.undo_steps()
        return steps + self._file_removals(after=[step.change for step in steps])

    def _file_removals(self, after: Sequence[Change]) -> list[Step]:
        """Files go last, and not while the cell or a job on this host would miss them: that stops a queue."""
        removals = self.files.removals()
        if not removals:
            return []
        taking_back = any(change.id.startswith("record:conf") for change in after)
        undone = all(change.state in (ChangeState.TODO, ChangeState.DONE) for change in after)
        why = "" if taking_back and undone else self._still_called()
        why = why or self._called_by_others() or self._still_running()
        if not why:
            return removals
        return [Step(replace(step.change, state=ChangeState.BLOCKED, detail=why)) for step in removals]

    def _still_called(self) -> str:
        if self._unreachable():
            return ""
        if self.cell.names_hooks():
            return "the cell still calls it; first, on the host of qmaster: qtandem uninstall gridengine --apply"
        return ""

    def _called_by_others(self) -> str:
        """Without it such a script would fail, and Grid Engine stop the queue."""
        callers = [] if self._unreachable() else self.cell.callers()
        return f"the site's own {', '.join(callers)} still calls it; take that out first" if callers else ""

    def _still_running(self) -> str:
        """A job keeps the epilog with which it began."""
        if self._unreachable():
            return ""
        said = self.client.run_sync("qstat", "-u", "*", "-s", "rs", "-xml").stdout
        here = {row.job for row in records.rows(said) if among(self._host, [row.host])}
        jobs = ", ".join(sorted(here)[:5])
        return f"jobs run here that would miss it ({jobs}); again when they have ended" if here else ""

    def _unreachable(self) -> bool:
        """A cell that is gone calls nothing."""
        try:
            self.client.run_sync("qconf", "-sconf")
        except QtandemError:
            return True
        return False

    def _constants(self) -> Mapping[str, str | int | float | Iterable[str]]:
        daemon, timing = self._settings.daemon, self._settings.timing
        natives = [one.native for one in self._catalog.resources.values()]
        starter = {
            "qtandem_hooks": str(self.hooks),
            "qtandem_python": _python(),
            "qtandem_runs": str(daemon.runtime_dir / "runs"),
            "qtandem_site": self.section.options.get("starter", ""),
        }
        return {
            **starter,
            "CLUSTER": self.section.cluster,
            "SOCKET": str(daemon.socket),
            "RUNTIME": str(daemon.runtime_dir),
            "BEAT": str(daemon.runtime_dir / "heartbeat.gridengine"),
            "NAMES": str(daemon.runtime_dir / "names"),
            "RUNS": str(daemon.runtime_dir / "runs"),
            "HOOKS": str(self.hooks),
            "PYTHON": _python(),
            "ROOT": self.client.root,
            "CELL": self.client.cell,
            "QDEL": self._program("qdel"),
            "SHEPHERDS": self.client.shepherds(),
            "DEADLINE_MS": round(timing.submit_ms),
            "SITE_JSV": self.section.options.get("jsv", ""),
            "KNOWN": natives,
            "LIMIT": round(timing.deadman_s),
            "PAUSE": 30,
            "REFUSED_PAUSE_S": 30,
            "CALL_S": 10,
            # Sensors are closed by then, so that a job which waits again does not start at once.
            "DAEMON_DOWN_S": round(timing.deadman_s) + 10,
            "TOTAL_S": round(2 * max(timing.no_requeue_wait_s, timing.releasing_wait_s)) + 60,
        }

    def _program(self, name: str) -> str:
        return shutil.which(self.client.argv(name)[0]) or f"/usr/bin/{name}"


def _python() -> str:
    """The system's interpreter: hooks must not depend on an environment of ours."""
    for path in ("/usr/bin/python3", "/usr/libexec/platform-python"):
        if Path(path).exists():
            return path
    return shutil.which("python3") or "/usr/bin/python3"

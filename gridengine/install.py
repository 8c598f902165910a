"""Installs Grid Engine's side on one host: hook files, and on the master what the cell must know of them.

Scripts and settings of the site are never replaced: where one is in the way, the lines to add are shown. A manifest
records what was done, so that it can be undone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from qtandem.core import accounts, installers
from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among
from qtandem.core.installing import Change, ChangeState, Step, blocked, run_steps
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.gridengine import complexes, records, rights
from qtandem.gridengine.cell import Cell
from qtandem.gridengine.client import Client

SOURCE = Path(__file__).parent
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


class Installer(installers.Installer):
    """Grid Engine's installer on this host."""

    manager = "gridengine"
    absent = "Add it, with a name for the cell as `cluster`."
    source = SOURCE / "hooks"
    hook_files = HOOK_FILES
    client: Client

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        super().__init__(settings, catalog, host=host)
        self.client = Client(self.section)
        managers = rights.managers(settings.daemon)
        self.cell = Cell(self.client, catalog, self.files, self.hooks, self.jsv_user(), managers)
        twice = complexes.taken_twice([one.native for one in catalog.resources.values()])
        if twice:
            message = f"The complex {', '.join(sorted(twice))} would have two meanings"
            raise QtandemError("bad-config", message, remedy="Give one of the QPUs another `native` name.")

    def undo(self) -> list[Change]:
        """Take back what was installed; not while a job asks for a QPU."""
        done = run_steps(self.cell.undo_steps())
        return done + run_steps(self._file_removals(after=done))

    def is_master(self) -> bool:
        """Whether qmaster runs on this host, by act_qmaster or by the configuration's control_hosts."""
        return among(self.host, [*self.client.master(), *self.section.control_hosts])

    def jsv_user(self) -> str:
        """Whom qmaster runs the JSV as: a service user, so that the daemon takes its word."""
        users = [user for user in self.section.service_users if user != "root"]
        return users[0] if users else "root"

    def launched(self) -> accounts.Commands:
        return rights.commands(self.section)

    def _steps(self) -> list[Step]:
        steps = self._hook_file_steps() + self._launcher_steps()
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
        return blocked(removals, why) if why else removals

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
        here = {row.job for row in records.rows(said) if among(self.host, [row.host])}
        jobs = ", ".join(sorted(here)[:5])
        return f"jobs run here that would miss it ({jobs}); again when they have ended" if here else ""

    def _unreachable(self) -> bool:
        """A cell that is gone calls nothing."""
        try:
            self.client.run_sync("qconf", "-sconf")
        except QtandemError:
            return True
        return False

    def _constants(self) -> dict[str, str | int | float | Iterable[str]]:
        common = super()._constants()
        starter = {
            "qtandem_hooks": common["HOOKS"],
            "qtandem_python": common["PYTHON"],
            "qtandem_runs": common["RUNS"],
            "qtandem_site": self.section.options.get("starter", ""),
        }
        return {
            **common,
            **starter,
            "ROOT": self.client.root,
            "CELL": self.client.cell,
            "QDEL": self._program("qdel"),
            "SHEPHERDS": self.client.shepherds(),
            "SITE_JSV": self.section.options.get("jsv", ""),
            "KNOWN": [one.native for one in self.catalog.resources.values()],
        }

    def _program(self, name: str) -> str:
        return shutil.which(self.client.argv(name)[0]) or f"/usr/bin/{name}"

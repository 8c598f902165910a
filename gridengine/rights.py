"""Who has rights in the cell for us, and what the daemon may have the launcher start of Grid Engine's commands: what
`manager.py` types, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from qtandem.core import accounts
from qtandem.core.accounts import MORE, Commands
from qtandem.core.settings import DaemonSettings
from qtandem.gridengine.complexes import PREFIX
from qtandem.gridengine.holds import COMMENT, UNTIL
from qtandem.gridengine.manager import LEASE, RUNTIME, Client, GridEngineSettings


def commands(settings: GridEngineSettings) -> Commands:
    """The section of root's file for this cell."""
    shared = settings.options.get("runtime") or str(RUNTIME)
    allow = {
        "qconf": (
            ("-se", "global"),
            ("-sc",),
            ("-mattr", "exechost", "complex_values", f"{PREFIX}*", "global"),
            ("-Mc", f"{shared}/complexes.*"),
            ("-tsm",),
        ),
        "qhost": (("-F", f"{PREFIX}*", "-xml"),),
        "qstat": (("-j", "*", "-xml"), ("-u", "*", "-s", "*", MORE)),
        "qalter": (
            ("-h", "o", "-ac", f"{COMMENT}=*", "*"),
            ("-h", "s", "-ac", f"{UNTIL}=*", "*"),
            ("-h", "S", "-dc", UNTIL, "*"),
            ("-ac", f"{LEASE}=*", "*"),
        ),
        "qmod": (("-rj", "*"),),
    }
    return Commands("gridengine", Client(settings).environment, {name: _path(settings, name) for name in allow}, allow)


def managers(daemon: DaemonSettings) -> tuple[str, ...]:
    """Users who must be managers of the cell: who runs the daemon's commands, and who the dead-man is."""
    return tuple(dict.fromkeys((accounts.publisher(daemon), accounts.PUBLISHER)))


def _path(settings: GridEngineSettings, name: str) -> str:
    if settings.bin_dir:
        return str(Path(settings.bin_dir) / name)
    return shutil.which(name) or f"/usr/bin/{name}"

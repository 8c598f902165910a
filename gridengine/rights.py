"""Who has rights in the cell for us, and what the daemon may have the launcher start of Grid Engine's commands: what
`manager.py` types, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

from qtandem.core import accounts
from qtandem.core.accounts import EXACT, MORE, Commands, program
from qtandem.core.resources import NATIVE
from qtandem.core.settings import DaemonSettings
from qtandem.gridengine import define
from qtandem.gridengine.client import Client, GridEngineSettings
from qtandem.gridengine.complexes import PREFIX
from qtandem.gridengine.holds import COMMENT, UNTIL
from qtandem.gridengine.manager import LEASE

# A job, or a task of an array: names, patterns and "all" would be other people's jobs.
_TARGET = f"{EXACT}[0-9]+([.][0-9]+)?"


def commands(settings: GridEngineSettings) -> Commands:
    """The section of root's file for this cell."""
    allow: dict[str, tuple[tuple[str, ...], ...]] = {
        "qconf": (
            ("-se", "global"),
            ("-mattr", "exechost", "complex_values", _list_of(f"{PREFIX}{NATIVE.pattern}=[0-9]+"), "global"),
            ("-tsm",),
        ),
        "qhost": (("-F", _list_of(f"{PREFIX}{NATIVE.pattern}"), "-xml"),),
        "qstat": (("-j", _list_of("[0-9]+"), "-xml"), ("-u", "*", "-s", "*", MORE)),
        "qalter": (
            ("-h", "o", "-ac", f"{COMMENT}=*", _TARGET),
            ("-h", "s", "-ac", f"{UNTIL}=*", _TARGET),
            ("-h", "S", "-dc", UNTIL, _TARGET),
            ("-ac", f"{LEASE}=*", _TARGET),
        ),
        "qmod": (("-rj", _TARGET),),
    }
    paths = {name: program(settings.bin_dir, name) for name in allow}
    # It looks for qconf itself.
    folder = str(Path(paths["qconf"]).parent)
    path = {} if settings.bin_dir or folder in ("/usr/bin", "/bin") else {"PATH": f"{folder}:/usr/bin:/bin"}
    paths[define.PROGRAM] = sys.executable
    allow[define.PROGRAM] = ((*define.arguments(settings.bin_dir, ())[:-1], _list_of(NATIVE.pattern)),)
    return Commands("gridengine", {**Client(settings).environment, **path}, paths, allow)


def managers(daemon: DaemonSettings) -> tuple[str, ...]:
    """Users who must be managers of the cell: who runs the daemon's commands, and who the dead-man is."""
    return tuple(dict.fromkeys((accounts.publisher(daemon), accounts.PUBLISHER)))


def _list_of(one: str) -> str:
    """A pattern for lists with commas, whose every part is such a one."""
    return f"{EXACT}{one}(,{one})*"

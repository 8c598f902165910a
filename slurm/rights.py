"""What the daemon may have the launcher start of Slurm's commands: what `manager.py` and `placing.py` type, no more."""

from __future__ import annotations

import shutil
from pathlib import Path

from qtandem.core.accounts import MORE, Commands
from qtandem.slurm.commands import SlurmSettings, environment


def commands(settings: SlurmSettings) -> Commands:
    """The section of root's file for this cluster."""
    server = f"server={settings.server}"
    change = ("-i", "modify", "resource", "where", "name=*", server, "set")
    allow = {
        "scontrol": (
            ("-o", "show", "lic"),
            ("uhold", "*"),
            ("requeuehold", "*"),
            ("update", "jobid=*", "comment=*"),
            ("update", "jobid=*", "starttime=now*"),
            ("update", "jobid=*", "licenses=*"),
            ("show", "nodes", "--json"),
            ("show", "partitions", "--json"),
            ("show", "reservations", "--json"),
            ("show", "config"),
            ("update", "jobid=*", "reqnodelist=*"),
            ("update", "jobid=*", "excnodelist=*"),
            ("update", "jobid=*", "nice=*"),
        ),
        "sacctmgr": (
            (*change, "lastconsumed=*"),
            (*change, "count=*", "lastconsumed=*"),
            ("-i", "add", "resource", "name=*", server, MORE),
        ),
        "squeue": ((MORE,),),
        "sbatch": (("--test-only", MORE),),
    }
    return Commands("slurm", environment(settings), {name: _path(settings, name) for name in allow}, allow)


def _path(settings: SlurmSettings, name: str) -> str:
    if settings.bin_dir:
        return str(Path(settings.bin_dir) / name)
    return shutil.which(name) or f"/usr/bin/{name}"

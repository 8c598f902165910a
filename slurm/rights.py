"""What the daemon may have the launcher start of Slurm's commands: what `manager.py` and `placing.py` type, no more."""

from __future__ import annotations

from qtandem.core.accounts import MORE, Commands, program
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
    return Commands("slurm", environment(settings), {name: program(settings.bin_dir, name) for name in allow}, allow)

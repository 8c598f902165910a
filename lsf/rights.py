"""What the daemon may have the launcher start of LSF's commands: what `manager.py` types, and nothing else."""

from __future__ import annotations

from qtandem.core.accounts import MORE, Commands, program
from qtandem.lsf import site
from qtandem.lsf.manager import LsfSettings

JOB = "[1-9]*"


def commands(settings: LsfSettings) -> Commands:
    """The section of root's file for this cluster."""
    path = site.conf_path(settings.options)
    conf = site.conf(path)
    folder = settings.bin_dir or conf.get("LSF_BINDIR", "")
    allow = {
        "lsload": (("-s",),),
        "bhosts": (("-s",),),
        "bjobs": (("-u", "all", MORE),),
        "bstop": ((JOB,),),
        "bresume": ((JOB,),),
        "bpost": (("-d", "*", JOB),),
    }
    return Commands("lsf", site.environment(path, conf), {name: program(folder, name) for name in allow}, allow)

"""Who has rights in PBS for us, and what the daemon may have the launcher start."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from qtandem.core import accounts
from qtandem.core.accounts import Commands
from qtandem.core.settings import Settings
from qtandem.pbs.apart import PROGRAM, arguments
from qtandem.pbs.child import COMMANDS
from qtandem.pbs.manager import PbsSettings, way


def commands(settings: PbsSettings) -> Commands:
    """The section of root's file: the process that speaks to PBS, which checks what it is told."""
    how, place = way(settings)
    environment, conf = {"LC_ALL": "C"}, settings.options.get("conf", "")
    if conf:
        environment["PBS_CONF_FILE"] = conf
    found = shutil.which("qstat") if (how, place) == (COMMANDS, "") else None
    if found:
        environment["PATH"] = f"{Path(found).parent}:/usr/bin:/bin"
    return Commands("pbs", environment, {PROGRAM: sys.executable}, {PROGRAM: (arguments(how, place),)})


def managers(settings: Settings, host: str) -> Sequence[str]:
    """The managers of PBS that we need, `user@host`: for the daemon, and for the dead-man on the server's `host`."""
    daemon_host = settings.relay.server.rpartition(":")[0] or host
    return list(dict.fromkeys((f"{accounts.publisher(settings.daemon)}@{daemon_host}", f"{accounts.PUBLISHER}@{host}")))

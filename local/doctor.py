"""Is the queue of this machine as it must be? Reads and asks only."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.core.installing import Check
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.local.manager import default_folder
from qtandem.local.sensors import SensorFile

RUN = "python -m qtandem.local.command run"


def check(settings: Settings, catalog: Catalog) -> list[Check]:
    """All checks, in the order in which one would mend them."""
    manager = settings.managers.get("local")
    if manager is None:
        return [Check("configuration", False, "there is no section [managers.local]", "Add it to qtandem.toml.")]
    named = manager.options.get("state_dir")
    folder = Path(named) if named else default_folder()
    return [_folder(folder), _daemon(settings.daemon.socket), _runner(folder), *_sensors(folder, catalog)]


def _folder(folder: Path) -> Check:
    try:
        info = folder.stat()
    except OSError as error:
        return Check("folder", False, f"{folder}: {error.strerror}", f"Start the daemon and the runner: {RUN}")
    private = not stat.S_IMODE(info.st_mode) & 0o077
    if private and os.access(folder, os.W_OK):
        return Check("folder", True, str(folder))
    detail = f"{folder} can be entered by others" if not private else f"{folder} cannot be written"
    return Check("folder", False, detail, f"chmod 700 {folder}, as its owner")


def _daemon(socket: Path) -> Check:
    try:
        Daemon(socket, deadline_s=3.0).get("healthz")
    except QtandemError as error:
        return Check("daemon", False, error.one_line(), "Start it: qtandem daemon run")
    return Check("daemon", True, f"{socket} answers")


def _runner(folder: Path) -> Check:
    """A runner holds the lock on its file for as long as it lives."""
    try:
        with open(folder / "runner.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Check("runner", True, "a runner is there")
    except OSError:
        pass
    return Check("runner", False, "no runner is there: jobs pend", f"Start it: {RUN}")


def _sensors(folder: Path, catalog: Catalog) -> list[Check]:
    try:
        seen = SensorFile(folder / "sensors.json").read()
    except QtandemError as error:
        return [Check("sensors", False, error.one_line(), "Start the daemon: it writes them anew.")]
    checks = []
    for resource in catalog.resources.values():
        value = seen.get(resource.native)
        detail = f"{value.open} of {value.total} slots open" if value else "was never set, so it counts as closed"
        fix = "" if value else "Start the daemon, with the queue's folder as state_dir."
        checks.append(Check(f"sensor {resource.native}", value is not None, detail, fix))
    return checks

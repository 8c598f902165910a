"""`qtandem daemon`."""

from __future__ import annotations

import os
import signal
import socket
import struct
from typing import Annotated

import typer

from qtandem.daemons.commands.options import ConfigPath, Json, group

app = group("The daemon qtandemd.")


@app.command()
def run(config: ConfigPath = "") -> None:
    """Run the daemon in the foreground, as the command qtandemd does."""
    from qtandem.daemons import qtandemd

    raise typer.Exit(qtandemd.main(["--config", config] if config else []))


@app.command()
def status(json: Json = False) -> None:
    """Whether the daemon is healthy: sensors, workers, leases, problems. Exit status 5 if it is not."""
    from qtandem.core.client.calls import as_object
    from qtandem.core.errors import EXIT_SITE
    from qtandem.daemons.commands.output import api, print_json

    daemon = api(5.0)
    health = as_object(daemon.get("healthz"))
    if json:
        print_json(health)
    else:
        word = "healthy" if health["healthy"] else "not healthy"
        print(f"qtandemd {health['version']} at {daemon.path}: {word}")
        print(f"  {health['leases_open']} open leases, {health['workers']} workers")
        for name, state in health["publishers"].items():
            print(f"  sensors of {name}: {state}")
        for problem in health["problems"]:
            print(f"  problem: {problem}")
    if not health["healthy"]:
        raise typer.Exit(EXIT_SITE)


@app.command()
def reload(
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing when it was asked.")] = False,
) -> None:
    """Have the daemon read its configuration again. A wrong one is refused, and the last good one stays in force."""
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import api

    api(5.0).get("healthz")
    pid = _listener()
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError as error:
        remedy = "As root: systemctl reload qtandemd"
        message = f"The daemon, process {pid}, belongs to another user"
        raise QtandemError("not-authorised", message, remedy=remedy) from error
    if not quiet:
        print(f"asked process {pid} to read its configuration; see its log, or: qtandem daemon status")


def _listener() -> int:
    """The process that listens on the daemon's socket, as the kernel knows it."""
    from qtandem.core.client.transport import default_socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(default_socket()))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])

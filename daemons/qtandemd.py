"""`qtandemd`: the command that runs the daemon. SIGHUP reloads, SIGTERM and SIGINT stop without loss."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from qtandem.core.background import Background
from qtandem.core.config import Configuration, load
from qtandem.core.errors import QtandemError
from qtandem.core.leases import cipher
from qtandem.daemons import logs
from qtandem.daemons.daemon import Daemon
from qtandem.daemons.sockets import raise_file_limit


async def run(configuration: Configuration) -> None:
    """Run a daemon until a signal ends it; raises what keeps it from starting."""
    daemon = Daemon(configuration)
    loop = asyncio.get_running_loop()
    reloads = Background()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: reloads.spawn(daemon.reload()))
    try:
        await daemon.open()
        await daemon.serve()
    finally:
        await daemon.close()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="qtandemd", description="Quantum processors for a workload manager.")
    made.add_argument(
        "--config", metavar="FILE", type=Path, help="qtandem.toml; default: the site's, or the user's own"
    )
    made.add_argument("--make-key", action="store_true", help="only make the master key, if there is none")
    return made


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        configuration = load(arguments.config)
        logs.setup(configuration.settings.daemon.log_level)
        if arguments.make_key:
            cipher.load(configuration.settings.daemon.master_key)
            return 0
        raise_file_limit()
        asyncio.run(run(configuration))
    except QtandemError as error:
        return logs.ended("qtandemd", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

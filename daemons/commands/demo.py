"""`qtandem demo`."""

from __future__ import annotations

import typer

from qtandem.daemons.commands.options import Json


def demo(json: Json = False) -> None:
    """The main job on this machine, on simulated QPUs, without root, Docker or a cluster."""
    from qtandem.daemons.demo import run

    if not run(as_json=json):
        raise typer.Exit(1)

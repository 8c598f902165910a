"""Managers by name: the in-tree table first, entry points of the group `qtandem.managers` second."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from qtandem.core.errors import QtandemError
from qtandem.core.launching import Launcher
from qtandem.core.managers import Manager

MANAGERS: dict[str, str] = {
    "slurm": "qtandem.slurm.manager:SlurmManager",
    "gridengine": "qtandem.gridengine.manager:GridEngineManager",
    "pbs": "qtandem.pbs.manager:PbsManager",
    "lsf": "qtandem.lsf.manager:LsfManager",
    "local": "qtandem.local.manager:LocalManager",
}
GROUP = "qtandem.managers"


def names() -> list[str]:
    """All managers that can be built, in order."""
    return sorted({*MANAGERS, *(entry.name for entry in entry_points(group=GROUP))})


def build(name: str, settings: Any, natives: Mapping[str, str], launcher: Launcher | None = None) -> Manager:
    """Construct the manager `name` with its settings and the native names; raises `bad-config`.

    With a launcher, a class that says `launchable` is also given how to `start` its commands.
    """
    made = _load(name)
    if launcher is not None and getattr(made, "launchable", False):
        return cast(Manager, made(settings, natives, start=launcher.commands(name)))
    return cast(Manager, made(settings, natives))


def package(name: str) -> str:
    """The package that a manager's `manager` module is in; raises `bad-config`."""
    return _path(name).partition(":")[0].rpartition(".")[0]


def _path(name: str) -> str:
    path = MANAGERS.get(name) or next((entry.value for entry in entry_points(group=GROUP) if entry.name == name), None)
    if path is None:
        raise QtandemError(
            "bad-config", f"There is no manager {name!r}", remedy=f"The managers are {', '.join(names())}."
        )
    return path


def _load(name: str) -> Any:
    module, _, attribute = _path(name).partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise QtandemError("bad-config", f"The manager {name!r} cannot be loaded", cause=str(error)) from error

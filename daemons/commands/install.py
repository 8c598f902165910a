"""`qtandem install`, `uninstall` and `doctor`: a workload manager's side on this host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qtandem.daemons.commands.options import ConfigPath, Json

if TYPE_CHECKING:
    from qtandem.core.installing import Change, Check

ManagerName = Annotated[str, typer.Argument(metavar="MANAGER", help="slurm, gridengine, pbs, lsf or local.")]
Apply = Annotated[bool, typer.Option("--apply", help="Make the changes; else they are only shown.")]


def install(manager: ManagerName, apply: Apply = False, config: ConfigPath = "", json: Json = False) -> None:
    """Show what a manager's host needs, and with --apply make it so. Site files are never edited."""
    installer = _part(manager, "install", "Installer")(*_site(config))
    changes = installer.changes()
    _show(manager, changes, as_json=json, applies=apply)
    if apply:
        _outcome(manager, changes, installer.apply(changes), as_json=json)


def uninstall(manager: ManagerName, apply: Apply = False, config: ConfigPath = "", json: Json = False) -> None:
    """Show what `install` made on this host, and with --apply take it back."""
    installer = _part(manager, "install", "Installer")(*_site(config))
    changes = installer.removals()
    _show(manager, changes, as_json=json, applies=apply)
    if apply:
        _outcome(manager, changes, installer.undo(), as_json=json)


def doctor(manager: ManagerName, config: ConfigPath = "", json: Json = False) -> None:
    """Check a manager's side on this host. Exit status 5 if something is wrong."""
    from dataclasses import asdict

    from qtandem.core.errors import EXIT_SITE
    from qtandem.daemons.commands.output import print_json

    checks: list[Check] = _part(manager, "doctor", "check")(*_site(config))
    ok = all(check.ok is not False for check in checks)
    if json:
        print_json({"manager": manager, "ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            word = {True: "ok", False: "FAULT", None: "-"}[check.ok]
            print(f"{word:6} {check.name}{f': {check.detail}' if check.detail else ''}")
            if check.ok is False and check.fix:
                print(f"       {check.fix}")
    if not ok:
        raise typer.Exit(EXIT_SITE)


def _site(config: str) -> tuple[Any, Any]:
    """Settings and catalog; a resource that a fault costs would be missed without a word, so faults are told."""
    from qtandem.core.config import load

    loaded = load(Path(config) if config else None, secrets=False)
    for problem in loaded.problems:
        print(problem, file=sys.stderr)
    return loaded.settings, loaded.catalog


def _part(manager: str, module: str, attribute: str) -> Any:
    """What a manager's folder has beside its port; raises `unsupported` where it needs none."""
    from importlib import import_module

    from qtandem.core.errors import QtandemError
    from qtandem.daemons import registry

    path = f"{registry.package(manager)}.{module}"
    try:
        return getattr(import_module(path), attribute)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise QtandemError("unsupported", f"{manager} has nothing to {module}", remedy="") from error


def _show(manager: str, changes: Sequence[Change], *, as_json: bool, applies: bool) -> None:
    """The changes before any is made; in JSON only where nothing follows, for one object is one answer."""
    from qtandem.core.installing import ChangeState

    if as_json:
        if not applies:
            _print_changes(manager, changes, applied=False)
        return
    for change in changes:
        _line(change)
    todo = sum(change.state is ChangeState.TODO for change in changes)
    if not applies:
        _left(changes)
        what = "1 change; make it" if todo == 1 else f"{todo} changes; make them"
        print(f"{what} with --apply" if todo else "nothing to change")


def _outcome(manager: str, before: Sequence[Change], after: Sequence[Change], *, as_json: bool) -> None:
    from qtandem.core.errors import EXIT_SITE
    from qtandem.core.installing import ChangeState

    if as_json:
        _print_changes(manager, after, applied=True)
    else:
        tried = {change.id for change in before if change.state is ChangeState.TODO}
        made = [change for change in after if change.id in tried]
        print("\napplied:" if made else "\nnothing to apply")
        for change in made:
            _line(change)
        _left(after)
    bad = (ChangeState.FAILED, ChangeState.BLOCKED)
    if any(change.state in bad and not change.optional for change in after):
        raise typer.Exit(EXIT_SITE)


def _left(changes: Sequence[Change]) -> None:
    """What the installer does not do, counted, since it stands further up."""
    from qtandem.core.installing import ChangeState

    words = {ChangeState.MANUAL: "for your hand (manual)", ChangeState.BLOCKED: "not possible yet (blocked)"}
    ours = [change for change in changes if not (change.optional and change.state is ChangeState.MANUAL)]
    counts = {word: sum(change.state is state for change in ours) for state, word in words.items()}
    if left := ", ".join(f"{number} {word}" for word, number in counts.items() if number):
        print(f"left: {left}, as said above")


def _line(change: Change) -> None:
    from qtandem.core.installing import ChangeState

    done = change.state is ChangeState.DONE
    print(f"{change.state:8} {change.title}{' (optional)' if change.optional and not done else ''}")
    for line in [] if done else change.detail.splitlines():
        print(f"           {line}")


def _print_changes(manager: str, changes: Sequence[Change], *, applied: bool) -> None:
    from qtandem.daemons.commands.output import print_json

    print_json({"manager": manager, "applied": applied, "changes": [change.to_json() for change in changes]})

"""`qtandem config`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qtandem.daemons.commands.options import ConfigPath, Json, group

if TYPE_CHECKING:
    from qtandem.core.config import Configuration
    from qtandem.core.problems import Problem

app = group("The configuration: check it, show it, start one.")


@app.command()
def check(config: ConfigPath = "", json: Json = False) -> None:
    """One line a fault: path, key, what is wrong, fix. Exit status 5 if an entry cannot be used."""
    from qtandem.core.config import default_path
    from qtandem.core.errors import EXIT_SITE
    from qtandem.daemons.commands.output import print_json

    path = Path(config) if config else default_path()
    loaded, lines, problems = _checked(config)
    fatal = loaded is None or any(problem.fatal for problem in problems)
    if json:
        rows = [_row(problem) for problem in problems] if loaded else [{"text": line} for line in lines]
        print_json({"path": str(path), "ok": not fatal, "problems": rows})
    else:
        for line in lines:
            print(line)
        if loaded is not None and not lines:
            read = loaded.path or "no qtandem.toml, all defaults"
            print(f"ok: {read}, {len(loaded.catalog.resources)} resources, {len(loaded.catalog.classes)} classes")
    if fatal:
        raise typer.Exit(EXIT_SITE)


@app.command()
def show(config: ConfigPath = "", json: Json = False) -> None:
    """What is in force, defaults included. No secret is shown: keys of vendors are only counted."""
    from qtandem.core.config import load
    from qtandem.daemons.commands.output import print_json
    from qtandem.daemons.commands.toml import document, plain

    loaded = load(Path(config) if config else None)
    settings = plain(loaded.settings)
    resources: dict[str, dict[str, Any]] = {
        resource.name: {
            "type": resource.type,
            "native": resource.native,
            "slots": resource.slots,
            "credentials": resource.credentials,
            "has_provider": resource.has_provider,
            "settings": sorted(resource.settings),
        }
        for resource in loaded.catalog.resources.values()
    }
    if json:
        print_json({"path": str(loaded.path) if loaded.path else None, "settings": settings, "resources": resources})
        return
    print(f"# read from {loaded.path or 'no file: all defaults'}")
    print(document(settings), end="")
    print("\n# resources in force, with the names of their settings")
    for name, row in resources.items():
        keys = ", ".join(row["settings"]) or "no settings"
        print(f"# {name}: {row['type']}, native {row['native']}, {row['slots']} slots, {row['credentials']}; {keys}")


@app.command()
def example() -> None:
    """A qtandem.toml with every key, its default and its meaning, to start from."""
    from qtandem.daemons.commands.toml import example as text

    print(text(), end="")


def _checked(config: str) -> tuple[Configuration | None, list[str], tuple[Problem, ...]]:
    from qtandem.core.config import load
    from qtandem.core.errors import QtandemError

    try:
        loaded = load(Path(config) if config else None)
    except QtandemError as error:
        return None, (error.cause or error.message).splitlines(), ()
    problems = (*loaded.problems, *_unusable(loaded))
    return loaded, [str(problem) for problem in problems], problems


def _unusable(loaded: Configuration) -> Iterator[Problem]:
    """What would keep the daemon or a relay from starting, although the file can be read."""
    from difflib import get_close_matches

    from qtandem.core.errors import QtandemError
    from qtandem.core.problems import Problem
    from qtandem.core.runs import valid_cluster
    from qtandem.daemons import enrol, registry

    path, settings, known = loaded.path or Path("qtandem.toml"), loaded.settings, registry.names()
    for name, manager in settings.managers.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]}?" if near else f"The managers are {', '.join(known)}."
            yield Problem(path, f"managers.{name}", "there is no such manager", fix)
        elif name != "local" and not valid_cluster(manager.cluster):
            message = f"{manager.cluster!r} is no name of a cluster" if manager.cluster else "is not set"
            fix = 'Write cluster = "NAME", as the manager calls it, else any name.'
            yield Problem(path, f"managers.{name}.cluster", message, fix)
    daemon = settings.daemon
    addresses = {
        "daemon.listen": daemon.listen,
        "daemon.metrics": daemon.metrics,
        "daemon.proxy": daemon.proxy,
        "relay.server": settings.relay.server,
    }
    for key, address in addresses.items():
        try:
            if address:
                enrol.split_address(address)
        except QtandemError as error:
            yield Problem(path, key, error.message, "Write HOST:PORT.")
    if not settings.relay.server:
        yield from _unserved(loaded)


def _unserved(loaded: Configuration) -> Iterator[Problem]:
    """QPUs that stay closed, since no worker of this host can speak to their vendor. No vendor's code is loaded."""
    from functools import cache

    from qtandem.core.problems import Problem
    from qtandem.core.providers.base import EXTRAS

    path = loaded.path or Path("qtandem.toml")
    missing_of = cache(_missing)
    for resource in loaded.catalog.resources.values():
        extra = EXTRAS.get(resource.type, "")
        missing = missing_of(extra) if extra else []
        if missing:
            message = f"its type {resource.type} needs qtandem's extra {extra}; not installed: {', '.join(missing)}"
            fix = f"Beside the daemon: pip install 'qtandem[{extra}]'"
            yield Problem(path, f"resources.{resource.name}", message, fix, fatal=False)


def _missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed; none where qtandem itself runs from its checkout."""
    import re
    from importlib import metadata

    missing = []
    try:
        wanted = metadata.requires("qtandem") or []
    except metadata.PackageNotFoundError:
        return []
    for line in wanted:
        package, _, marker = line.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker):
            name = re.split(r"[^\w.-]", package.strip(), maxsplit=1)[0]
            try:
                metadata.version(name)
            except metadata.PackageNotFoundError:
                missing.append(name)
    return missing


def _row(problem: Problem) -> dict[str, object]:
    return {
        "path": str(problem.path),
        "key": problem.key,
        "message": problem.message,
        "fix": problem.fix,
        "fatal": problem.fatal,
    }

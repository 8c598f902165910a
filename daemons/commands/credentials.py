"""`qtandem credentials`: your own keys at vendors, for your own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qtandem.daemons.commands.options import Json, group

app = group("Your own keys at vendors, where a site lets users bring them. They are used for your runs alone.")


@app.command()
def add(
    resource: Annotated[str, typer.Argument(help="Name of the QPU.")],
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=PATH", help="Take a key from a file instead of asking for it; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Register a key, or put a new one in place of the old. What is typed is not shown; nothing is taken from argv."""
    from qtandem.core.client.calls import as_object
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import api, print_json

    daemon = api()
    row = _row(as_object(daemon.get("resources")), resource)
    wanted = list(row.get("user_keys") or ())
    if not wanted:
        raise QtandemError(
            "not-allowed",
            f"{row['name']} takes no keys of users: the site's own is used",
            remedy="You need none: submit your job.",
        )
    given = _files(file or [])
    values = {key: given[key] if key in given else _asked(key) for key in [*wanted, *(set(given) - set(wanted))]}
    answer = daemon.post("credentials", body={"resource": str(row["name"]), "values": values})
    if json:
        print_json(answer)
        return
    print(f"registered for {row['name']}: it is used for your own runs and claims, and is shown to nobody")


@app.command("list")
def listing(json: Json = False) -> None:
    """For which QPUs you have registered keys; the keys themselves are never shown."""
    from qtandem.core.client.calls import as_rows
    from qtandem.daemons.commands.output import api, moment, print_json, print_table

    rows = as_rows(api().get("credentials"), "credentials")
    if json:
        print_json({"credentials": rows})
        return
    print_table(
        ["RESOURCE", "KEYS", "SINCE", "USED"],
        ([row["resource"], ", ".join(row["keys"]), moment(row["added_at"]), row["used"]] for row in rows),
        empty="no keys of yours",
    )


@app.command()
def remove(resource: Annotated[str, typer.Argument(help="Name of the QPU.")], json: Json = False) -> None:
    """Forget a key."""
    from qtandem.daemons.commands.output import api, print_json

    answer = api().delete("credentials", resource)
    if json:
        print_json(answer)


def _row(answer: dict[str, Any], name: str) -> dict[str, Any]:
    from qtandem.core.client.calls import as_rows
    from qtandem.core.errors import QtandemError

    for row in as_rows(answer, "resources"):
        if name in (row["name"], row["native"]):
            return row
    raise QtandemError("unknown-resource", f"There is no QPU named {name!r}")


def _files(given: list[str]) -> dict[str, str]:
    from qtandem.core.errors import QtandemError

    out: dict[str, str] = {}
    for text in given:
        key, equals, path = text.partition("=")
        if not equals or not path:
            raise QtandemError("bad-request", f"{text[:80]!r} is not KEY=PATH")
        try:
            out[key] = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise QtandemError("bad-request", f"{path} cannot be read", remedy="", cause=str(error)) from None
    return out


def _asked(key: str) -> str:
    """Typed without an echo, or a line of standard input."""
    import getpass
    import sys

    if sys.stdin.isatty():
        return getpass.getpass(f"{key}: ").strip()
    return sys.stdin.readline().strip()

"""`qtandem resources`."""

from __future__ import annotations

from typing import Annotated

import typer

from qtandem.daemons.commands.options import Json


def resources(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.")] = None,
    discover: Annotated[
        bool, typer.Option("--discover", help="What vendors list for dynamic resources; admins have them asked now.")
    ] = False,
    json: Json = False,
) -> None:
    """The QPUs and simulators, and how they are now."""
    if discover:
        _discovered(names or [], json)
        return
    from qtandem.core.client.calls import as_rows
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import api, print_json, print_table

    rows = as_rows(api().get("resources"), "resources")
    if names:
        known = {key for row in rows for key in (row["name"], row["native"])}
        for name in names:
            if name not in known:
                raise QtandemError("unknown-resource", f"There is no QPU named {name!r}")
        rows = [row for row in rows if row["name"] in names or row["native"] in names]
    if json:
        print_json({"resources": rows})
        return
    mapped = any(row["name"] != row["native"] for row in rows)
    columns = [
        "NAME",
        *(["NATIVE"] if mapped else []),
        "TYPE",
        "STATE",
        "FREE",
        "QUEUE",
        "WAIT",
        "QUBITS",
        "ERROR",
        "WHY",
    ]
    print_table(
        columns,
        (
            [
                row["name"],
                *([row["native"]] if mapped else []),
                row["type"],
                row["availability"],
                f"{row['free']}/{row['slots']}",
                row["queue"],
                _wait(row["wait_s"]),
                row["qubits"],
                row["two_qubit_error"],
                row["why"],
            ]
            for row in rows
        ),
        empty="no QPU is configured",
    )


def _discovered(names: list[str], json: bool) -> None:
    from qtandem.core.client.calls import as_rows
    from qtandem.daemons.commands.output import api, print_json, print_table

    rows = as_rows(api(120.0).get("discovered", now=1), "devices")
    rows = [row for row in rows if not names or row["name"] in names or row["template"] in names]
    if json:
        print_json({"devices": rows})
        return
    print_table(
        ["DEVICE", "FROM", "QUBITS", "SIMULATOR", "QUEUE", "STATUS", "RESOURCE", "WHY NOT"],
        (
            [row[key] for key in ("name", "template", "qubits", "simulator", "queue", "status", "resource", "why")]
            for row in rows
        ),
        empty="no dynamic resource is configured, or nothing is known yet",
    )


def _wait(seconds: float | None) -> str | None:
    from qtandem.core.verdicts import duration

    return None if seconds is None else duration(seconds)

"""`qtandem usage`."""

from __future__ import annotations

from typing import Annotated

import typer

from qtandem.daemons.commands.options import Json


def usage(
    since: Annotated[str, typer.Option(metavar="DATE|AGE", help="2026-01-31, or an age: 12h, 7d.")] = "",
    until: Annotated[str, typer.Option(metavar="DATE|AGE", help="As --since.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Only this user's runs.")] = "",
    account: Annotated[str, typer.Option(metavar="NAME", help="Only this account's runs.")] = "",
    resource: Annotated[str, typer.Option(metavar="NAME", help="Only runs on this QPU.")] = "",
    json: Json = False,
) -> None:
    """What runs used: time held, tasks, shots, QPU seconds, cost."""
    import time

    from qtandem.core.client.calls import as_rows
    from qtandem.daemons.commands.output import api, moment, print_json, print_table

    now = time.time()
    answer = api().get(
        "usage",
        since=moment_of(since, now),
        until=moment_of(until, now),
        user=user or None,
        account=account or None,
        resource=resource or None,
    )
    rows = as_rows(answer, "usage")
    if json:
        print_json({"usage": rows})
        return
    print_table(
        ["RUN", "USER", "ACCOUNT", "RESOURCE", "SLOTS", "STARTED", "HELD S", "TASKS", "SHOTS", "QPU S", "COST"],
        (
            [
                row["run"],
                row["user"],
                row["account"],
                row["resource"],
                row["slots"],
                moment(row["started_at"]),
                float(row["held_s"]),
                row["tasks"],
                row["shots"],
                row["usage_s"],
                None if row["cost"] is None else f"{row['cost']:g} {row['currency']}".strip(),
            ]
            for row in rows
        ),
        empty="nothing was used",
    )


def moment_of(text: str, now: float) -> float | None:
    """The Unix time of a local date (and time), or of an age before `now`; raises `bad-request`."""
    import re
    from datetime import datetime

    from qtandem.core.errors import QtandemError

    if not text:
        return None
    if age := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return now - int(age[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[age[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise QtandemError(
            "bad-request", f"{text!r} is no date and no age", remedy="Write 2026-01-31, 2026-01-31T08:00 or 7d."
        ) from None

"""`qtandem claim`: leases outside one job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qtandem.daemons.commands.options import Json, group

app = group("Leases outside one job, which a chain of jobs shares until they expire.")


@app.command()
def make(
    request: Annotated[str, typer.Argument(help="As --qpu takes it, for example ibm_fez:2.")],
    ttl: Annotated[str, typer.Option(metavar="TIME", help="How long it lives: 90s, 40m, 8h.")] = "",
    name: Annotated[str, typer.Option(help="A name to know it by.")] = "",
    json: Json = False,
) -> None:
    """Make a claim and print its id."""
    from qtandem.core.client.calls import as_object
    from qtandem.daemons.commands.output import api, print_json

    body: dict[str, object] = {"request": request, "name": name}
    if ttl:
        body["ttl_s"] = _seconds(ttl)
    claim = as_object(api(90.0).post("claims", body=body))
    print_json(claim) if json else print(claim["id"])


@app.command("list")
def listing(json: Json = False) -> None:
    """Claims that have not ended."""
    from qtandem.core.client.calls import as_rows
    from qtandem.daemons.commands.output import api, moment, print_json, print_table

    claims = as_rows(api().get("claims"), "claims")
    if json:
        print_json({"claims": claims})
        return
    print_table(
        ["ID", "NAME", "LEASES", "EXPIRES"],
        ([claim["id"], claim["name"], _leases(claim), moment(claim["expires_at"])] for claim in claims),
        empty="no claims",
    )


@app.command()
def end(id: Annotated[str, typer.Argument(metavar="ID", help="Claim id.")], json: Json = False) -> None:
    """End a claim and give its QPUs back."""
    from qtandem.daemons.commands.output import api, print_json

    answer = api().delete("claims", id)
    if json:
        print_json(answer)


def _leases(claim: dict[str, Any]) -> str:
    return ", ".join(f"{lease['resource']}:{lease['slots']} {lease['state']}" for lease in claim["leases"])


def _seconds(text: str) -> float:
    from qtandem.core.errors import QtandemError
    from qtandem.core.requests import seconds

    try:
        return seconds(text)
    except ValueError:
        raise QtandemError("bad-request", f"{text!r} is no time", remedy="Write 90s, 40m or 8h.") from None

"""`qtandem explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from qtandem.daemons.commands.options import Json


def explain(
    job: Annotated[str, typer.Argument(help="Job id: MANAGER:CLUSTER:JOBID[_INDEX], or the bare id.")],
    json: Json = False,
) -> None:
    """Why a job waits, or what it holds: the true cause in full."""
    from qtandem.core.client.calls import as_object
    from qtandem.daemons.commands.output import api, harmless, print_json

    answer = as_object(api().get("explain", job))
    if json:
        print_json(answer)
        return
    native = f" ({harmless(answer['native_reason'])})" if answer.get("native_reason") else ""
    print(f"{answer['job']}: {answer['state']}{native}")
    for line in answer.get("lines") or [f"{row['name']}: {row['why']}" for row in answer.get("resources", [])]:
        print(f"  {harmless(line)}")

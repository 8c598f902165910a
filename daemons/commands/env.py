"""`qtandem env`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from qtandem.daemons.commands.options import Json


def env(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Run or job id, or claim:ID; default: the job around this shell.")
    ] = "",
    json: Json = False,
) -> None:
    """Print a job's QPU variables as export lines, for: eval "$(qtandem env)"."""
    from qtandem.core.client.calls import as_object
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import api, print_json

    wanted = run or os.environ.get("QTANDEM_RUN", "") or _claimed(os.environ) or around(os.environ)
    if not wanted:
        # A login shell of an interactive job may know nothing of its job.
        mine = running(as_object(api().get("leases")), os.geteuid())
        if len(mine) != 1:
            named = f"qtandem env {' | '.join(mine)}" if mine else "qtandem env JOB"
            raise QtandemError("no-such-run", "This shell is in no job", remedy=f"Name the job: {named}")
        [wanted] = mine
    claim = wanted.removeprefix("claim:") if wanted.startswith("claim:") else None
    answer = as_object(
        api().get("runs", wanted, "environment") if claim is None else api().get("claims", claim, "environment")
    )
    if json:
        print_json(answer)
        return
    for line in exports(as_object(answer["env"])):
        print(line)


def running(leases: Mapping[str, object], uid: int) -> list[str]:
    """The runs of this user that hold QPUs now."""
    rows = leases.get("leases")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    owners = [str(row.get("owner")) for row in found if row.get("uid") == uid and row.get("state") == "held"]
    return sorted({owner.removeprefix("run ") for owner in owners if owner.startswith("run ")})


def around(environ: Mapping[str, str]) -> str:
    """The run or job that the variables of a shell tell of; empty outside a job."""
    if environ.get("QTANDEM_RUN"):
        return environ["QTANDEM_RUN"]
    job = environ.get("SLURM_JOB_ID", "")
    if environ.get("SLURM_ARRAY_JOB_ID") and environ.get("SLURM_ARRAY_TASK_ID"):
        job = f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    if job:
        cluster = environ.get("SLURM_CLUSTER_NAME")
        return f"slurm:{cluster}:{job}" if cluster else job
    if environ.get("SGE_CELL") and environ.get("JOB_ID"):
        task = environ.get("SGE_TASK_ID", "")
        return f"{environ['JOB_ID']}_{task}" if task.isdigit() else environ["JOB_ID"]
    if environ.get("PBS_JOBID"):
        job, _, rest = environ["PBS_JOBID"].partition(".")[0].partition("[")
        return f"{job}_{rest[:-1]}" if rest[:-1].isdigit() else job
    return environ.get("LOCAL_JOB_ID", "")


def _claimed(environ: Mapping[str, str]) -> str:
    return f"claim:{environ['QTANDEM_CLAIM']}" if environ.get("QTANDEM_CLAIM") else ""


def exports(variables: Mapping[str, object]) -> list[str]:
    """Lines that any POSIX shell evaluates to exactly these values; names that a shell cannot hold are left out."""
    import re
    import shlex
    import sys

    lines = []
    for name, value in sorted(variables.items()):
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            lines.append(f"export {name}={shlex.quote(str(value))}")
        else:
            print(f"qtandem: {name!r} is left out: no shell takes the name", file=sys.stderr)
    return lines

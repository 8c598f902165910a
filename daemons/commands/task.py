"""`qtandem task`: execute on a lease that is held."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qtandem.daemons.commands.options import Json, group

if TYPE_CHECKING:
    from qtandem.core.client.transport import Daemon

app = group("Execute tasks on a held lease, and follow them.")
Id = Annotated[str, typer.Argument(metavar="ID", help="Task id.")]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait no longer than this.")]


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="OpenQASM 2 or 3, or JSON of a primitive; - reads stdin.")],
    resource: Annotated[str, typer.Option(metavar="NAME", help="Default: the QPU of this job.")] = "",
    shots: Annotated[int, typer.Option(min=1, help="Shots of an OpenQASM program.")] = 1024,
    program_id: Annotated[str, typer.Option(metavar="ID", help="sampler or estimator, for JSON.")] = "sampler",
    wait: Annotated[bool, typer.Option(help="Wait for the result, or only print the task's id.")] = True,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Start a task and print its result."""
    import uuid
    from contextlib import suppress

    from qtandem.core.client.calls import as_object
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import api, print_json

    daemon = api()
    payload = _payload(_read(file), program_id, shots)
    claim = "" if "QTANDEM_RUN" in os.environ else os.environ.get("QTANDEM_CLAIM", "")
    call = {"resource": resource or _job_resource(), "claim": claim, "payload": payload, "key": uuid.uuid4().hex}
    started = as_object(daemon.post("tasks", body=call, deadline_s=60.0))
    if not wait:
        print_json(started) if json else print(started["id"])
        return
    try:
        ended = _follow(daemon, started["id"], timeout)
    except BaseException:
        with suppress(QtandemError):
            daemon.post("tasks", started["id"], "stop", body={}, deadline_s=5.0)
        raise
    _show_result(daemon, ended, json)


@app.command()
def status(id: Id, json: Json = False) -> None:
    """How a task stands."""
    from qtandem.core.client.calls import as_object
    from qtandem.daemons.commands.output import api, print_json

    task = as_object(api().get("tasks", id))
    print_json(task) if json else print(f"{task['state']}{': ' + task['reason'] if task.get('reason') else ''}")


@app.command()
def result(
    id: Id,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the task has ended.")] = False,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """The result of a task: counts as a table, else the vendor's text."""
    from qtandem.core.client.calls import as_object
    from qtandem.daemons.commands.output import api

    daemon = api()
    task = _follow(daemon, id, timeout) if wait else as_object(daemon.get("tasks", id))
    _show_result(daemon, task, json)


@app.command()
def logs(id: Id, json: Json = False) -> None:
    """What the vendor logged of a task."""
    from qtandem.core.client.calls import as_text
    from qtandem.daemons.commands.output import api, print_json

    text = as_text(api(60.0).get("tasks", id, "logs"))
    print_json({"id": id, "text": text}) if json else print(text.rstrip("\n"))


@app.command()
def stop(id: Id, json: Json = False) -> None:
    """Cancel a task if that is still possible."""
    from qtandem.daemons.commands.output import api, print_json

    answer = api().post("tasks", id, "stop", body={})
    if json:
        print_json(answer)


@app.command("list")
def listing(
    lease: Annotated[str, typer.Option(metavar="ID", help="Only tasks of this lease.")] = "",
    json: Json = False,
) -> None:
    """Your newest tasks, in the order of their start."""
    from qtandem.core.client.calls import as_rows
    from qtandem.daemons.commands.output import api, moment, print_json, print_table

    rows = as_rows(api().get("tasks", lease=lease or None), "tasks")
    if json:
        print_json({"tasks": rows})
        return
    print_table(
        ["ID", "RESOURCE", "STATE", "SHOTS", "CREATED", "USAGE S", "RUN", "REASON"],
        (
            [
                row["id"],
                row["resource"],
                row["state"],
                row["shots"],
                moment(row["created_at"]),
                row["usage_s"],
                row["run"],
                row["reason"],
            ]
            for row in rows
        ),
        empty="no tasks",
    )


def _follow(daemon: Daemon, id: str, timeout: float | None) -> dict[str, Any]:
    from qtandem.core.client.calls import wait_for_task
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import progress

    with progress(f"task {id}") as shown:
        task = wait_for_task(daemon, id, timeout, seen=lambda answer: shown.say(str(answer["state"])))
    if task["state"] not in ("completed", "failed", "cancelled"):
        raise QtandemError("task-not-ready", f"Task {id} is {task['state']} after {timeout:g} s")
    return task


def _show_result(daemon: Daemon, task: dict[str, Any], as_json: bool) -> None:
    import json

    from qtandem.core.client.calls import as_text
    from qtandem.core.client.errors import InvalidInputError
    from qtandem.core.client.results import counts
    from qtandem.core.errors import QtandemError
    from qtandem.daemons.commands.output import print_json, print_table

    if task["state"] in ("failed", "cancelled"):
        reason = f": {task['reason']}" if task.get("reason") else ""
        raise QtandemError(
            "task-failed", f"Task {task['id']} {task['state']}{reason}", remedy=f"See: qtandem task logs {task['id']}"
        )
    text = as_text(daemon.get("tasks", task["id"], "result", deadline_s=60.0))
    try:
        found = counts(text)
    except InvalidInputError:
        found = None
    if as_json:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        print_json({"task": task, "counts": found, "result": value})
        return
    if found is None:
        print(text)
        return
    total = sum(found.values()) or 1
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    print_table(["BITS", "COUNT", "SHARE"], ([bits, number, f"{number / total:.4f}"] for bits, number in ordered))


def _read(file: str) -> str:
    from qtandem.core.errors import QtandemError

    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise QtandemError("bad-request", f"{file} cannot be read: {error.strerror}", remedy="") from error
    except UnicodeDecodeError as error:
        raise QtandemError("bad-payload", f"{file} is not text") from error


def _payload(text: str, program_id: str, shots: int) -> dict[str, object]:
    """OpenQASM as it is; JSON as the input of a primitive, or as QRMI's `{"program_id", "parameters"}`."""
    import json

    from qtandem.core.client.types import qasm
    from qtandem.core.errors import QtandemError

    if not text.lstrip().startswith("{"):
        payload = qasm(text, shots)
        return {"kind": payload.kind, **payload.fields()}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise QtandemError("bad-payload", "The payload looks like JSON but is not", cause=str(error)) from error
    if "program_id" in document and "parameters" in document:
        program_id, text = str(document["program_id"]), json.dumps(document["parameters"])
    return {"kind": "qiskit-primitive", "program_id": program_id, "input": text}


def _job_resource() -> str:
    """The first QPU of the job around us; empty leaves the choice to the daemon."""
    from qtandem.core.client.environment import get_job_qpu_resources_and_types
    from qtandem.core.client.errors import QrmiError

    if "QTANDEM_RUN" not in os.environ:
        return ""
    try:
        names, _ = get_job_qpu_resources_and_types()
    except QrmiError:
        return ""
    return names[0] if names else ""

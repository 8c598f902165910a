"""Calls that both programs and the command line make, on top of the transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qtandem.core.client.dialogue import DEADLINE_S, Dialogue, now
from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError

POLL_S = 25.0
_FINAL = frozenset({"completed", "failed", "cancelled"})


def _unheard(_: Mapping[str, Any]) -> None:
    """Where nobody wants to know how a task stands in between."""


async def awaited_task(
    dialogue: Dialogue,
    task: str,
    timeout: float | None = None,
    *,
    seen: Callable[[Mapping[str, Any]], None] = _unheard,
) -> dict[str, Any]:
    """The task once it has ended, or as it is after `timeout` seconds; `seen` is told of every answer.

    The daemon holds each call until the task's state changes, so nothing sleeps here.
    """
    ends = None if timeout is None else dialogue.clock() + timeout
    while True:
        wait = POLL_S if ends is None else min(POLL_S, max(0.0, ends - dialogue.clock()))
        answer = as_object(await dialogue.get("tasks", task, wait=f"{wait:.3f}", deadline_s=wait + DEADLINE_S))
        seen(answer)
        if answer["state"] in _FINAL or (ends is not None and dialogue.clock() >= ends):
            return answer


def wait_for_task(
    daemon: Daemon,
    task: str,
    timeout: float | None = None,
    *,
    seen: Callable[[Mapping[str, Any]], None] = _unheard,
) -> dict[str, Any]:
    """`awaited_task` for a program that has nothing else to do."""
    return now(awaited_task(daemon.dialogue, task, timeout, seen=seen))


async def found_resource(dialogue: Dialogue, name: str) -> dict[str, Any]:
    """The resource's row by configured or native name; raises `unknown-resource`."""
    for row in as_rows(await dialogue.get("resources"), "resources"):
        if name in (row["name"], row["native"]):
            return row
    raise QtandemError("unknown-resource", f"There is no QPU named {name!r}")


def as_object(answer: object) -> dict[str, Any]:
    """The answer, if it is an object; raises `internal` else."""
    if not isinstance(answer, dict):
        raise QtandemError("internal", "qtandemd answered with something else than an object")
    return answer


def as_rows(answer: object, key: str) -> list[dict[str, Any]]:
    """The list in an answer, bare or under `key`."""
    rows = answer.get(key) if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise QtandemError("internal", f"qtandemd answered without {key}")
    return rows


def as_text(answer: object) -> str:
    """The text of an answer, bare or under `text`."""
    return answer if isinstance(answer, str) else str(as_object(answer)["text"])

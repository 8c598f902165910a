"""The process that speaks to PBS for the daemon, as the user who has rights there.

One JSON object a line in; for each, in order, a line with the number of bytes that follow, and an answer of that
many. With a launcher this is where the daemon's rights in PBS end, so each call is checked, not only passed on.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.pbs.clients import Client, Clients
from qtandem.pbs.port import Port
from qtandem.pbs.records import COMMENT_CHARS, Record

# Ways to speak to PBS: by libpbs at a path, or by the commands in a folder (empty: PATH).
LIBRARY, COMMANDS = "library", "commands"
_JOB = re.compile(r"[0-9]+(\[[0-9]*\])?(\.[A-Za-z0-9.-]+)?\Z")
_RESOURCE = re.compile(r"qpu_[A-Za-z0-9_]{1,60}\Z")
_STATES = re.compile(r"[A-Z]{1,16}\Z")


def _job(value: object) -> bool:
    return isinstance(value, str) and bool(_JOB.match(value))


def _resource(value: object) -> bool:
    return isinstance(value, str) and bool(_RESOURCE.match(value))


def _list_of(good: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(good, value))


def _values(value: object) -> bool:
    return isinstance(value, dict) and all(
        _resource(name) and type(slots) is int and slots >= 0 for name, slots in value.items()
    )


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= COMMENT_CHARS and value.isprintable()


# The calls of `Port` and what each argument must be.
CALLS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "server": {},
    "jobs": {"ids": _list_of(_job)},
    "asking": {
        "resources": _list_of(_resource),
        "states": lambda value: isinstance(value, str) and bool(_STATES.match(value)),
        "elements": lambda value: isinstance(value, bool),
    },
    "available": {"values": _values, "missing": _list_of(_resource)},
    "nudge": {},
    "hold": {"id": _job},
    "comment": {"id": _job, "text": _text},
    "eligible": {"id": _job, "at": lambda value: type(value) in (int, float)},
    "rerun": {"id": _job},
}


async def answer(port: Port, call: object) -> dict[str, Any]:
    """What one call gave, or why it gave nothing; never raises for what the other side sent."""
    try:
        if not isinstance(call, dict) or set(call) != {"call", "with"} or not isinstance(call["with"], dict):
            raise QtandemError("bad-request", "the call does not have its form")
        rules = CALLS.get(str(call["call"]))
        given = call["with"]
        if rules is None or set(rules) != set(given) or not all(rules[name](given[name]) for name in given):
            raise QtandemError("bad-request", f"{str(call['call'])[:40]!r} is not called like this")
        return {"ok": _plain(await getattr(port, call["call"])(**given))}
    except QtandemError as error:
        return {"code": error.code, "message": error.message, "cause": error.cause}


def _plain(found: Record | list[Record] | None) -> Any:
    if isinstance(found, list):
        return [_plain(each) for each in found]
    return {"name": found.name, "values": dict(found.values)} if isinstance(found, Record) else found


def port(how: str, place: str) -> Port:
    """The port that the command line names."""
    if how == LIBRARY:
        from qtandem.pbs.ifl import Library
        from qtandem.pbs.speaker import ByLibrary

        return ByLibrary(Library(Path(place)))
    return Clients(Client(place))


async def serve(used: Port) -> None:
    """Answer until the input ends."""
    while line := sys.stdin.buffer.readline():
        try:
            call = json.loads(line)
        except ValueError:
            call = None
        data = json.dumps(await answer(used, call)).encode()
        sys.stdout.buffer.write(b"%d\n" % len(data) + data)
        sys.stdout.buffer.flush()


def main(arguments: Sequence[str]) -> int:
    asyncio.run(serve(port(*arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process that speaks libpbs for the daemon: one JSON object a line in, one out, in order.

A call of libpbs has no deadline; this process is what is killed when one does not come back.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qtandem.pbs import ifl
from qtandem.pbs.ifl import Attribute, Command, Connection, Library, Object, Op, PbsError
from qtandem.pbs.port import FLAGS, JOB_ATTRIBUTES
from qtandem.pbs.records import Record

# After these the connection is of no more use.
BROKEN = {15010, 15011, 15031, 15033, ifl.NO_SERVER}


class Speaker:
    """Calls by name, over one connection that is made again when it broke."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._connection: Connection | None = None
        self._suffix = ""

    def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            handler: Callable[..., Any] = getattr(self, f"do_{call['call']}")
            return {"ok": handler(**call.get("with", {}))}
        except PbsError as error:
            if error.code in BROKEN:
                self._drop()
            return {"code": error.code, "text": error.text}

    def do_server(self) -> Any:
        return _plain([self._connected().server()])[0]

    def do_jobs(self, ids: list[str]) -> Any:
        found: list[Record] = []
        for id in ids:
            try:
                found += self._connected().jobs(self._full(id), JOB_ATTRIBUTES)
            except PbsError as error:
                if error.code not in (ifl.UNKNOWN_JOB, ifl.FINISHED):
                    raise
        return _plain(found)

    def do_asking(self, resources: list[str]) -> Any:
        found: dict[str, Record] = {}
        for resource in resources:
            chosen = [
                Attribute("job_state", "BHQTW", op=Op.EQ),
                Attribute("Resource_List", "0", resource, Op.GT),
            ]
            found |= {record.name: record for record in self._connected().select(chosen, JOB_ATTRIBUTES)}
        return _plain(list(found.values()))

    def do_available(self, values: dict[str, int], missing: list[str]) -> None:
        made = [Attribute("type", "long"), Attribute("flag", FLAGS)]
        for name in missing:
            # One that is there already is refused; whether all are there, the next call tells.
            with contextlib.suppress(PbsError):
                self._connected().manage(Command.CREATE, Object.RESOURCE, name, made)
        pairs = [Attribute("resources_available", str(value), name) for name, value in values.items()]
        self._connected().manage(Command.SET, Object.SERVER, "", pairs)

    def do_nudge(self) -> None:
        if self._connected().server(["scheduling"]).get("scheduling").lower() in ("true", "1"):
            self._connected().manage(Command.SET, Object.SERVER, "", [Attribute("scheduling", "True")])

    def do_hold(self, id: str) -> None:
        self._connected().hold(self._full(id), "s")

    def do_comment(self, id: str, text: str) -> None:
        self._connected().alter(self._full(id), [Attribute("comment", text)])

    def do_eligible(self, id: str, at: float) -> None:
        self._connected().alter(self._full(id), [Attribute("Execution_Time", str(int(at) + 1))])

    def do_rerun(self, id: str) -> None:
        self._connected().rerun(self._full(id))

    def do_submit(self, attributes: list[list[str]]) -> str:
        given = [Attribute(name, value, resource) for name, resource, value in attributes]
        return self._connected().submit(given)

    def do_run(self, id: str) -> None:
        self._connected().run(self._full(id))

    def do_delete(self, id: str) -> None:
        self._connected().delete(self._full(id))

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._library.connect()
            self._suffix = self._connection.server(["server_host"]).name
        return self._connection

    def _full(self, id: str) -> str:
        """The library takes ids with the server's name, which the commands add."""
        self._connected()
        return id if "." in id or not id else f"{id}.{self._suffix}"

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _plain(found: list[Record]) -> list[dict[str, Any]]:
    return [{"name": record.name, "values": dict(record.values)} for record in found]


def main(arguments: list[str]) -> int:
    speaker = Speaker(Library(Path(arguments[0])))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(speaker.answer(json.loads(line))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

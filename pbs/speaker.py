"""PBS by libpbs, in the process that has loaded it: calls block, and have no deadline of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from qtandem.core.errors import QtandemError
from qtandem.pbs import ifl
from qtandem.pbs.ifl import Attribute, Command, Connection, Library, Object, Op, PbsError
from qtandem.pbs.port import FLAGS, JOB_ATTRIBUTES
from qtandem.pbs.records import Record

P = ParamSpec("P")
T = TypeVar("T")
# No answer, as against a refusal; after these the connection is of no more use.
_UNREACHABLE = {15010, 15011, 15031, 15033, ifl.NO_SERVER}
_SHOWN = 300


def _told(
    call: Callable[Concatenate[ByLibrary, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ByLibrary, P], Coroutine[Any, Any, T]]:
    """Turn PBS's errors into ours, and drop a connection that broke."""

    @wraps(call)
    async def tried(self: ByLibrary, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return await call(self, *arguments, **named)
        except PbsError as error:
            text, cause = error.text[:_SHOWN], f"PBS error {error.code}"
            if error.code in _UNREACHABLE:
                await self.close()
                raise QtandemError("manager-unreachable", f"PBS does not answer: {text}", cause=cause) from error
            message = f"PBS refused {call.__name__!r}: {text}"
            raise QtandemError("command-failed", message, cause=cause) from error

    return tried


class ByLibrary:
    """Meets `Port`, over one connection that is made again when it broke."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._connection: Connection | None = None
        self._suffix = ""

    @_told
    async def server(self) -> Record:
        return self._connected().server()

    @_told
    async def jobs(self, ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for id in ids:
            try:
                found += self._connected().jobs(self._full(id), JOB_ATTRIBUTES)
            except PbsError as error:
                if error.code not in (ifl.UNKNOWN_JOB, ifl.FINISHED):
                    raise
        return found

    @_told
    async def asking(self, resources: Sequence[str], states: str, elements: bool = False) -> list[Record]:
        found: dict[str, Record] = {}
        for resource in resources:
            chosen = [
                Attribute("job_state", states, op=Op.EQ),
                Attribute("Resource_List", "0", resource, Op.GT),
            ]
            found |= {record.name: record for record in self._select(chosen, elements)}
        return list(found.values())

    @_told
    async def available(self, values: Mapping[str, int], missing: Sequence[str]) -> None:
        made = [Attribute("type", "long"), Attribute("flag", FLAGS)]
        for name in missing:
            # One that is there already is refused; whether all are there, the next call tells.
            with contextlib.suppress(PbsError):
                self._connected().manage(Command.CREATE, Object.RESOURCE, name, made)
        pairs = [Attribute("resources_available", str(value), name) for name, value in values.items()]
        self._connected().manage(Command.SET, Object.SERVER, "", pairs)

    @_told
    async def nudge(self) -> None:
        if self._connected().server(["scheduling"]).get("scheduling").lower() in ("true", "1"):
            self._connected().manage(Command.SET, Object.SERVER, "", [Attribute("scheduling", "True")])

    @_told
    async def hold(self, id: str) -> None:
        self._connected().hold(self._full(id), "s")

    @_told
    async def comment(self, id: str, text: str) -> None:
        self._connected().alter(self._full(id), [Attribute("comment", text)])

    @_told
    async def eligible(self, id: str, at: float) -> None:
        self._connected().alter(self._full(id), [Attribute("Execution_Time", str(int(at) + 1))])

    @_told
    async def rerun(self, id: str) -> None:
        self._connected().rerun(self._full(id))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _select(self, chosen: Sequence[Attribute], elements: bool) -> list[Record]:
        return self._connected().select(chosen, JOB_ATTRIBUTES, "T" if elements else None)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._library.connect()
            self._suffix = self._connection.server(["server_host"]).name
        return self._connection

    def _full(self, id: str) -> str:
        """The library takes ids with the server's name, which the commands add."""
        self._connected()
        return id if "." in id or not id else f"{id}.{self._suffix}"

"""A vendor in memory, with faults to order and a log that bears witness against whoever uses it wrongly."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from qtandem.core.errors import QtandemError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One thing that happened to a session: `acquire` opens it, `release` closes it."""

    event: str
    resource: str
    key: str
    token: str
    slots: int


@dataclass
class Fault:
    """`after`: the vendor does the work first, and only its answer is lost."""

    error: Exception
    times: int
    after: bool


@dataclass
class Pause:
    """Calls wait at `go`; `arrived` tells that one is there. `after`: they wait with their work done."""

    after: bool
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class FakeVendor:
    """Meets `qtandem.core.leases.service.Vendor`. Unlike the contract of providers it is not idempotent: a
    second acquisition with one key opens a second session, which `offences` reports.

    With a `journal` file the sessions outlive the process, as a real vendor's do. `step` is called before and
    after each change of sessions.
    """

    def __init__(
        self,
        slots: Mapping[str, int],
        journal: Path | None = None,
        step: Callable[[], None] | None = None,
    ) -> None:
        self.slots, self.log, self.calls = dict(slots), list[Entry](), list[tuple[str, str]]()
        self._journal, self._step = journal, step or (lambda: None)
        self._faults: defaultdict[tuple[str, str], list[Fault]] = defaultdict(list)
        self._pauses: dict[tuple[str, str], Pause] = {}
        if journal is not None and journal.exists():
            self.log += [Entry(**json.loads(line)) for line in journal.read_text().splitlines()]

    def fail(
        self,
        method: str,
        error: Exception | None = None,
        *,
        resource: str = "",
        times: int = 1,
        after: bool = False,
    ) -> None:
        """Have the next calls of `method` fail (of any resource, where none is named)."""
        error = error or QtandemError("vendor-error", "500 from the vendor")
        self._faults[method, resource].append(Fault(error, times, after))

    def heal(self) -> None:
        self._faults.clear()

    def pause(self, method: str, resource: str = "", *, after: bool = False) -> Pause:
        before = self._pauses.get((method, resource))
        if before is not None:
            before.go.set()
        pause = self._pauses[method, resource] = Pause(after)
        return pause

    @property
    def pauses(self) -> list[Pause]:
        return list(self._pauses.values())

    def resume(self) -> None:
        """No more pauses."""
        for pause in self._pauses.values():
            pause.go.set()
        self._pauses.clear()

    async def acquire(self, resource: str, key: str, slots: int) -> str:
        def work() -> str:
            token = f"secret-token-{len(self.log)}"
            self._write(Entry("acquire", resource, key, token, slots))
            return token

        return await self._call("acquire", resource, work)

    async def release(self, resource: str, token: str) -> None:
        def work() -> None:
            for entry in self.sessions():
                if (entry.resource, entry.token) == (resource, token):
                    self._write(Entry("release", resource, entry.key, token, entry.slots))

        await self._call("release", resource, work)

    async def find_session(self, resource: str, key: str) -> str | None:
        def work() -> str | None:
            found = [entry.token for entry in self.sessions(resource) if entry.key == key]
            return found[0] if found else None

        return await self._call("find_session", resource, work)

    def sessions(self, resource: str | None = None) -> list[Entry]:
        """The sessions that are open."""
        opened: dict[str, Entry] = {}
        for entry in self.log:
            if entry.event == "acquire":
                opened[entry.token] = entry
            else:
                opened.pop(entry.token, None)
        return [entry for entry in opened.values() if resource in (None, entry.resource)]

    def offences(self) -> list[str]:
        """Double acquisitions, in the order in which they happened."""
        out: list[str] = []
        opened: dict[str, Entry] = {}
        keys: set[str] = set()
        for entry in self.log:
            if entry.event == "release":
                opened.pop(entry.token, None)
                continue
            if entry.key in keys:
                out.append(f"key {entry.key} was acquired twice")
            keys.add(entry.key)
            opened[entry.token] = entry
            used = sum(other.slots for other in opened.values() if other.resource == entry.resource)
            if used > self.slots[entry.resource]:
                out.append(f"{used} slots of {entry.resource} are in use")
        return out

    async def _call(self, method: str, resource: str, work: Callable[[], T]) -> T:
        self.calls.append((method, resource))
        pause = self._pauses.get((method, resource)) or self._pauses.get((method, ""))
        if pause is not None and not pause.after:
            await self._wait(pause)
        fault = self._fault(method, resource)
        if fault is not None and not fault.after:
            raise fault.error
        result = work()
        if pause is not None and pause.after:
            await self._wait(pause)
        if fault is not None:
            raise fault.error
        return result

    async def _wait(self, pause: Pause) -> None:
        pause.arrived.set()
        await pause.go.wait()

    def _fault(self, method: str, resource: str) -> Fault | None:
        for key in ((method, resource), (method, "")):
            for fault in self._faults[key]:
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _write(self, entry: Entry) -> None:
        self._step()
        if self._journal is not None:
            handle = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(handle, json.dumps(asdict(entry)).encode() + b"\n")
            os.close(handle)
        self.log.append(entry)
        self._step()

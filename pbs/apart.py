"""PBS by a process apart (`child.py`): a call that does not come back costs that process, not the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from qtandem.core.commands import environment
from qtandem.core.errors import QtandemError
from qtandem.core.processes import Process, Start, start_child
from qtandem.pbs.port import TIMEOUT_S
from qtandem.pbs.records import Record

# The name of the process in the launcher's file.
PROGRAM, MODULE = "qtandem-pbs", "qtandem.pbs.child"


class Apart:
    """Meets `Port`. Calls come one after another; the process is made with the first one, and again after a failure.

    `how` and `place` are the arguments of `child.py`. With `launch` the launcher starts it, with root's environment.
    """

    def __init__(
        self, how: str, place: str, conf: str = "", timeout_s: float = TIMEOUT_S, launch: Start | None = None
    ) -> None:
        self._arguments, self._timeout_s, self._launch = (how, place), timeout_s, launch
        self._env = {"PBS_CONF_FILE": conf} if conf else {}
        self._child: Process | None = None
        self._drain: asyncio.Task[None] | None = None
        self._turn: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.calls = 0
        self._closed = False

    async def server(self) -> Record:
        return _record(await self.call("server"))

    async def jobs(self, ids: Sequence[str]) -> list[Record]:
        return [_record(each) for each in await self.call("jobs", ids=list(ids))] if ids else []

    async def asking(self, resources: Sequence[str], states: str, elements: bool = False) -> list[Record]:
        found = await self.call("asking", resources=list(resources), states=states, elements=elements)
        return [_record(each) for each in found]

    async def available(self, values: Mapping[str, int], missing: Sequence[str]) -> None:
        await self.call("available", values=dict(values), missing=list(missing))

    async def nudge(self) -> None:
        await self.call("nudge")

    async def hold(self, id: str) -> None:
        await self.call("hold", id=id)

    async def comment(self, id: str, text: str) -> None:
        await self.call("comment", id=id, text=text)

    async def eligible(self, id: str, at: float) -> None:
        await self.call("eligible", id=id, at=at)

    async def rerun(self, id: str) -> None:
        await self.call("rerun", id=id)

    async def close(self) -> None:
        self._closed = True
        await self._drop()

    async def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            await child.wait()
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None

    async def call(self, name: str, **arguments: Any) -> Any:
        """The answer of one call; raises as `Port` says."""
        async with self._lock():
            if self._closed:
                raise QtandemError("manager-unreachable", "The configuration has changed; this one is not in force")
            self.calls += 1
            line = json.dumps({"call": name, "with": arguments}) + "\n"
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = json.loads(await self._exchange(line.encode()))
            except (TimeoutError, OSError, ValueError, EOFError) as error:
                await self._drop()
                message = f"PBS gave no answer to {name!r} within {self._timeout_s:g} s"
                if not isinstance(error, TimeoutError):
                    message = f"The process that speaks to PBS failed: {error}"
                raise QtandemError("manager-unreachable", message) from error
            except asyncio.CancelledError:
                # Its answer would be taken for that of the next call.
                await asyncio.shield(self._drop())
                raise
        if "ok" in answer:
            return answer["ok"]
        raise QtandemError(answer["code"], answer["message"], cause=answer.get("cause"))

    async def _exchange(self, line: bytes) -> bytes:
        child = await self._started()
        child.stdin.write(line)
        await child.stdin.drain()
        length = await child.stdout.readline()
        if not length.strip().isdigit():
            raise OSError(f"it ended with status {await child.wait()}" if not length else "it said what is no answer")
        return await child.stdout.readexactly(int(length))

    async def _started(self) -> Process:
        if self._child is None or self._child.returncode is not None:
            await self._drop()
            if self._launch is not None:
                self._child = await self._launch([PROGRAM, *arguments(*self._arguments)], {}, None)
            else:
                env = environment(self._env) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                argv = [sys.executable, "-P", "-m", MODULE, *self._arguments]
                self._child = await start_child(argv, env, None)
            # What PBS's library says there nobody reads, and it must not wait for a reader.
            self._drain = asyncio.create_task(_read_away(self._child.stderr))
        return self._child

    def _lock(self) -> asyncio.Lock:
        """Of the running loop: the dead-man asks in a loop of its own each time."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._turn is None:
            self._loop, self._turn, self._child, self._drain = loop, asyncio.Lock(), None, None
        return self._turn


def arguments(how: str, place: str) -> list[str]:
    """What the interpreter is started with by the launcher: nothing of its environment or folder counts."""
    return ["-I", "-m", MODULE, how, place]


async def _read_away(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


def _record(found: Mapping[str, Any]) -> Record:
    return Record(found["name"], found["values"])

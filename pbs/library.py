"""PBS by libpbs, in a child: a call that does not come back costs the child, not the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qtandem.core.commands import environment
from qtandem.core.errors import QtandemError
from qtandem.pbs.port import TIMEOUT_S
from qtandem.pbs.records import Record

LINE_BYTES = 64 * 1024 * 1024
# No answer, as against a refusal.
_UNREACHABLE = {15010, 15011, 15031, 15033, 15034}
_SHOWN = 300


class ByLibrary:
    """Meets `Port`. Calls come one after another; the child is made with the first one, and again after a failure."""

    def __init__(self, path: Path, conf: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._env = {"PBS_CONF_FILE": conf} if conf else {}
        self._child: asyncio.subprocess.Process | None = None
        self._turn: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.calls = 0

    async def server(self) -> Record:
        return _record(await self.call("server"))

    async def jobs(self, ids: Sequence[str]) -> list[Record]:
        return [_record(each) for each in await self.call("jobs", ids=list(ids))] if ids else []

    async def asking(self, resources: Sequence[str]) -> list[Record]:
        return [_record(each) for each in await self.call("asking", resources=list(resources))]

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
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()

    async def call(self, name: str, **arguments: Any) -> Any:
        """The answer of one call; raises as `Port` says."""
        async with self._lock():
            self.calls += 1
            line = json.dumps({"call": name, "with": arguments}) + "\n"
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = json.loads(await self._exchange(line.encode()))
            except (TimeoutError, OSError, ValueError, asyncio.LimitOverrunError) as error:
                await self.close()
                message = f"libpbs gave no answer to {name!r} within {self._timeout_s:g} s"
                if not isinstance(error, TimeoutError):
                    message = f"The process that speaks libpbs failed: {error}"
                raise QtandemError("manager-unreachable", message) from error
            except asyncio.CancelledError:
                # Its answer would be taken for that of the next call.
                await asyncio.shield(self.close())
                raise
        if "ok" in answer:
            return answer["ok"]
        code, text = int(answer["code"]), str(answer["text"])[:_SHOWN]
        if code in _UNREACHABLE:
            raise QtandemError("manager-unreachable", f"PBS does not answer: {text}", cause=f"PBS error {code}")
        raise QtandemError("command-failed", f"PBS refused {name}: {text}", cause=f"PBS error {code}")

    async def _exchange(self, line: bytes) -> bytes:
        child = await self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(line)
        await child.stdin.drain()
        answer = await child.stdout.readline()
        if not answer:
            raise OSError(f"it ended with status {await child.wait()}")
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            env = environment(self._env) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "qtandem.pbs.child", str(self._path),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=env, limit=LINE_BYTES, start_new_session=True,
            )  # fmt: skip
        return self._child

    def _lock(self) -> asyncio.Lock:
        """Of the running loop: the dead-man asks in a loop of its own each time."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._turn is None:
            self._loop, self._turn, self._child = loop, asyncio.Lock(), None
        return self._turn


def _record(found: Mapping[str, Any]) -> Record:
    return Record(found["name"], found["values"])

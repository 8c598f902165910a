"""The parent side of one worker process: start it, call it with a deadline, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from qtandem.core.processes import Process
from qtandem.core.providers import frames
from qtandem.core.providers.frames import FrameError

CHILD = "qtandem.core.providers.child"
_STDERR_KEPT = 8192
_CLOSE_S = 1.0
_PIECE = 1 << 18


class Sink(Protocol):
    """Takes the bytes of a long text as they come; what goes wrong there it keeps for later."""

    def write(self, piece: bytes) -> object: ...


class WorkerDied(Exception):
    """The child ended, or stopped speaking the protocol. `str()` says how, with the end of its stderr."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A child's answer: the value or the wire form of an error. `last`: the child ends after it.

    `opened`: the child now has the provider of the resource that was called.
    """

    ok: bool
    value: object = None
    error: dict[str, object] | None = None
    busy: bool = False
    last: bool = False
    opened: bool = False


class Worker:
    """One child. Calls must not overlap; `alive` is False once it is gone."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stderr: deque[bytes] = deque()
        self._kept = 0
        self._drain = asyncio.create_task(self._read_stderr())
        self._ended = False
        self.busy = False

    @classmethod
    async def start(cls, launch: Callable[[], Awaitable[Process]], memory_bytes: int) -> Self:
        """A worker in a fresh process; secrets reach it by its pipe only. Raises `OSError`."""
        worker = cls(await launch())
        worker._process.stdin.write(frames.pack({"memory": memory_bytes}))
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._ended and self._process.returncode is None and not self._process.stdout.at_eof()

    async def call(self, message: dict[str, object], deadline_s: float, sink: Sink | None = None) -> Answer:
        """Send one message and wait for its answer; a text in it goes to `sink` piece by piece, if there is one.

        Raises `TimeoutError` at the deadline and `WorkerDied` when no answer can come; after either the
        child has been killed. Raises `FrameError`, without any effect, for a message over the limit.
        """
        request = frames.pack(message)
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._exchange(request, sink)
        except (OSError, asyncio.IncompleteReadError, FrameError) as error:
            if isinstance(error, TimeoutError):
                await self.kill()
                raise
            raise WorkerDied(await self._post_mortem(error)) from None
        self.busy = answer.busy
        self._ended = answer.last
        return answer

    async def kill(self) -> None:
        """End the child and whatever it started."""
        self._ended = True
        self._process.kill()
        await self._process.wait()
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain, _CLOSE_S)

    async def close(self) -> None:
        """Let an idle child end by itself, or kill it after a second."""
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _CLOSE_S)
        await self.kill()

    def stderr(self) -> str:
        """The last 8 KiB that the child or its libraries printed."""
        return b"".join(self._stderr)[-_STDERR_KEPT:].decode(errors="replace")

    async def _exchange(self, request: bytes, sink: Sink | None) -> Answer:
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        message = frames.unpack(await self._frame())
        if message.get("raw"):
            if sink is None:
                message["value"] = (await self._frame()).decode("utf-8", "surrogatepass")
            else:
                await self._pour(sink)
        return _read_answer(message)

    async def _pour(self, sink: Sink) -> None:
        output = self._process.stdout
        left = frames.length(await output.readexactly(frames.HEADER.size))
        while left:
            piece = await output.read(min(left, _PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            sink.write(piece)

    async def _frame(self) -> bytes:
        output = self._process.stdout
        return await output.readexactly(frames.length(await output.readexactly(frames.HEADER.size)))

    async def _post_mortem(self, error: Exception) -> str:
        if isinstance(error, FrameError):
            how = f"broke the protocol: {error}"
            await self.kill()
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _CLOSE_S)
            await self.kill()
            how = _how_it_ended(self._process.returncode)
        tail = self.stderr().strip().splitlines()[-1:]
        return f"its process {how}" + (f", last words: {tail[0]}" if tail else "")

    async def _read_stderr(self) -> None:
        while chunk := await self._process.stderr.read(_STDERR_KEPT):
            self._stderr.append(chunk)
            self._kept += len(chunk)
            while self._kept - len(self._stderr[0]) >= _STDERR_KEPT:
                self._kept -= len(self._stderr.popleft())


def _read_answer(message: dict[str, Any]) -> Answer:
    error = message.get("error")
    if not isinstance(message.get("ok"), bool) or not (message["ok"] or isinstance(error, dict)):
        raise FrameError("an answer lacks its outcome")
    return Answer(
        ok=message["ok"],
        value=message.get("value"),
        error=error,
        busy=bool(message.get("busy")),
        last=bool(message.get("last")),
        opened=bool(message.get("opened")),
    )


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None:
        return "closed its pipe"
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"exited with status {returncode}"

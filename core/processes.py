"""Processes that the daemon starts: its own children, or those that the launcher starts under another user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

STREAM_LIMIT = 1 << 20


class Process(Protocol):
    """A running process with three pipes. `returncode` is -N after signal N."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None:
        """End it and what it started; more than once is harmless."""


# Start argv with the environment and working directory; raises `OSError`.
Start = Callable[[Sequence[str], Mapping[str, str], Path | None], Awaitable[Process]]


class Child:
    """A child of this process, in a session of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._process = process
        self._killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        # Once only: later the number may belong to another group.
        if not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def start_child(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> Process:
    """Start a child with exactly this environment."""
    making = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            limit=STREAM_LIMIT,
        )
    )
    try:
        return Child(await asyncio.shield(making))
    except asyncio.CancelledError:
        # By itself asyncio kills the child alone, and then waits for as long as anything that it started lives.
        making.add_done_callback(_kill_made)
        await asyncio.wait({making})
        raise


def _kill_made(making: asyncio.Task[asyncio.subprocess.Process]) -> None:
    if not making.cancelled() and making.exception() is None:
        Child(making.result()).kill()


async def communicate(process: Process, data: bytes) -> tuple[bytes, bytes]:
    """Write `data`, then read to the end of both outputs and of the process."""
    out, err, _ = await asyncio.gather(process.stdout.read(), process.stderr.read(), _feed(process.stdin, data))
    await process.wait()
    return out, err


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    # A program that does not read its input to the end is none the worse.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if data:
            stdin.write(data)
            await stdin.drain()
    stdin.close()

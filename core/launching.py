"""The daemon's side of the launcher: root's small process that starts what runs under another user.

One connection (SOCK_SEQPACKET) is one process. Its first message says what to start and carries the far ends of
three pipes; the answers are `{"pid": N}`, then `{"exit": STATUS}`; or `{"error": WHY}`. The process is ended when
this side of the connection closes, so it never outlives the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import IO, Any

from qtandem.core.processes import STREAM_LIMIT, Process, Start

ANSWER_S = 10.0
_ANSWER_BYTES = 4096


class LauncherError(OSError):
    """The launcher is not there, or refused."""


class Launcher:
    """The launcher that listens at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def worker(self, type_: str) -> Process:
        """A worker process for providers of one type; raises `LauncherError`."""
        return await self._start({"start": "worker", "type": type_})

    async def planner(self) -> Process:
        """A process of the planner; raises `LauncherError`."""
        return await self._start({"start": "planner"})

    def commands(self, manager: str) -> Start:
        """How to start the commands of a manager. Their environment and directory are in root's configuration."""

        async def start(argv: Sequence[str], _env: Mapping[str, str], _cwd: Path | None) -> Process:
            program, *arguments = argv
            return await self._start(
                {"start": "command", "manager": manager, "program": PurePath(program).name, "arguments": arguments}
            )

        return start

    async def _start(self, order: Mapping[str, object]) -> Process:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connection.setblocking(False)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [os.fdopen(pipes[0][1], "wb", 0), os.fdopen(pipes[1][0], "rb", 0), os.fdopen(pipes[2][0], "rb", 0)]
        try:
            try:
                pid = await self._ask(connection, order, theirs)
            finally:
                for handle in theirs:
                    os.close(handle)
            return Launched(connection, pid, await _writer(ours[0]), await _reader(ours[1]), await _reader(ours[2]))
        except BaseException:
            connection.close()
            for file in ours:
                file.close()
            raise

    async def _ask(self, connection: socket.socket, order: Mapping[str, object], handles: list[int]) -> int:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.sock_connect(connection, str(self._path))
                socket.send_fds(connection, [json.dumps(order).encode()], handles)
                answer = _object(await loop.sock_recv(connection, _ANSWER_BYTES))
        except TimeoutError:
            raise LauncherError(f"the launcher at {self._path} does not answer") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise LauncherError(f"the launcher at {self._path} cannot be reached: {why}") from error
        if isinstance(answer.get("pid"), int):
            return int(answer["pid"])
        raise LauncherError(f"the launcher refuses: {answer.get('error') or 'it said nothing'}")


class Launched:
    """A process of the launcher's. Meets `Process`."""

    def __init__(
        self,
        connection: socket.socket,
        pid: int,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
    ) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection
        self._watch = asyncio.create_task(self._await_end())

    async def wait(self) -> int:
        return await asyncio.shield(self._watch)

    def kill(self) -> None:
        # The launcher takes the end of our messages for the order to end it; if it is gone, so is the process.
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    async def _await_end(self) -> int:
        loop = asyncio.get_running_loop()
        try:
            answer = _object(await loop.sock_recv(self._connection, _ANSWER_BYTES))
        except OSError:
            answer = {}
        status = answer.get("exit")
        # Without a word of its end it was killed together with the launcher's part.
        self.returncode = status if isinstance(status, int) else -signal.SIGKILL
        self._connection.close()
        return self.returncode


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def _writer(file: IO[bytes]) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    # Nothing is read here, but the protocol is what gives a writer its flow control.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _reader(file: IO[bytes]) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(STREAM_LIMIT)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    return reader

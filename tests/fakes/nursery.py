"""Worker processes that have their vendor's SDK already, forked from a process that has imported it once.

An SDK takes a second or two to import, and the contract suite starts hundreds of workers. What runs in a child is
`child.main`, as in one that was started anew. Run as a program, this file is the process that forks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from qtandem.core.processes import STREAM_LIMIT, Process
from qtandem.core.providers import child, frames

ROOT = Path(__file__).resolve().parents[2]
_BOOT = "import sys, runpy; sys.path[:0] = sys.argv[3:]; runpy.run_path(sys.argv[2], run_name='__main__')"


class Nursery:
    """Give `launch` to `Workers`. `close` ends the process that forks, and its children with it."""

    def __init__(self, type_: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, type_, __file__, str(ROOT), str(ROOT / ".dev")],
                env=frames.environment(),
                stdin=theirs,
            )

    async def launch(self, _type: str) -> Process:
        pipes = [os.pipe() for _ in range(4)]
        given = [pipes[0][0], *(end for _, end in pipes[1:])]
        socket.send_fds(self._socket, [b"fork"], given)
        for end in given:
            os.close(end)
        stdin = await _writer(pipes[0][1])
        stdout, stderr, news = [await _reader(end) for end, _ in pipes[1:]]
        return Forked(int(await news.readline()), stdin, stdout, stderr, news)

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """Meets `Process`; the process that forked it tells how it ended."""

    def __init__(
        self,
        pid: int,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        news: asyncio.StreamReader,
    ) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self._end = asyncio.create_task(news.readline())

    @property
    def returncode(self) -> int | None:
        return os.waitstatus_to_exitcode(int(self._end.result())) if self._end.done() else None

    async def wait(self) -> int:
        return os.waitstatus_to_exitcode(int(await asyncio.shield(self._end)))

    def kill(self) -> None:
        if not self._end.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(STREAM_LIMIT)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0))
    return reader


async def _writer(fd: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(fd, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


def serve(requests: socket.socket) -> None:
    """Fork a child for each request, and tell its requester its pid, then its wait status."""
    told: dict[int, int] = {}
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, wake], [], [])
        if wake in ready:
            os.read(wake, 512)
            for pid, status in _ended():
                os.write(told[pid], b"%d\n" % status)
                os.close(told.pop(pid))
        if requests in ready:
            asked, given, _, _ = socket.recv_fds(requests, 16, 4)
            if not asked:
                return
            pid = os.fork()
            if pid == 0:
                _become(given)
            for fd in given[:3]:
                os.close(fd)
            told[pid] = given[3]


def _ended() -> list[tuple[int, int]]:
    out = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            out.append(found)
    return out


def _become(given: list[int]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, fd in enumerate(given[:3]):
        os.dup2(fd, number)
    os.write(given[3], b"%d\n" % os.getpid())
    os.closerange(3, 256)
    sys.argv = ["", str(ROOT), child.__name__, str(os.getppid())]
    child.main()
    os._exit(0)


if __name__ == "__main__":
    child.load(sys.argv[1])
    serve(socket.socket(fileno=os.dup(0)))

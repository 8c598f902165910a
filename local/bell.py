"""A bell that wakes the runner of a queue: a FIFO, so that any process may ring and no ring waits."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


class Bell:
    """`ring` from anywhere; `open`, `drain` and `close` by the one runner."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def ring(self) -> None:
        """Wake the runner, if there is one; a ring that finds the FIFO full has nothing to add."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return
            raise
        try:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(fd, b"!")
        finally:
            os.close(fd)

    def open(self) -> int:
        """The descriptor to watch. Open for writing too, so that it never reads as ended."""
        if self._fd is None:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self._path, 0o600)
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        return self._fd

    def drain(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._fd, 4096):
                    pass

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

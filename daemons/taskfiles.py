"""Payloads of tasks that are not sent yet, and results, as private files of the state directory."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from qtandem.core.errors import QtandemError
from qtandem.core.files import disk, write_atomic

KEEP_RESULTS_S = 7 * 86400.0
# Of one user, so that nobody fills the disk that leases are written to: the oldest go first, vendors still have them.
MOST_RESULTS = 2 << 30
_BLOCK = 4096
_WHOSE = "A task's"
_ID = re.compile(r"[A-Za-z0-9\-]{1,64}")


class Receiving:
    """A result on its way into its file. What the disk refuses is told at the end: a worker is in the middle of it."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_suffix(f".{secrets.token_hex(4)}.part")
        with disk(_WHOSE, "written"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._file: IO[bytes] | None = os.fdopen(handle, "wb")
        self._error: OSError | None = None

    def write(self, piece: bytes) -> None:
        """Add a piece; nothing once it was kept or dropped."""
        if self._file is not None and self._error is None:
            try:
                self._file.write(piece)
            except OSError as error:
                self._error = error

    def keep(self) -> None:
        """Put it in its place, for readers; it survives a power failure once `TaskFiles.settle` has returned."""
        with disk(_WHOSE, "written"):
            try:
                if self._error is not None or self._file is None:
                    raise self._error or FileNotFoundError(errno.ENOENT, "it was dropped")
                self._close()
                self._part.replace(self._path)
            finally:
                self.drop()

    def drop(self) -> None:
        """Forget it, unless it was kept."""
        with suppress(OSError):
            self._close()
        self._part.unlink(missing_ok=True)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class TaskFiles:
    """Files of mode 0600 in a directory of mode 0700, named by task id. Methods block: call them in a thread.

    Raises `internal` where the disk refuses (the message names no path inside the payload).
    """

    def __init__(self, state_dir: Path, most_results: int = MOST_RESULTS) -> None:
        self._folder, self._most = state_dir / "tasks", most_results
        self._used: dict[int, int] = {}
        with disk(_WHOSE, "made"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put_payload(self, task: str, payload: Mapping[str, Any]) -> None:
        self._write(self._path(task, "payload"), json.dumps(payload))

    def payload(self, task: str) -> dict[str, Any] | None:
        text = self._read(self._path(task, "payload"))
        return None if text is None else json.loads(text)

    def drop_payload(self, task: str) -> None:
        self._path(task, "payload").unlink(missing_ok=True)

    def receive(self, task: str, uid: int) -> Receiving:
        """Where a result can be written, piece by piece."""
        return Receiving(self._result(task, uid))

    def settle(self, task: str, uid: int) -> None:
        """Have a result that was kept on disk for good, and its user's share within bounds."""
        path = self._result(task, uid)
        with disk(_WHOSE, "written"):
            for each in (path, path.parent):
                handle = os.open(each, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        known = self._used.get(uid)
        self._used[uid] = _held(path.parent) if known is None else known + path.stat().st_size + _BLOCK
        if self._used[uid] > self._most:
            self._used[uid] = _trim(path.parent, self._most * 3 // 4)

    def result(self, task: str, uid: int) -> BinaryIO | None:
        """The result's file, open for reading; None where there is none."""
        with disk(_WHOSE, "read"):
            try:
                return self._result(task, uid).open("rb")
            except FileNotFoundError:
                return None

    def sweep(self, now: float) -> int:
        """Remove results that are older than a week, and left-overs; returns how many files went."""
        gone = 0
        for path in self._folder.rglob("*.*"):
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime > KEEP_RESULTS_S:
                    path.unlink()
                    gone += 1
        self._used.clear()
        return gone

    def _result(self, task: str, uid: int) -> Path:
        return self._folder / str(uid) / self._path(task, "result").name

    def _path(self, task: str, kind: str) -> Path:
        if not _ID.fullmatch(task):
            raise QtandemError("no-such-run", f"{task[:64]!r} is not a task id", remedy="See: qtandem task list")
        return self._folder / f"{task}.{kind}"

    def _write(self, path: Path, text: str) -> None:
        with disk(_WHOSE, "written"):
            write_atomic(path, text.encode(), 0o600)

    def _read(self, path: Path) -> str | None:
        with disk(_WHOSE, "read"):
            return path.read_text() if path.exists() else None


def _held(folder: Path) -> int:
    return sum(size for _, size, _ in _listed(folder))


def _trim(folder: Path, most: int) -> int:
    """Remove the oldest files until at most so many bytes are left; returns how many are."""
    files = sorted(_listed(folder))
    left = sum(size for _, size, _ in files)
    for _, size, path in files:
        if left <= most:
            break
        path.unlink(missing_ok=True)
        left -= size
    return left


def _listed(folder: Path) -> Iterator[tuple[float, int, Path]]:
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found = path.stat()
            yield found.st_mtime, found.st_size + _BLOCK, path

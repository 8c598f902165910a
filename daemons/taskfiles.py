"""Payloads of tasks that are not sent yet, and results, as private files of the state directory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError

KEEP_RESULTS_S = 7 * 86400.0
_ID = re.compile(r"[A-Za-z0-9\-]{1,64}")


class TaskFiles:
    """Files of mode 0600 in a directory of mode 0700, named by task id. Methods block: call them in a thread.

    Raises `internal` where the disk refuses (the message names no path inside the payload).
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "tasks"
        with _disk("made"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put_payload(self, task: str, payload: Mapping[str, Any]) -> None:
        self._write(self._path(task, "payload"), json.dumps(payload))

    def payload(self, task: str) -> dict[str, Any] | None:
        text = self._read(self._path(task, "payload"))
        return None if text is None else json.loads(text)

    def drop_payload(self, task: str) -> None:
        self._path(task, "payload").unlink(missing_ok=True)

    def put_result(self, task: str, text: str) -> None:
        self._write(self._path(task, "result"), text)

    def result(self, task: str) -> str | None:
        return self._read(self._path(task, "result"))

    def sweep(self, now: float) -> int:
        """Remove results that are older than a week, and left-overs; returns how many files went."""
        gone = 0
        for path in self._folder.iterdir():
            if now - path.stat().st_mtime > KEEP_RESULTS_S:
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def _path(self, task: str, kind: str) -> Path:
        if not _ID.fullmatch(task):
            raise QtandemError("no-such-run", f"{task[:64]!r} is not a task id")
        return self._folder / f"{task}.{kind}"

    def _write(self, path: Path, text: str) -> None:
        part = path.with_suffix(path.suffix + ".part")
        with _disk("written"):
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)

    def _read(self, path: Path) -> str | None:
        with _disk("read"):
            return path.read_text() if path.exists() else None


@contextmanager
def _disk(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise QtandemError(
            "internal", f"A task's file cannot be {what}", cause=error.strerror, remedy="Tell the site's admin."
        ) from error

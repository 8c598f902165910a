"""Jobs that we hold, in a file that outlives the daemon: some managers keep no end of a hold, and not who wanted it.

What such a manager keeps with a job is no place for it either, where the job's owner can write there.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.files import write_atomic
from qtandem.core.runs import JobId


@dataclass(frozen=True, slots=True)
class Pause:
    """`until` is a Unix time, 0 for a hold without an end; `comment` is for the job's owner."""

    until: float
    comment: str = ""


class Pauses:
    """The pauses in the file at `path`; one that cannot be read is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)

    def get(self, job: JobId) -> Pause | None:
        return self._known.get(job)

    def over(self, now: float) -> list[JobId]:
        return [job for job, pause in self._known.items() if pause.until and pause.until <= now]

    def set(self, job: JobId, until: float, comment: str) -> None:
        self._known[job] = Pause(until, comment)
        self._write()

    def forget(self, job: JobId) -> None:
        if self._known.pop(job, None) is not None:
            self._write()

    def keep_only(self, there: Container[JobId], now: float) -> None:
        """Forget jobs that wait no more; one whose pause has just been set may not be listed yet."""
        gone = [job for job, pause in self._known.items() if job not in there and pause.until <= now]
        for job in gone:
            del self._known[job]
        if gone:
            self._write()

    def _write(self) -> None:
        body = {str(job): [pause.until, pause.comment] for job, pause in self._known.items()}
        try:
            write_atomic(self._path, json.dumps(body).encode(), 0o600)
        except OSError as error:
            raise QtandemError("internal", f"{self._path} cannot be written", cause=str(error)) from error


def _read(path: Path) -> dict[JobId, Pause]:
    try:
        body = json.loads(path.read_text())
        return {JobId.parse(job): Pause(float(until), str(comment)) for job, (until, comment) in body.items()}
    except (OSError, ValueError, TypeError, AttributeError, QtandemError):
        return {}

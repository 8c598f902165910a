"""The sensors of the local manager: one file that says how many slots of each QPU are there and closed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.managers import SensorValue


class SensorFile:
    """Written by the daemon, in one step; read by the runner before it starts a job."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, SensorValue]:
        """The values by native name; none before the first publication. Raises `manager-unreachable`."""
        try:
            document = json.loads(self._path.read_text())
            return {name: SensorValue(name, int(row["total"]), int(row["closed"])) for name, row in document.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise QtandemError(
                "manager-unreachable", f"The sensors in {self._path} cannot be read", cause=str(error)
            ) from error

    def update(self, values: Sequence[SensorValue]) -> dict[str, SensorValue]:
        """Replace these values, keep the others, and return what a reader sees now.

        A file that cannot be read is written anew: its other values are gone, which closes them.
        """
        with self._locked():
            try:
                merged = self.read()
            except QtandemError:
                merged = {}
            merged.update({value.native: value for value in values})
            document = {name: {"total": value.total, "closed": value.closed} for name, value in merged.items()}
            part = self._path.with_suffix(".part")
            try:
                part.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
                os.replace(part, self._path)
            except OSError as error:
                raise QtandemError(
                    "manager-unreachable", f"The sensors in {self._path} cannot be written", cause=error.strerror
                ) from error
            return self.read()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

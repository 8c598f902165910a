"""What a provider must remember beyond its worker's life, for vendors that cannot find a task or session by our key.

One file a record, written whole and on disk before the vendor is called. A record that was begun and never ended is
a submission of which nobody knows whether it got there: it is told as such and never sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.places import state_folder
from qtandem.core.providers.base import ProviderSpec
from qtandem.core.resources import native_name

UNSURE = "task-failed"


def folder(kind: str, spec: ProviderSpec, inner: str = "") -> Path:
    """Where a resource's provider keeps its records: the setting `state_dir`, or the default of this host.

    `inner` is a folder within it.

    Raises `bad-config` for a folder that cannot be used.
    """
    named = spec.settings.get("state_dir", "")
    place = Path(named) if named else state_folder() / kind / native_name(spec.resource)
    if not place.is_absolute():
        raise QtandemError("bad-config", f"state_dir = {named!r} is not an absolute path")
    place /= inner
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise QtandemError(
            "bad-config", f"The provider cannot keep its records in {place}", cause=str(error)
        ) from error
    return place


def put(path: Path, text: str) -> None:
    """Write a file whole: after a crash it is as before or as now, and on disk."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    spare.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Records:
    """Vendor ids by our keys, in one folder; each belongs to a lease and goes with it."""

    def __init__(self, place: Callable[[], Path]) -> None:
        self._place = place

    def once(self, key: str, lease: str, send: Callable[[], str], surely_not: Callable[[QtandemError], bool]) -> str:
        """The vendor's id for a key: what was recorded, or what `send` gives.

        An error of `send` that says that nothing was made (`surely_not`) takes the record back. Raises `task-failed`
        for a key whose sending was interrupted.
        """
        known = self.find(key)
        if known is not None:
            return known
        path = self._path(key)
        put(path, json.dumps({"key": key, "lease": lease, "id": None}))
        try:
            id = send()
        except QtandemError as error:
            if surely_not(error):
                path.unlink(missing_ok=True)
            raise
        put(path, json.dumps({"key": key, "lease": lease, "id": id}))
        return id

    def find(self, key: str) -> str | None:
        """The vendor's id; None if the key was never sent. Raises `task-failed` if that is not known."""
        record = self._read(self._path(key))
        if record is None:
            return None
        id = record.get("id")
        if not isinstance(id, str):
            raise QtandemError(
                UNSURE,
                "Its submission was interrupted, and the vendor cannot tell whether it got there",
                remedy="Look for it in the vendor's own list, then send it again.",
            )
        return id

    def of(self, lease: str) -> list[str]:
        """The vendor's ids of a lease."""
        return [str(record["id"]) for _, record in self._all(lease) if isinstance(record.get("id"), str)]

    def drop(self, id: str) -> None:
        """Forget the record of one vendor id."""
        for path in self._place().glob("*.json"):
            if (self._read(path) or {}).get("id") == id:
                path.unlink(missing_ok=True)

    def forget(self, lease: str) -> None:
        for path, _ in self._all(lease):
            path.unlink(missing_ok=True)

    def _all(self, lease: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
        for path in self._place().glob("*.json"):
            record = self._read(path)
            if record is not None and record.get("lease") == lease:
                yield path, record

    def _path(self, key: str) -> Path:
        return self._place() / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def _read(self, path: Path) -> Mapping[str, object] | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(path.read_text())
            return record if isinstance(record, dict) else None
        return None

"""Figures of experiments on disk, so that hours of them survive an interruption, and one part can be measured again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from qtandem.core.errors import QtandemError


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm on one instance. `score` is the mean fit Phi, `kept` the share of placed work whose checks hold.

    `seconds` are of counted work where the arm was planned deterministically; `load` is the machine's load average
    of the minute before the plan was ready.
    """

    admission: float
    nodes: int
    cost: float
    energy: float
    seconds: float
    gap: float
    proven: bool
    kept: float = 1.0
    kept_regulated: float = 1.0
    score: float = 0.0
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class _File:
    code: str
    figures: dict[str, Figures]


_ADAPTER: TypeAdapter[_File] = TypeAdapter(_File)


class Kept:
    """Figures by key in a JSON file (None: in memory only). What other code of the planner measured is not taken up.

    `again`: figures whose key begins so are measured anew.
    """

    def __init__(self, path: Path | None = None, again: str = "") -> None:
        self._path, self._code = path, fingerprint()
        found = _read(path) if path else None
        rows = found.figures if found is not None and found.code == self._code else {}
        self._rows = {key: row for key, row in rows.items() if not (again and key.startswith(again))}

    def figures(self, key: str, measure: Callable[[], Figures]) -> Figures:
        """What is kept under this key, or measured now and kept."""
        if key not in self._rows:
            self._rows[key] = measure()
            self._write()
        return self._rows[key]

    def _write(self) -> None:
        if self._path is None:
            return
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_bytes(_ADAPTER.dump_json(_File(self._code, self._rows)))
        os.replace(part, self._path)


def fingerprint() -> str:
    """Of everything that decides a figure: the planner's modules, but for those that only write it up."""
    whole = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in ("reproduction", "bench", "kept"):
            whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def _read(path: Path) -> _File | None:
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise QtandemError("bad-plan", f"{path} holds no figures", remedy="Name another file.") from error

"""One fault of a configuration file, as an admin reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """`fatal` costs the entry (or the file) that `key` names; otherwise it is a warning."""

    path: Path
    key: str
    message: str
    fix: str
    fatal: bool = True

    def __str__(self) -> str:
        kind = "error" if self.fatal else "warning"
        where = f"{self.path}: {self.key}" if self.key else str(self.path)
        return " ".join(f"{kind}: {where}: {self.message}. {self.fix}".split())

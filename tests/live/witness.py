"""What a simulated QPU's own log says about the sessions that it gave: none doubled, none leaked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def sessions(log: Iterable[Mapping[str, Any]], slots: int) -> tuple[list[str], dict[str, int]]:
    """Faults in a log (empty if there are none), and the sessions that are open at its end: key to slots."""
    faults: list[str] = []
    open_now: dict[str, tuple[str, int]] = {}
    for row in log:
        if row["event"] == "acquire" and not row.get("again"):
            token, key, wanted = str(row["token"]), str(row["key"]), int(row["slots"])
            if any(key == other for other, _ in open_now.values()):
                faults.append(f"{key} was acquired twice (at {row['at']})")
            open_now[token] = (key, wanted)
            used = sum(count for _, count in open_now.values())
            if used > slots:
                faults.append(f"{used} of {slots} slots were in use (at {row['at']}): {sorted(open_now.values())}")
        elif row["event"] == "release":
            open_now.pop(str(row["token"]), None)
    return faults, dict(open_now.values())

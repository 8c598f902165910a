"""Passing on what a run's own program asks of its vendor: what all gates of providers share.

The program speaks the vendor's protocol and has no credential; the gate has it. What is passed on is made anew: a path
by a closed list, query and body field by field where they say whose tasks are meant, no header of the caller's. What
comes back is cleaned of the credential, whatever the vendor says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qtandem.core.errors import QtandemError

MOST_BYTES = 16 * 2**20
_LEAST_SECRET = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a program. `path` is below the vendor's address, with no slash before it; `type` is the body's.

    `name` is what the run's programs call the resource.
    """

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    body: str = ""
    type: str = ""
    name: str = ""

    def document(self) -> dict[str, Any]:
        """The JSON object in the body; raises `bad-request`."""
        found = parsed(self.body)
        if not isinstance(found, dict):
            raise QtandemError("bad-request", "The body is no JSON object")
        return found

    def some(self, *names: str) -> dict[str, list[str]]:
        """The parameters of these names."""
        return {name: list(values) for name, values in self.query.items() if name in names}


@dataclass(frozen=True, slots=True)
class Passed:
    """The vendor's answer. `hold_s`: for so long the vendor would hold it back, since a task has not ended."""

    status: int
    body: str = ""
    type: str = ""
    retry_after: str = ""
    hold_s: float = 0.0

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> Mapping[str, Any]:
        """The JSON object in a good answer; empty for anything else."""
        found = parsed(self.body) if self.good else None
        return found if isinstance(found, dict) else {}

    def wire(self) -> dict[str, object]:
        return asdict(self)


def parsed(text: str) -> Any:
    """What JSON says; None for what is none, however it is made to hurt a parser."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def cleaned(text: str, secrets: Iterable[str]) -> str:
    """Without any of the secrets."""
    for secret in secrets:
        if len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, "***")
    return text


def refused(path: str) -> QtandemError:
    """The error for what a run may not ask for."""
    return QtandemError("not-allowed", f"A run may not ask for {path[:80]!r} with its lease")

"""What is noted of a task: whose it is, what is needed to reproduce it, what it costs."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease, Task
from qtandem.core.providers.base import TaskState


@dataclass(frozen=True, slots=True)
class Terms:
    """What a resource adds to a task's record."""

    price: float | None = None
    currency: str = ""
    calibration_at: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def new_task(lease: Lease, uid: int, payload: Mapping[str, Any], key: str, terms: Terms, now: float) -> Task:
    """The record of a task that is taken in at `now`; raises `bad-payload` for one that no vendor could take."""
    kind = payload.get("kind")
    if not isinstance(kind, str) or not kind or len(kind) > 64:
        raise QtandemError(
            "bad-payload", "The payload has no kind", remedy="Give kind: qasm2, qasm3 or qiskit-primitive."
        )
    shots = payload.get("shots")
    if shots is not None and (not isinstance(shots, int) or isinstance(shots, bool) or not 0 <= shots < 2**31):
        # 0 asks some simulators for the exact result; others refuse it.
        raise QtandemError("bad-payload", "shots is not a whole number that a machine could run")
    id = uuid.uuid4().hex
    return Task(
        id=id,
        lease=lease.id,
        owner=lease.owner,
        resource=lease.resource,
        uid=uid,
        key=key or id,
        kind=kind,
        created_at=now,
        state=TaskState.QUEUED,
        payload_sha256=_digest(payload),
        circuit_sha256=_digest(payload.get("program", payload.get("input", payload))),
        shots=shots,
        currency=terms.currency,
        calibration_at=terms.calibration_at,
        versions=dict(terms.versions),
    )


def priced(task: Task, terms: Callable[[str], Terms]) -> Task:
    """A completed task costs what its vendor says, or else what the site says."""
    if task.state is not TaskState.COMPLETED or task.cost is not None:
        return task
    return replace(task, cost=terms(task.resource).price)


def _digest(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

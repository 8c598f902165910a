"""Leases, claims and the records of accounting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from qtandem.core.managers import Grant
from qtandem.core.providers.base import TaskState
from qtandem.core.runs import Run, RunId


class LeaseState(StrEnum):
    """`reserved` is a row of ours, from `acquiring` on the vendor may know of it."""

    RESERVED = "reserved"
    ACQUIRING = "acquiring"
    HELD = "held"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"
    EXPIRED = "expired"

    @property
    def open(self) -> bool:
        """Whether a lease in this state keeps its slots."""
        return self in OPEN


OPEN = frozenset({LeaseState.RESERVED, LeaseState.ACQUIRING, LeaseState.HELD, LeaseState.RELEASING})


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use `slots` of `resource`. Its `id` is the key of the vendor's session.

    `owner` is `run RUN` or `claim ID`. `token` is the vendor's, present while a session is known to be open.
    `outcome` is the state that a lease in `releasing` ends in. Times are Unix times.
    """

    id: str
    owner: str
    resource: str
    slots: int
    state: LeaseState
    uid: int
    created_at: float
    changed_at: float
    expires_at: float | None = None
    token: str | None = field(default=None, repr=False)
    reason: str = ""
    outcome: LeaseState = LeaseState.RELEASED

    @property
    def open(self) -> bool:
        return self.state in OPEN

    @property
    def run(self) -> RunId | None:
        kind, _, name = self.owner.partition(" ")
        return RunId.parse(name) if kind == "run" else None

    @property
    def claim(self) -> str | None:
        kind, _, name = self.owner.partition(" ")
        return name if kind == "claim" else None


class OwnerState(StrEnum):
    """How far a run or claim is: `refused` had all its leases undone, `ended` gives or gave them back."""

    STARTING = "starting"
    HELD = "held"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ClaimHead:
    """A claim without its leases."""

    id: str
    uid: int
    user: str
    name: str
    created_at: float
    expires_at: float
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Claim(ClaimHead):
    """A lease, or several, outside one job, until `expires_at`; usable by every process of `uid`."""

    leases: tuple[Lease, ...] = ()


def owner_of(record: Run | ClaimHead) -> str:
    """The lease owner that a run or claim is: `run ID` or `claim ID`."""
    return run_owner(record.id) if isinstance(record, Run) else f"claim {record.id}"


def run_owner(run: RunId) -> str:
    """The lease owner that a run is."""
    return f"run {run}"


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """What happened to a run or claim as a whole. `exit_code` is what the manager reported of the job."""

    owner: str
    state: OwnerState
    at: float
    reason: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Accounting of one run. `started_at`: all its leases were held; None where it was refused."""

    run: Run
    state: OwnerState
    asked_at: float
    started_at: float | None
    ended_at: float | None
    reason: str
    exit_code: int | None
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """Accounting of one task, with what is needed to reproduce it.

    `owner` is that of its lease. `key` is the caller's, once a lease. Hashes are hexadecimal SHA-256; of the
    payload as it came, and of the circuit without its shots and options. `versions` are those of the programs
    that took part. `cost` is in `currency`; None where the vendor does not say.
    """

    id: str
    lease: str
    owner: str
    resource: str
    uid: int
    key: str
    kind: str
    created_at: float
    state: TaskState = TaskState.SUBMITTING
    payload_sha256: str = ""
    circuit_sha256: str = ""
    shots: int | None = None
    vendor_task: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    usage_s: float | None = None
    cost: float | None = None
    currency: str = ""
    calibration_at: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def run(self) -> str | None:
        kind, _, name = self.owner.partition(" ")
        return name if kind == "run" else None


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of resources, summed over whatever it is not grouped by; those fields are then empty.

    `held_s` counts slot-seconds from the vendor's answer until the slot was free again. `usage_s` are QPU
    seconds by the vendor's count. `cost` is by currency. `ended_at` is None while something is still open.
    """

    user: str
    account: str
    resource: str
    owner: str
    leases: int
    slots: int
    started_at: float
    ended_at: float | None
    held_s: float
    tasks: int = 0
    completed: int = 0
    shots: int = 0
    usage_s: float | None = None
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """How often in a row a job was refused at its start, and when it may try again."""

    job: str
    count: int
    next_at: float
    reason: str

"""The manager port: what the daemon needs of a workload manager, and nothing more.

A manager is one folder with a class that meets `Manager`; `tests/contract/` holds what it must do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from qtandem.core.requests import SPELLING
from qtandem.core.runs import JobId


class JobState(StrEnum):
    """How a job is, in words that all managers share."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Grant:
    """`slots` of one resource, by its configured name."""

    resource: str
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """The manager's own view of one job. `attempt` counts restarts; `reason` is its own word for pending.

    `nodes` are those that it has or, while it is pending, asks for. `request` is what the submit hook kept with a
    job that other resources could serve too, `pinned` the grants that it got then. `pausing`: it waits only since
    the manager pauses every requeued job for a while. `whole`: the id is that of an array, which runs by its elements.
    """

    id: JobId
    state: JobState
    uid: int
    user: str
    attempt: int = 0
    account: str | None = None
    partition: str | None = None
    nodes: tuple[str, ...] = ()
    time_limit_s: int | None = None
    can_requeue: bool = True
    reason: str = ""
    comment: str = ""
    grants: tuple[Grant, ...] = ()
    eligible_at: float | None = None
    request: str = ""
    pinned: tuple[Grant, ...] = ()
    pausing: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class SensorValue:
    """What one native resource shall show: `total` slots, of which `closed` are kept from the manager's jobs.

    `closed >= total` closes the resource. Slots leased to the manager's own jobs are not in `closed`:
    the manager counts those itself.
    """

    native: str
    total: int
    closed: int

    @property
    def open(self) -> int:
        return max(0, self.total - self.closed)


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of one publication: the natives that read back as wanted, and the others with the reason."""

    confirmed: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ManagerCapabilities:
    """What a manager cannot do, each False with a reason in `limits`.

    `attempts`: it counts a job's restarts (else the daemon does). `hooks_on_nodes`: a start or end is reported
    by root on a node of the job, so what is reported counts for nothing: the daemon asks the manager itself.
    `hooks_as_owner`: or by the job's owner there, since the manager's hooks run as that user. `spelling`: what users
    type for a request, with {} in its place.
    """

    requeue: bool = True
    arrays: bool = True
    hold: bool = True
    attempts: bool = True
    hooks_on_nodes: bool = False
    hooks_as_owner: bool = False
    spelling: str = SPELLING
    limits: Mapping[str, str] = field(default_factory=dict)


class ManagerSection(Protocol):
    """What every manager that is reached by commands needs of its section in the configuration.

    `bin_dir`: where its commands are, PATH if empty; `options` are the manager's own.
    """

    @property
    def cluster(self) -> str: ...
    @property
    def bin_dir(self) -> str: ...
    @property
    def options(self) -> Mapping[str, str]: ...


class Manager(Protocol):
    """One workload manager and cluster. Methods that ask the manager raise `manager-unreachable`.

    `natives` in the constructor of an implementation maps configured resource names to native names.
    """

    name: str
    cluster: str
    capabilities: ManagerCapabilities

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        """The attributes that a submit hook writes into the job: `{"licenses": "x@qtandem:1"}`."""

    def read_native(self, text: str) -> tuple[Grant, ...]:
        """The inverse: the grants in a job's native resource text; what is not ours is left out."""

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        """Write the values, read them back, and say which hold; batched, so that cost hardly grows by name."""

    async def sensors(self) -> dict[str, int]:
        """Open slots of each of our native resources, as the manager would give them to its next job."""

    async def kick(self, natives: Iterable[str]) -> None:
        """Have pending jobs that wait for these natives looked at now, without changing anything."""

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        """The jobs by id; None for one that the manager says it does not know."""

    async def pending(self) -> list[Job]:
        """All pending jobs with grants of ours."""

    async def hold(self, job: JobId, comment: str) -> None:
        """Requeue if needed and hold, with a comment for its owner."""

    async def delay(self, job: JobId, seconds: float) -> None:
        """Let a pending job try again no earlier than in `seconds` (0: now)."""


@runtime_checkable
class Mover(Protocol):
    """A manager that can give a pending job another resource."""

    async def move(self, job: JobId, grants: Sequence[Grant]) -> None:
        """Put these grants in the place of those that the pending job has; fails once it has started."""


@runtime_checkable
class Marker(Protocol):
    """A manager that can keep words of ours with a job, for those who look at its record."""

    async def mark(self, job: JobId, leases: Sequence[str]) -> None:
        """Keep the ids of the leases that the job runs with."""


@runtime_checkable
class Roll(Protocol):
    """A manager that can tell which jobs run with resources of ours, whoever reported their start."""

    async def running(self) -> list[Job]:
        """All running jobs with grants of ours, each element of an array by itself."""


@runtime_checkable
class Shown(Protocol):
    """A manager whose sensors are programs on its hosts, which read from a file what they are to show."""

    @property
    def open_slots(self) -> Mapping[str, int]:
        """Open slots by native name, as they were published last."""


@runtime_checkable
class Closing(Protocol):
    """A manager that keeps processes or connections; after `close` its methods raise `manager-unreachable`."""

    async def close(self) -> None: ...

"""A cluster as its manager shows it at one moment: nodes, jobs, and which nodes each job may have.

The manager alone says what is permitted (partitions, QOS, features, reservations); nobody computes it from less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from qtandem.core.managers import Grant, Job
from qtandem.core.runs import JobId

Policy = Literal["advise", "exclude", "pin"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job asks of nodes. `cpus`, `memory_mb` and `gpus` are of each of its `nodes`.

    `memory_mb` 0: it asks for none. `gpu_type` empty: any. `required` and `excluded` are nodes that its owner names,
    `features` the manager's own expression.
    """

    cpus: int = 1
    memory_mb: int = 0
    gpus: int = 0
    gpu_type: str = ""
    nodes: int = 1
    exclusive: bool = False
    partitions: tuple[str, ...] = ()
    account: str = ""
    qos: str = ""
    features: str = ""
    reservation: str = ""
    time_limit_s: int | None = None
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that was pinned to, or kept from, these nodes; or for which they were only noted."""

    policy: Policy
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """A node that takes jobs: what it has, and what its running jobs leave. `watts` is measured, None if it is not."""

    name: str
    cpus: int
    memory_mb: int
    gpus: int
    free_cpus: int
    free_memory_mb: int
    free_gpus: int
    running: int
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending job. `mask` numbers its permitted nodes in `Inventory.masks`.

    `skipped` says why it is not to be planned (held, a dependency, a form that a plan cannot express); empty: it is.
    `fixed`: its order may change, its nodes may not, since its owner named them or it is more than one node or element.
    `placed` is what was done at its submission, as the hook noted it where no user can write. Times are Unix times.
    """

    id: JobId
    uid: int
    user: str
    shape: Shape
    mask: int
    priority: int
    nice: int
    submitted_at: float
    eligible_at: float
    grants: tuple[Grant, ...] = ()
    skipped: str = ""
    fixed: bool = False
    placed: Placed | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything at one moment. `memory` says whether the manager counts memory as jobs take it."""

    at: float
    hosts: tuple[Host, ...]
    waiting: tuple[Waiting, ...]
    masks: tuple[frozenset[str], ...]
    memory: bool = True


@dataclass(frozen=True, slots=True)
class Trial:
    """The manager's answer to a submission that is only tested.

    `refused` is its reason why the job cannot run there, empty if it can; `starts_at` when it would start. Both empty:
    it could not be tested, and nothing is known.
    """

    refused: str = ""
    starts_at: float | None = None


@runtime_checkable
class Placer(Protocol):
    """A manager on which a plan can be seen through. Methods that ask it raise `manager-unreachable`."""

    async def inventory(self, now: float, pins: Mapping[str, Sequence[str]]) -> Inventory:
        """The cluster now; what is learnt of partitions and nodes is what `permitted` answers from.

        `pins` are nodes that we have pinned jobs to, by job id: they are no wish of the job's owner, and so no part of
        its mask. What a submit hook has noted is known anyway.
        """

    def permitted(self, shape: Shape, now: float) -> frozenset[str] | None:
        """The nodes that such a job may have, as of the last `inventory`; None if that cannot be said."""

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        """As `core.managers.Manager`."""

    def gpus(self, text: str) -> tuple[int, str]:
        """How many GPUs of a node the manager's own text of generic resources asks for, and of which type."""

    async def trials(self, wanted: Mapping[JobId, Sequence[str]]) -> dict[JobId, Trial]:
        """Test the submission of each pending job with these nodes; nothing is submitted."""

    async def place(self, job: JobId, nodes: Sequence[str]) -> None:
        """Pin a pending job to these nodes; with none, take a pin back. Fails once it has started."""

    async def bar(self, job: JobId, nodes: Sequence[str]) -> None:
        """Keep a pending job from these nodes; with none, from none."""

    async def reorder(self, job: JobId, nice: int) -> None:
        """Set what is taken off the pending job's priority."""

    def native_placement(self, placed: Placed, shape: Shape) -> tuple[dict[str, str], str]:
        """The attributes by which a submit hook pins to, or keeps from, the nodes; and the note to keep with it."""

"""Jobs and runs: who holds a lease, in the words of the workload manager."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from qtandem.core.errors import QtandemError

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,62}")
_JOB = re.compile(
    r"(?P<manager>[a-z]{1,16}):(?P<cluster>[A-Za-z0-9][A-Za-z0-9_\-]{0,62})"
    r":(?P<job>[A-Za-z0-9\-]{1,64})(?:_(?P<index>\d{1,9}))?(?:\.(?P<attempt>\d{1,9}))?"
)


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """`MANAGER:CLUSTER:JOBID[_INDEX]`; `index` is the array index, if any."""

    manager: str
    cluster: str
    job: str
    index: int | None = None

    def __str__(self) -> str:
        tail = "" if self.index is None else f"_{self.index}"
        return f"{self.manager}:{self.cluster}:{self.job}{tail}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `MANAGER:CLUSTER:JOBID[_INDEX]`; raises `bad-request`."""
        match = _JOB.fullmatch(text)
        if match is None or match["attempt"] is not None:
            raise QtandemError("bad-request", f"{text!r} is not a job id", remedy="Write MANAGER:CLUSTER:JOBID.")
        return cls(match["manager"], match["cluster"], match["job"], _number(match["index"]))

    def run(self, attempt: int) -> RunId:
        return RunId(self, attempt)


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """One execution attempt of a job; `attempt` counts restarts from 0 as the manager does."""

    job: JobId
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `MANAGER:CLUSTER:JOBID[_INDEX].N`; raises `bad-request`."""
        match = _JOB.fullmatch(text)
        if match is None or match["attempt"] is None:
            raise QtandemError("bad-request", f"{text!r} is not a run id", remedy="Write MANAGER:CLUSTER:JOBID.N.")
        job = JobId(match["manager"], match["cluster"], match["job"], _number(match["index"]))
        return cls(job, int(match["attempt"]))


@dataclass(frozen=True, slots=True)
class Run:
    """What the manager told us of one run. `nodes` are host names; `time_limit_s` is None for no limit."""

    id: RunId
    uid: int
    user: str
    account: str | None = None
    partition: str | None = None
    nodes: tuple[str, ...] = ()
    time_limit_s: int | None = None
    can_requeue: bool = True

    def on(self, nodes: tuple[str, ...]) -> Run:
        return replace(self, nodes=nodes)


def valid_cluster(name: str) -> bool:
    """Whether a cluster's name can stand in a job id."""
    return _PART.fullmatch(name) is not None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)

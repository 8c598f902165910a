"""Which runs are dead, by the manager's own word; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qtandem.core.managers import Job, JobState
from qtandem.core.runs import JobId, Run, RunId

_ALIVE = (JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Dead:
    """A run to end, and why."""

    run: RunId
    reason: str


class Reaper:
    """Two strikes: a run is dead when the manager has said so twice, at least `apart_s` seconds apart.

    A job without an answer (its manager was unreachable) keeps its strikes, and its lease.
    """

    def __init__(self, apart_s: float = 5.0) -> None:
        self._apart_s = apart_s
        self._first: dict[RunId, float] = {}

    def judge(self, runs: Iterable[Run], answers: Mapping[JobId, Job | None], now: float) -> list[Dead]:
        """The runs of `runs` (all that are open) to end, after `answers` that the manager gave at `now`."""
        ids = [run.id for run in runs]
        before, self._first = self._first, {}
        dead: list[Dead] = []
        for run in ids:
            first = before.get(run)
            if run.job not in answers:
                if first is not None:
                    self._first[run] = first
                continue
            reason = _gone(run, answers[run.job])
            if reason is None:
                continue
            if first is not None and now - first >= self._apart_s:
                dead.append(Dead(run, reason))
            else:
                self._first[run] = now if first is None else first
        return dead


def _gone(run: RunId, job: Job | None) -> str | None:
    if job is None:
        return "the manager does not know the job"
    if job.attempt > run.attempt:
        return f"the manager is at attempt {job.attempt}"
    if job.state in _ALIVE:
        return None
    return f"the manager says that the job is {job.state}"

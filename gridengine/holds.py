"""Jobs that we hold: by a manager's hold that lifts itself after a while, or by an operator's hold without an end.

Grid Engine has three holds. Its manager's (`-h s`) is ours for a back-off, so that lifting it never lifts what an
operator wanted; a job that is held for good gets an operator's (`-h o`), which a site's operators can lift. How long a
back-off is, and why, we keep ourselves: what is in a job's context its owner can change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from pathlib import Path

from qtandem.core.background import Background
from qtandem.core.commands import CommandError
from qtandem.core.manager_commands import ManagerCommands
from qtandem.core.pauses import Pause, Pauses
from qtandem.core.runs import JobId

# The context of a job, for `qstat -j`: why it is held, and the Unix time at which its back-off is over.
COMMENT, UNTIL = "qtandem", "qtandem_until"
_GONE = ("does not exist", "do not exist")


class Holds:
    """Sets and lifts holds by qalter; `state` is the file that outlives the daemon. Time by `clock`."""

    def __init__(self, client: ManagerCommands, state: Path, clock: Callable[[], float]) -> None:
        self._client, self._clock = client, clock
        self._pauses = Pauses(state)
        self._timers: dict[JobId, asyncio.TimerHandle] = {}
        self._releases = Background()

    def of(self, job: JobId) -> Pause | None:
        """The pause of the job or, where it is an element of an array, of the whole."""
        return self._pauses.get(job) or self._pauses.get(_whole(job))

    async def keep(self, job: JobId, comment: str) -> None:
        """Hold the job until an operator lets it go."""
        self._forget_timer(job)
        pause = self._pauses.get(job)
        await self._client.run("qalter", "-h", "o", "-ac", context(**{COMMENT: comment}), target(job))
        if pause is not None and pause.until:
            await self.let_go(job)
        self._pauses.set(job, 0.0, comment)

    async def delay(self, job: JobId, seconds: float) -> None:
        """Hold the job for so long; 0 lets it go."""
        self._forget_timer(job)
        if seconds <= 0:
            await self.let_go(job)
            return
        until = self._clock() + seconds
        self._pauses.set(job, until, "")
        await self._client.run("qalter", "-h", "s", "-ac", context(**{UNTIL: f"{until:.0f}"}), target(job))
        self._timers[job] = asyncio.get_running_loop().call_later(seconds, self._release_later, job)

    async def let_go(self, job: JobId) -> None:
        """Lift our own hold of the job, if it is still there."""
        try:
            await self._client.run("qalter", "-h", "S", "-dc", UNTIL, target(job))
        except CommandError as error:
            if not any(words in f"{error.stderr} {error.stdout}" for words in _GONE):
                raise
        self._pauses.forget(job)

    async def renew(self, pending: Container[JobId]) -> None:
        """Let go whose back-off is over, which a restart of the daemon could have forgotten; `pending` are all whole
        jobs that wait."""
        now = self._clock()
        for job in self._pauses.over(now):
            if _whole(job) in pending and job not in self._timers:
                await self.let_go(job)
        self._pauses.keep_only(_Wholes(pending), now)

    def _release_later(self, job: JobId) -> None:
        self._timers.pop(job, None)
        # Whatever goes wrong: `renew` finds the job again.
        self._releases.spawn(self.let_go(job), forgiven=True)

    def _forget_timer(self, job: JobId) -> None:
        timer = self._timers.pop(job, None)
        if timer is not None:
            timer.cancel()


class _Wholes:
    """Jobs and elements of whole jobs."""

    def __init__(self, jobs: Container[JobId]) -> None:
        self._jobs = jobs

    def __contains__(self, job: object) -> bool:
        return isinstance(job, JobId) and _whole(job) in self._jobs


def context(**values: str) -> str:
    """As `qalter -ac` takes it; a comma would begin the next variable."""
    return ",".join(f"{key}={' '.join(value.replace(',', ';').split())}" for key, value in values.items())


def target(job: JobId) -> str:
    return job.job if job.index is None else f"{job.job}.{job.index}"


def _whole(job: JobId) -> JobId:
    return JobId(job.manager, job.cluster, job.job)

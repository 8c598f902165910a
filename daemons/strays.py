"""Runs that no hook reported: the manager counts a QPU's slots as theirs, and they have no lease of it.

That happens where a manager did not ask our hooks: somebody switched them off, or a host has lost its copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Job, JobState, Manager, Roll
from qtandem.core.runs import RunId
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log

LOOK_S = 20.0
# A manager may call a job running some time before its hooks have been asked.
GRACE_S = 60.0
# One that cannot be held may cost the manager its whole time-out at each try.
AGAIN_S = 600.0
COMMENT = "qtandem: the job ran without its QPU, since the hooks of its host were not asked; admins: qtandem doctor"


class Strays:
    """Looks at the jobs that run; one that stays unknown for `grace_s` is requeued and held, with a comment.

    Only a run that the daemon never heard of is one: whoever ended a lease of a running job by hand meant that.
    """

    def __init__(self, context: Context, grace_s: float = GRACE_S) -> None:
        self._context, self._grace_s = context, grace_s
        self._since: dict[RunId, float] = {}
        self._done: set[RunId] = set()

    async def look(self) -> None:
        for manager in self._context.managers.values():
            if isinstance(manager, Roll):
                try:
                    await self._look_at(manager, await manager.running())
                except QtandemError as error:
                    log("strays").info("running jobs unknown", manager=manager.name, why=error.one_line())

    async def _look_at(self, manager: Manager, running: Sequence[Job]) -> None:
        now, found = self._context.clock(), await self._unknown(manager, running)
        gone = [run for run in self._since if run.job.manager == manager.name and run not in found]
        for run in gone:
            del self._since[run]
            self._done.discard(run)
        for run, job in found.items():
            if now - self._since.setdefault(run, now) >= self._grace_s and run not in self._done:
                await self._stop(manager, run, job)

    async def _unknown(self, manager: Manager, running: Sequence[Job]) -> dict[RunId, Job]:
        found = {}
        for job in running:
            run = job.id.run(job.attempt)
            if job.state is JobState.RUNNING and job.grants and not await self._heard_of(manager, run):
                found[run] = job
        return found

    async def _heard_of(self, manager: Manager, run: RunId) -> bool:
        """Of this attempt; of any, where the manager counts none."""
        context = self._context
        known = [each.id for each in context.leases.open_runs() if each.id.job == run.job]
        known += [each.id for each in context.lifecycle.starting(run.job)]
        if _among(manager, run, known):
            return True
        past = await context.records.runs_of_job(run.job)
        return _among(manager, run, [record.run.id for record in past])

    async def _stop(self, manager: Manager, run: RunId, job: Job) -> None:
        log("strays").warning("a job runs without its QPU", run=str(run), user=job.user, nodes=list(job.nodes))
        try:
            await manager.hold(job.id, COMMENT)
        except QtandemError as error:
            self._since[run] = self._context.clock() + AGAIN_S - self._grace_s
            log("strays").warning("it could not be held", run=str(run), why=error.one_line())
        else:
            self._done.add(run)


def _among(manager: Manager, run: RunId, known: Sequence[RunId]) -> bool:
    return run in known if manager.capabilities.attempts else bool(known)

"""Starts and ends that are reported on a node of the job, by root or the job's owner, not by the manager itself.

Nothing in such a report is taken as true but which job it is about: owner, nodes and resources come from the manager's
own record, and the host must be one of the job's nodes. Where the manager counts no restarts, attempts are counted
here: a start for an open run on the same nodes is that run again, any other is the next attempt. Where owners report,
these are bounded: LSF's own word on a job would admit a start and an end of it without number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import run_owner
from qtandem.core.managers import Grant, Job, JobState, Manager
from qtandem.core.runs import JobId, Run
from qtandem.daemons.authority import ROOT, Caller, Event
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log
from qtandem.daemons.pace import Pace
from qtandem.daemons.questions import Questions

KEPT = 4096


@dataclass(slots=True)
class Reported:
    """What nodes report; one a daemon. `_last` is the newest attempt of a job that this daemon began."""

    context: Context
    _last: dict[JobId, int] = field(default_factory=dict)
    _questions: Questions = field(default_factory=Questions)
    _pace: Pace = field(default_factory=Pace)

    async def start(self, manager: Manager, job: JobId, caller: Caller, told: int = 0) -> tuple[Run, tuple[Grant, ...]]:
        """The run that a node reports the start of, and what the manager granted it.

        A manager that gives no answer now may have had the run's slots reserved, and has said then who runs where:
        the attempt that the node has `told` must be that one.
        """
        self._require_reporter(manager, caller)
        try:
            found = await self._found(manager, job, caller)
        except QtandemError as error:
            run = self.context.leases.run(job.run(told)) if manager.capabilities.attempts else None
            if error.code != "manager-unreachable" or run is None:
                raise
            self._require(Event.START, manager, caller, run.uid, run.nodes)
            leases = self.context.leases.leases_of(run_owner(run.id))
            return run, tuple(Grant(lease.resource, lease.slots) for lease in leases)
        if found is None or found.state in (JobState.PENDING, JobState.ENDED):
            raise QtandemError("manager-unreachable", f"{job} has not started, says {manager.name}", retry_after=1.0)
        self._require(Event.START, manager, caller, found.uid, found.nodes)
        if found.whole:
            raise QtandemError("bad-request", f"{job} is an array; each of its elements starts by itself")
        attempt = found.attempt if manager.capabilities.attempts else await self._attempt(manager, job, found)
        run = Run(
            id=job.run(attempt),
            uid=found.uid,
            user=found.user,
            account=found.account,
            partition=found.partition,
            nodes=found.nodes,
            time_limit_s=found.time_limit_s,
            can_requeue=found.can_requeue,
        )
        return run, found.grants

    async def _found(self, manager: Manager, job: JobId, caller: Caller) -> Job | None:
        if self.context.authority.is_service(caller, manager.name):
            return (await manager.jobs([job]))[job]
        return await self._questions.job(manager, job, caller.host)

    async def end(
        self, manager: Manager, job: JobId, caller: Caller, attempt: int | None, exit_code: int | None
    ) -> int:
        """End what the job has under way, up to `attempt` where the manager counts them: a node that comes back may
        report late. Nothing is kept in mind of an end that meets no run."""
        self._require_reporter(manager, caller)
        run = self._under_way(job, attempt if manager.capabilities.attempts else None)
        if run is None:
            return 0
        self._require(Event.END, manager, caller, run.uid, run.nodes)
        reason = "the manager reported its end"
        return await self.context.lifecycle.end(job, run.id.attempt, reason, exit_code)

    def _require(self, event: Event, manager: Manager, caller: Caller, uid: int, nodes: tuple[str, ...]) -> None:
        owner = uid if manager.capabilities.hooks_as_owner else None
        self.context.authority.require(event, caller, manager=manager.name, owner=owner, nodes=nodes, on_nodes=True)

    def _require_reporter(self, manager: Manager, caller: Caller) -> None:
        """Before the manager is asked anything."""
        if manager.capabilities.hooks_as_owner:
            return
        if caller.uid != ROOT and not self.context.authority.is_service(caller, manager.name):
            raise QtandemError("not-authorised", f"uid {caller.uid} on {caller.host} may not report for {manager.name}")

    def _under_way(self, job: JobId, attempt: int | None = None) -> Run | None:
        runs = [run for run in self.context.leases.open_runs() if run.id.job == job]
        runs += self.context.lifecycle.starting(job)
        runs = [run for run in runs if attempt is None or run.id.attempt <= attempt]
        return max(runs, key=lambda run: run.id.attempt, default=None)

    def wait_s(self, job: JobId) -> float:
        """Seconds until a job that started too often may start again; 0 for any other."""
        return self._pace.wait_s(job, self.context.clock())

    async def _attempt(self, manager: Manager, job: JobId, found: Job) -> int:
        run = self._under_way(job)
        if run is None or run.nodes != found.nodes:
            past = await self.context.records.runs_of_job(job)
            # Another call of the same start may have come first.
            run = self._under_way(job)
        else:
            past = []
        if run is not None and run.nodes == found.nodes:
            return run.id.attempt
        if manager.capabilities.hooks_as_owner:
            self._bound(job, found)
        newest = max((record.run.id.attempt for record in past), default=-1)
        newest = max(newest, self._last.get(job, -1), run.id.attempt if run else -1)
        if len(self._last) >= KEPT:
            self._last.clear()
        self._last[job] = newest + 1
        return newest + 1

    def _bound(self, job: JobId, found: Job) -> None:
        """Count a start; raises `too-many-starts`."""
        if wait := self.wait_s(job):
            message = f"{job} started again and again; its next start is taken in {wait:.0f} s"
            raise QtandemError("too-many-starts", message, retry_after=wait)
        if self._pace.take(job, self.context.clock()):
            log("lifecycle").warning("starts very often", job=str(job), user=found.user, every_s=self._pace.every_s)

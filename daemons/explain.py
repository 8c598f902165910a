"""Why a job is where it is: the manager's word, and the true cause behind it."""

from __future__ import annotations

import asyncio

from qtandem.core.availability.estimate import waits_s
from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import RunRecord
from qtandem.core.managers import Job, JobState, Manager
from qtandem.core.runs import JobId
from qtandem.core.verdicts import duration
from qtandem.core.wire import ExplainAnswer, ResourceAnswer
from qtandem.daemons.answers import resource_answer
from qtandem.daemons.authority import Caller, Event
from qtandem.daemons.context import Context

# Users watch their jobs: the manager is asked about one job at most so often.
ASK_AGAIN_S = 1.0
KEPT = 512
JOBS = "Write the id as the manager shows it, or MANAGER:CLUSTER:JOBID. Jobs of others are shown to root and admins."


class Explainer:
    """Asks the manager about a job (briefly cached, one question at a time) and adds what only we know."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: dict[JobId, tuple[float, Job | None]] = {}
        self._asking = asyncio.Lock()

    async def explain(self, text: str, caller: Caller) -> ExplainAnswer:
        """Raises `no-such-run` for a job that is unknown, or that is not the caller's to see."""
        hidden = QtandemError("no-such-run", f"There is no job {text[:120]!r} that you may see", remedy=JOBS)
        for job in self._meant(text):
            found = await self._job(job)
            past = await self._context.records.runs_of_job(job)
            uid = found.uid if found else past[-1].run.uid if past else None
            if uid is None:
                continue
            try:
                self._context.authority.require(Event.EXPLAIN, caller, manager=job.manager, owner=uid)
            except QtandemError:
                # Whether somebody else's job is there is not told either.
                raise hidden from None
            return await self._answer(job, found, past)
        raise hidden

    def _meant(self, text: str) -> list[JobId]:
        if ":" in text:
            job = JobId.parse(text)
            self._context.manager(job.manager, job.cluster)
            return [job]
        return [JobId.parse(f"{each.name}:{each.cluster}:{text}") for each in self._context.managers.values()]

    async def _job(self, job: JobId) -> Job | None:
        async with self._asking:
            now = self._context.clock()
            known = self._seen.get(job)
            if known is not None and 0 <= now - known[0] < ASK_AGAIN_S:
                return known[1]
            manager: Manager = self._context.manager(job.manager)
            found = (await manager.jobs([job])).get(job)
            if len(self._seen) >= KEPT:
                self._seen.clear()
            self._seen[job] = (now, found)
            return found

    async def _answer(self, job: JobId, found: Job | None, past: list[RunRecord]) -> ExplainAnswer:
        context, situation = self._context, self._context.situation()
        grants = found.grants if found and found.grants else past[-1].grants if past else ()
        asked = {
            resource.name: grant.slots
            for grant in grants
            if (resource := context.catalog.find(grant.resource)) is not None
        }
        resources = [resource_answer(context.catalog.get(name), situation) for name in asked]
        run = next((str(run.id) for run in context.leases.open_runs() if run.id.job == job), None)
        lines = (
            _ended(past)
            if found is None or found.state is JobState.ENDED
            else await self._lines(found, resources, asked, run)
        )
        return ExplainAnswer(
            job=str(job),
            state=str(found.state if found else JobState.ENDED),
            native_reason=found.reason if found else "",
            run=run,
            resources=resources,
            lines=lines,
        )

    async def _lines(
        self, job: Job, resources: list[ResourceAnswer], asked: dict[str, int], run: str | None
    ) -> list[str]:
        if not job.grants:
            return ["The job asks for no QPU."]
        if job.state is not JobState.PENDING:
            names = ", ".join(row.name for row in resources)
            held = f"It is {job.state} and holds {names}." if run else f"It is {job.state}, without a lease yet."
            return [held, *([] if run else self._too_often(job.id))]
        lines = [*(self._cause(row, asked[row.name]) for row in resources), *self._too_often(job.id)]
        refusal = await self._context.records.refusal(str(job.id))
        if refusal is not None:
            times = "once" if refusal.count == 1 else f"{refusal.count} times"
            lines.append(f"Its start was refused {times}, last because: {refusal.reason}.")
        now = self._context.clock()
        if job.eligible_at is not None and job.eligible_at > now:
            lines.append(f"The manager tries again in {duration(job.eligible_at - now)}.")
        # A comment is its owner's to write: it counts where we did refuse the job, or the manager calls it held.
        ours = job.comment.rfind("qtandem: ")
        if ours >= 0 and (refusal is not None or "held" in job.reason.lower()):
            lines.append(f"It is held. {job.comment[ours:]}")
        return lines

    def _too_often(self, job: JobId) -> list[str]:
        wait = self._context.reported.wait_s(job)
        return [f"It started too often in a short while; its next start is taken in {duration(wait)}."] if wait else []

    def _cause(self, row: ResourceAnswer, slots: int) -> str:
        """The sentence for one resource of a pending job, which asks for so many of its slots."""
        if row.open and row.free < slots:
            return f"{row.name}: {row.free} of {row.slots} slots free, and the job asks for {slots}."
        if row.open:
            queue = f"; {row.queue} jobs queue at the vendor" if row.queue else ""
            return f"{row.name}: {row.why}{queue}; the job waits for the manager's own reasons."
        wait = waits_s(self._context.observer.facts.get(row.name), self._context.clock())
        queue = f", queue of {row.queue}" if row.queue else ""
        about = f", about {duration(wait)}" if wait else ""
        return f"{row.name}: {row.why}{queue}{about}."


def _ended(past: list[RunRecord]) -> list[str]:
    if not past:
        return ["It has ended; it never had a QPU."]
    last = past[-1]
    if last.started_at is None:
        return [f"It has ended; it never got its QPU: {last.reason or 'no reason is known'}."]
    held = (last.ended_at or last.started_at) - last.started_at
    return [f"It has ended; it held its QPU for {duration(held)}."]

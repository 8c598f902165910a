"""A job's way through the daemon: the verdict at its submission, its start, and its end.

Nothing here holds the event loop: what takes time is a task that later calls of the same hook join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from qtandem.core import requests, verdicts
from qtandem.core.background import Background
from qtandem.core.errors import Fault, QtandemError
from qtandem.core.leases.model import LeaseState, run_owner
from qtandem.core.managers import Grant, Manager, Marker
from qtandem.core.runs import JobId, Run, RunId
from qtandem.core.verdicts import Admit, Asker, openness
from qtandem.core.wire import StartAnswer
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log
from qtandem.daemons.refusals import Closed, Refusals

# A start hook's deadline is 10 s: one call is answered well before that.
CALL_S = 8.0
# A start whose hook does not ask again for this long has lost its hook.
ABANDONED_S = 45.0
# After a restart no resource has been seen yet; and an unknown one is looked at once more before a job pays for it.
FIRST_FACTS_S = 20.0
END_CALL_S = 8.0
# Jobs of which the last attempt is remembered; of others the store knows.
ATTEMPTS = 10_000
AGAIN_S = 5.0
ALTERED_S = 1.0
# The host of a run still clears it away when its end is known, and a next run that comes there meanwhile goes with it.
CLEARED_S = 5.0
# A reservation is asked for by a manager that does nothing else meanwhile: it is answered within this part of the
# hook's deadline, and made all the same if it takes longer.
RESERVE_PART = 0.75


@dataclass(slots=True)
class _Start:
    """A start under way; `asked_at` is when its hook last called."""

    run: Run
    task: asyncio.Task[None]
    asked_at: float


class Lifecycle:
    """Verdicts for managers. `reap` asks for a look at the manager's jobs, since one of them seems to be over."""

    def __init__(self, context: Context, refusals: Refusals) -> None:
        self._context = context
        self._refusals = refusals
        self._starts: dict[RunId, _Start] = {}
        self._not_before: dict[JobId, float] = {}
        self._attempts: dict[JobId, int] = {}
        self._altered: dict[str, set[str]] = {}
        self._ended: dict[JobId, float] = {}
        self._background = Background()
        self.reap: asyncio.Event = asyncio.Event()

    def submit(self, manager: Manager, text: str, native: str, asker: Asker) -> Admit | None:
        """The verdict on a submission; None where it asks for no QPU. Raises what a user must know."""
        context = self._context
        request = requests.parse(text) if text else None
        admitted = verdicts.submit(request, manager.read_native(native), asker, context.catalog, context.situation())
        if admitted is not None:
            context.pending.note(grant.resource for grant in admitted.grants)
        return admitted

    def altered(self, manager: Manager, grants: Sequence[Grant]) -> None:
        """Have the manager look at a pending job that it alters: a moment later, since it does so after our answer."""
        natives = self._altered.setdefault(manager.name, set())
        if not natives:
            self._background.spawn(self._look_at_altered(manager, natives))
        natives |= {self._context.catalog.get(grant.resource).native for grant in grants}

    async def _look_at_altered(self, manager: Manager, natives: set[str]) -> None:
        await asyncio.sleep(ALTERED_S)
        wanted = frozenset(natives)
        natives.clear()
        try:
            await manager.kick(wanted)
        except QtandemError as error:
            log("lifecycle").info("altered jobs wait for the manager's own look", why=error.one_line())

    async def start(self, manager: Manager, run: Run, grants: Sequence[Grant]) -> StartAnswer:
        """The verdict on a start. Calls for one run share one attempt; a held run is admitted at once."""
        name = str(run.id)
        if not grants:
            return StartAnswer(verdict="admit", message="the job asks for no QPU")
        self._note_attempt(run.id)
        if self._held(run.id):
            self._starts.pop(run.id, None)
            return StartAnswer(verdict="admit", run=name)
        self._forget_lost()
        start = self._starts.get(run.id)
        if start is None:
            start = _Start(run, self._background.spawn(self._acquire(run, grants)), self._context.clock())
            self._starts[run.id] = start
        start.asked_at = self._context.clock()
        await asyncio.wait({start.task}, timeout=CALL_S)
        if not start.task.done():
            return StartAnswer(verdict="wait", run=name, message="waits for a slot that is being given back")
        if self._starts.get(run.id) is start:
            del self._starts[run.id]
        return await self._outcome(manager, run, start.task)

    async def reserve(self, manager: Manager, run: Run, grants: Sequence[Grant]) -> StartAnswer:
        """Take the slots of a run whose start will be reported next, or say at once when to try again.

        A manager that asks again before that time is told the same, and it counts for no refusal. What needs a moment
        (slots that are being given back, a slow disk) is for the start to wait for: that one has time.
        """
        name, now = str(run.id), self._context.clock()
        if not grants or self._context.leases.run(run.id) is not None:
            return StartAnswer(verdict="admit", run=name)
        left = self._not_before.get(run.id.job, 0.0) - now
        if left > 0:
            return _later(name, "slots-busy", "its last start was refused", left)
        left = self._ended.get(run.id.job, 0.0) + CLEARED_S - now
        if left > 0:
            return _later(name, "slots-busy", "its last run has just ended", left)
        unseen = [grant.resource for grant in grants if grant.resource not in self._context.observer.facts]
        if unseen:
            self._context.observer.nudge(unseen)
            return _later(name, "not-available", f"{', '.join(unseen)} was not seen yet", AGAIN_S)
        try:
            self._check_reach(run, grants)
            self._check_open(run, grants)
            limit_s = RESERVE_PART * self._context.settings.timing.submit_ms / 1000
            # From here on there is something that its end has to end, whether it starts or not.
            self._note_attempt(run.id)
            await asyncio.wait_for(self._context.leases.reserve(run, grants), limit_s)
        except TimeoutError:
            return StartAnswer(verdict="admit", run=name, message="its slots are still being taken")
        except QtandemError as error:
            if error.code == "slots-busy" and self._given_back(grants):
                return StartAnswer(verdict="admit", run=name, message="its slots are being given back")
            overtaken = error.code == "run-ended"
            if overtaken or (error.code == "slots-busy" and self._worth_waiting(run, grants, error)):
                return _later(name, error.code, error.one_line(), AGAIN_S)
            return await self._refused(manager, run, error)
        return StartAnswer(verdict="admit", run=name)

    async def end(self, job: JobId, attempt: int | None, reason: str, exit_code: int | None = None) -> int:
        """End the job's open runs (up to the attempt); returns how many. Releasing goes on if it is slow."""
        attempt = await self._seen(job, attempt)
        now = self._context.clock()
        self._ended = {each: at for each, at in self._ended.items() if now - at < CLEARED_S} | {job: now}
        for run in [run for run in self._starts if _meant(run, job, attempt)]:
            self._starts.pop(run).task.cancel()
        ending = self._background.spawn(self._end(job, attempt, reason, exit_code))
        await asyncio.wait({ending}, timeout=END_CALL_S)
        return ending.result() if ending.done() else self._open(job, attempt)

    async def _seen(self, job: JobId, attempt: int | None) -> int | None:
        """The attempt that ended: none that is later than the last one that was seen to start.

        A manager that requeues a job may count the next attempt before it reports the end of the last one. Taken at
        its word, that would be the end of a run that is still to come.
        """
        if attempt is None:
            return None
        last = self._attempts.get(job)
        if last is None:
            past = await self._context.records.runs_of_job(job)
            last = max((each.run.id.attempt for each in past), default=attempt)
        return min(attempt, last)

    def _note_attempt(self, run: RunId) -> None:
        self._attempts[run.job] = max(run.attempt, self._attempts.pop(run.job, 0))
        if len(self._attempts) > ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]

    def starting(self, job: JobId) -> list[Run]:
        """The runs of a job whose start is under way, or was not told its outcome yet."""
        return [start.run for run, start in self._starts.items() if run.job == job]

    def break_off(self) -> None:
        """Have waiting starts answered with `wait`: their hooks call again, after the restart."""
        for start in self._starts.values():
            start.task.cancel()

    async def close(self) -> None:
        """Let what is under way finish."""
        self.break_off()
        self._starts.clear()
        await self._refusals.close()
        if self._background:
            await asyncio.wait(self._background, timeout=END_CALL_S)

    async def _end(self, job: JobId, attempt: int | None, reason: str, exit_code: int | None) -> int:
        owners = {run_owner(run.id) for run in self._context.leases.open_runs() if _meant(run.id, job, attempt)}
        await self._context.tasks.stop_owners(owners)
        ended = await self._context.leases.end(job, attempt, reason, exit_code)
        if ended:
            log("lifecycle").info("ended", job=str(job), runs=ended, reason=reason, exit_code=exit_code)
        return ended

    def _open(self, job: JobId, attempt: int | None) -> int:
        return sum(_meant(run.id, job, attempt) for run in self._context.leases.open_runs())

    def _held(self, run: RunId) -> bool:
        return bool(self._context.leases.held(run))

    async def _outcome(self, manager: Manager, run: Run, task: asyncio.Task[None]) -> StartAnswer:
        name = str(run.id)
        if task.cancelled():
            return StartAnswer(verdict="wait", run=name, message="the start was broken off", retry_after=1.0)
        error = task.exception()
        if error is None:
            self._not_before.pop(run.id.job, None)
            await self._refusals.forget(run.id.job)
            log("lifecycle").info("started", run=name)
            if isinstance(manager, Marker):
                self._background.spawn(self._mark(manager, run.id))
            return StartAnswer(verdict="admit", run=name)
        if not isinstance(error, QtandemError):
            raise error
        answer = await self._refused(manager, run, error)
        if not answer.retry_after:
            # The manager may start a job anew that is to be held, before the hold has reached it.
            self._not_before[run.id.job] = self._context.clock() + AGAIN_S
        return answer

    async def _mark(self, manager: Marker, run: RunId) -> None:
        try:
            await manager.mark(run.job, [lease.id for lease in self._context.leases.held(run)])
        except QtandemError as error:
            log("lifecycle").info("leases not in the job's record", run=str(run), why=error.one_line())

    async def _refused(self, manager: Manager, run: Run, error: QtandemError) -> StartAnswer:
        refusal, now = await self._refusals.refuse(manager, run, error), self._context.clock()
        self._not_before = {job: until for job, until in self._not_before.items() if until > now}
        self._not_before[run.id.job] = now + refusal.retry_after
        return StartAnswer(
            verdict="hold",
            run=str(run.id),
            code=error.code,
            message=refusal.message,
            retry_after=refusal.retry_after,
        )

    async def _acquire(self, run: Run, grants: Sequence[Grant]) -> None:
        context, timing = self._context, self._context.settings.timing
        self._check_reach(run, grants)
        deadline = context.clock() + (timing.releasing_wait_s if run.can_requeue else timing.no_requeue_wait_s)
        await context.observer.first_facts((grant.resource for grant in grants), FIRST_FACTS_S)
        with context.signals.watch("leases", "facts") as news:
            cause: QtandemError | None = None
            while True:
                try:
                    self._check_open(run, grants)
                    await context.leases.begin(run, grants)
                except QtandemError as error:
                    left = deadline - context.clock()
                    if left <= 0 or self._lost(run.id) or not self._worth_waiting(run, grants, error):
                        # Whatever it was, the sensor should show it before the next job starts.
                        context.observer.nudge(grant.resource for grant in grants)
                        # What is busy with undoing a failed try is not why it failed.
                        if cause is not None and error.code == "slots-busy":
                            raise cause from error
                        raise
                    cause = error if error.code != "slots-busy" else cause
                    # Time itself may be the news: a vendor that failed a moment ago is asked again.
                    await news.next(min(left, error.retry_after or AGAIN_S))
                else:
                    return

    def _check_reach(self, run: Run, grants: Sequence[Grant]) -> None:
        partitions = (run.partition,) if run.partition else ()
        registered = self._context.keys.resources(run.uid)
        asker = Asker(run.uid, run.user, run.account, partitions, run.nodes, registered)
        verdicts.start(grants, asker, self._context.catalog)

    def _check_open(self, run: Run, grants: Sequence[Grant]) -> None:
        """Raise `not-available` or `slots-busy` for a resource whose fact leaves no room (begin knows leases only)."""
        if self._context.leases.leases_of(run_owner(run.id)):
            return
        situation = self._context.situation()
        for grant in grants:
            resource = self._context.catalog.get(grant.resource)
            fact = situation.facts.get(resource.name)
            room = openness(resource, fact, 0, situation.now)
            if not room.open:
                raise Closed(resource.name, room.reason, self._context.observer.open_at)
            if room.free < grant.slots + situation.leased.get(resource.name, 0) - self._of_job(
                run.id.job, resource.name
            ):
                raise QtandemError("slots-busy", f"{resource.name}: {situation.openness(resource).reason}")

    def _of_job(self, job: JobId, resource: str) -> int:
        """Slots that earlier attempts of the job still have: they are given back before it gets new ones."""
        mine = (lease for lease in self._context.leases.leases() if lease.run is not None and lease.run.job == job)
        return sum(lease.slots for lease in mine if lease.resource == resource)

    def _worth_waiting(self, run: Run, grants: Sequence[Grant], error: QtandemError) -> bool:
        """Whether the cause can pass while the job's nodes wait.

        A manager starts a job only when one of its own has given the slot back, so a busy slot whose holder is
        a run is about to come free: its end has not been reported yet, or its release is under way.
        """
        if not error.retryable:
            return False
        names = {grant.resource for grant in grants}
        if error.code == "slots-busy":
            holders = [lease for lease in self._context.leases.leases() if lease.resource in names and lease.open]
            if any(lease.run is not None or lease.state is LeaseState.RELEASING for lease in holders):
                self.reap.set()
                return True
        if error.code == "not-available":
            now = self._context.clock()
            facts = [self._context.observer.facts.get(name) for name in names]
            if any(fact is None or fact.stale(now) for fact in facts):
                self._context.observer.nudge(names)
                return True
        return not run.can_requeue

    def _given_back(self, grants: Sequence[Grant]) -> bool:
        """Whether the slots are free but for leases that are being released."""
        kept: dict[str, int] = {}
        for lease in self._context.leases.leases():
            if lease.state is not LeaseState.RELEASING:
                kept[lease.resource] = kept.get(lease.resource, 0) + lease.slots
        slots = {grant.resource: self._context.catalog.get(grant.resource).slots for grant in grants}
        return all(kept.get(grant.resource, 0) + grant.slots <= slots[grant.resource] for grant in grants)

    def _forget_lost(self) -> None:
        """Starts that ended after their hook had gone: nobody asks for their outcome any more."""
        for run in [run for run, start in self._starts.items() if start.task.done() and self._lost(run)]:
            task = self._starts.pop(run).task
            if not task.cancelled() and (error := task.exception()):
                log("lifecycle").info("start without a hook", run=str(run), why=str(error))

    def _lost(self, run: RunId) -> bool:
        start = self._starts.get(run)
        return start is None or self._context.clock() - start.asked_at > ABANDONED_S


def _later(run: str, code: str, why: str, seconds: float) -> StartAnswer:
    message = f"{why}; next try in {seconds:.0f} s"
    return StartAnswer(verdict="hold", run=run, code=code, message=message, retry_after=seconds)


def _meant(run: RunId, job: JobId, attempt: int | None) -> bool:
    return run.job == job and (attempt is None or run.attempt <= attempt)


def users_fault(error: QtandemError) -> bool:
    """Whether a submission is rejected for this, rather than the call having failed."""
    return error.kind.fault is Fault.USER or error.code == "no-provider"

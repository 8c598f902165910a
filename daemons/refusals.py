"""Refused starts: counted in the store, backed off, and after enough of them the job is held with a comment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from qtandem.core.background import Background
from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Refusal
from qtandem.core.managers import JobState, Manager
from qtandem.core.runs import JobId, Run
from qtandem.core.settings import Timing
from qtandem.daemons.logs import log

# How long the manager gets to have the refused job pending again, and how often it is asked.
PENDING_AGAIN_S, ASK_S = 60.0, 0.5


@dataclass(frozen=True, slots=True)
class Refused:
    """What the hook prints, and the seconds after which the job may try again (0: it is held)."""

    message: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be done to a job once it is pending, up to a time."""

    what: str
    do: Callable[[], Awaitable[None]]
    until: float


class Closed(QtandemError):
    """`not-available`, because the newest fact about the resource says so; `open_at`: when each was last seen open."""

    def __init__(self, resource: str, reason: str, open_at: Mapping[str, float]) -> None:
        super().__init__("not-available", f"{resource} is closed: {reason}")
        self._resource, self._open_at = resource, open_at

    def was_open_after(self, moment: float) -> bool:
        return self._open_at.get(self._resource, 0.0) > moment


class Book(Protocol):
    """Where refusals are counted, by job."""

    async def refuse(self, job: str, now: float, base_s: float, max_s: float, reason: str) -> Refusal: ...

    async def clear_refusals(self, job: str) -> None: ...


class Refusals:
    """Back-off `refusal_backoff_s · 2ⁿ` by the manager's own delay, a hold at `refusals` refusals in a row.

    What the user or site must mend first is held at once; what only opens and closes again and again is never held for.
    Managers can delay or hold a job only once it is pending again, so that happens after the hook has its answer.
    """

    def __init__(self, book: Book, timing: Callable[[], Timing], *, clock: Callable[[], float]) -> None:
        self._book = book
        self._timing = timing
        self._clock = clock
        self._tasks = Background()
        self._wanted: dict[JobId, _Wanted] = {}
        self._refused_at: dict[JobId, float] = {}

    async def refuse(self, manager: Manager, run: Run, error: QtandemError) -> Refused:
        job, timing, now = run.id.job, self._timing(), self._clock()
        if error.code == "run-ended":
            # Nobody refused it: this start was overtaken by the end of its own run.
            return Refused(error.one_line(), error.retry_after or 0.0)
        refusal = await self._book.refuse(
            str(job), now, timing.refusal_backoff_s, timing.refusal_backoff_max_s, error.message
        )
        flaps = isinstance(error, Closed) and error.was_open_after(self._refused_at.get(job, now))
        held = not error.retryable or (refusal.count >= timing.refusals and not flaps)
        self._note(job, now)
        log("lifecycle").warning(
            "refused", run=str(run.id), code=error.code, why=error.one_line(), count=refusal.count, held=held
        )
        if not run.can_requeue:
            return Refused(f"{error.one_line()} (the job cannot be requeued)", 0.0)
        if held:
            times = f" (refused {refusal.count} times)" if error.retryable else ""
            comment = f"qtandem: {error.one_line()}{times}"
            self._later(manager, job, "hold", lambda: manager.hold(job, comment))
            return Refused(f"{comment}; the job is held", 0.0)
        delay = max(0.0, refusal.next_at - now)
        self._later(manager, job, "delay", lambda: manager.delay(job, delay))
        return Refused(f"{error.one_line()}; next try in {delay:.0f} s", delay)

    def _note(self, job: JobId, now: float) -> None:
        kept = now - 2 * self._timing().refusal_backoff_max_s
        self._refused_at = {each: at for each, at in self._refused_at.items() if at > kept}
        self._refused_at[job] = now

    async def forget(self, job: JobId) -> None:
        """The job started after all."""
        self._refused_at.pop(job, None)
        await self._book.clear_refusals(str(job))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _later(self, manager: Manager, job: JobId, what: str, do: Callable[[], Awaitable[None]]) -> None:
        """One looks after each job, however often its start is reported; what is wanted last is done."""
        looked_after = job in self._wanted
        self._wanted[job] = _Wanted(what, do, self._clock() + PENDING_AGAIN_S)
        if not looked_after:
            self._tasks.spawn(self._when_pending(manager, job))

    async def _when_pending(self, manager: Manager, job: JobId) -> None:
        try:
            while self._clock() < (wanted := self._wanted[job]).until:
                try:
                    found = (await manager.jobs([job]))[job]
                    if found is None or found.state is JobState.ENDED:
                        return
                    if found.state is JobState.PENDING:
                        wanted = self._wanted[job]
                        await wanted.do()
                        if self._wanted[job] is wanted:
                            return
                except QtandemError as error:
                    log("lifecycle").info(f"{wanted.what} not done yet", job=str(job), why=error.one_line())
                await asyncio.sleep(ASK_S)
            log("lifecycle").warning(f"{wanted.what} was not possible", job=str(job))
        finally:
            del self._wanted[job]

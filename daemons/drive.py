"""One task at its vendor: submit it once, follow it to its end, keep its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Task
from qtandem.core.providers.base import TaskReport, TaskState
from qtandem.daemons.logs import log
from qtandem.daemons.results import Results
from qtandem.daemons.vendorcalls import Calls

FIRST_POLL_S, POLL_MAX_S = 0.02, 5.0
# Later looks wait for a hundredth of the time that the task has been in its state.
POLL_SHARE = 0.01
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0
RESULT_TRIES = 5


@dataclass(slots=True)
class Live:
    """A task that has not ended. `stop` holds the reason once it shall end before its time.

    `resumed`: an earlier daemon had it, and may have sent it. `payload` is there until it is sent, if it is small.
    """

    task: Task
    bytes: int = 0
    charged: float = 0.0
    resumed: bool = False
    stop: str | None = None
    payload: Mapping[str, Any] | None = None
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    runner: asyncio.Task[None] | None = None

    def halt(self, reason: str) -> None:
        self.stop = self.stop or reason
        self.nudge.set()


@dataclass(frozen=True, slots=True)
class Driver:
    """Drives tasks. `token` gives the lease's vendor token, or None once the lease is not held any more.

    `save` writes a task to the store and then tells its watchers; `tell` does so at once. `finds_tasks` says whether
    the vendor knows tasks by our key, which is the task's id: only then may a submission that was interrupted be made
    again.
    """

    calls: Calls
    token: Callable[[str], str | None]
    save: Callable[[Live, Task], Awaitable[None]]
    tell: Callable[[Live, Task], None]
    results: Results
    payload: Callable[[str], Awaitable[Mapping[str, Any] | None]]
    finds_tasks: Callable[[Task], Awaitable[bool]]
    clock: Callable[[], float]

    async def drive(self, live: Live) -> None:
        """Bring the task to a final state. Cancelling leaves it as it is on disk, to be picked up again."""
        try:
            vendor_task = live.task.vendor_task or await self._submit(live)
            if vendor_task is None:
                await self._finish(live, TaskState.CANCELLED, live.stop or "")
                return
            await self._follow(live, vendor_task)
        except QtandemError as error:
            await self._finish(live, TaskState.FAILED, error.one_line() if error.cause else error.message)

    async def _submit(self, live: Live) -> str | None:
        """The vendor's id of the task; None if it was stopped before it got there."""
        payload = live.payload or await self.payload(live.task.id)
        if payload is None:
            raise QtandemError("task-failed", "The payload was lost before it was sent", remedy="Send it again.")
        unsure = live.resumed and live.task.state is TaskState.SUBMITTING
        delay = RETRY_FIRST_S
        while live.stop is None:
            try:
                vendor_task = await self._send(live, payload, unsure)
            except QtandemError as error:
                if not error.retryable:
                    raise
                log("tasks").warning("submission failed", task=live.task.id, why=error.one_line())
                unsure = True
                await _pause(live, error.retry_after or delay)
                delay = min(2 * delay, RETRY_MAX_S)
            else:
                live.payload = None
                await self.save(live, replace(live.task, vendor_task=vendor_task, state=TaskState.QUEUED))
                return vendor_task
        return await self._found(live) if unsure else None

    async def _send(self, live: Live, payload: Mapping[str, Any], unsure: bool) -> str:
        task = live.task
        if unsure and (found := await self._found(live)):
            return found
        if unsure and not await self.finds_tasks(task):
            raise QtandemError(
                "task-failed",
                "Its submission was interrupted, and the vendor cannot tell whether it got there",
                remedy="Look for it in the vendor's own list, then send it again.",
            )
        token = self.token(task.lease)
        if token is None:
            raise QtandemError("no-lease", f"The lease {task.lease} is not held any more")
        if task.state is not TaskState.SUBMITTING:
            await self.save(live, replace(task, state=TaskState.SUBMITTING))
        method = "task_start" if unsure else "task_send"
        return str(await self._call(task, method, token, task.id, dict(payload)))

    async def _found(self, live: Live) -> str | None:
        found = await self._call(live.task, "find_task", live.task.id)
        return None if found is None else str(found)

    async def _follow(self, live: Live, vendor_task: str) -> None:
        began, stopped, delay = self.clock(), False, RETRY_FIRST_S
        while True:
            try:
                if live.stop is not None and not stopped:
                    stopped = await self._stop(live, vendor_task)
                report = await self._call(live.task, "task_status", vendor_task)
            except QtandemError as error:
                if not error.retryable:
                    raise
                await _pause(live, max(delay, error.retry_after or 0.0))
                delay = min(2 * delay, RETRY_MAX_S)
                continue
            delay = RETRY_FIRST_S
            assert isinstance(report, TaskReport)
            if report.state.final:
                await self._conclude(live, vendor_task, report)
                return
            if await self._note(live, report):
                began = self.clock()
            await _pause(live, poll_pause_s(self.clock() - began))

    async def _stop(self, live: Live, vendor_task: str) -> bool:
        try:
            await self._call(live.task, "task_stop", vendor_task)
        except QtandemError as error:
            if error.retryable:
                raise
            log("tasks").warning("task not stopped", task=live.task.id, why=error.one_line())
        return True

    async def _note(self, live: Live, report: TaskReport) -> bool:
        """Whether the state is another than before."""
        if report.state is live.task.state:
            return False
        started = live.task.started_at
        if report.state is TaskState.RUNNING and started is None:
            started = self.clock()
        await self.save(live, replace(live.task, state=report.state, reason=report.reason, started_at=started))
        return True

    async def _conclude(self, live: Live, vendor_task: str, report: TaskReport) -> None:
        """The result is there before anybody is told of it. On disk for good it is before the task has ended there:

        a task that has not is followed again after a crash, and its result fetched again.
        """
        fetched = report.state is TaskState.COMPLETED and await self._fetch(live)
        now = self.clock()
        stopped = live.stop if report.state is TaskState.CANCELLED else None
        done = replace(
            live.task,
            state=report.state,
            reason=stopped or report.reason,
            started_at=live.task.started_at if live.task.started_at is not None else now,
            finished_at=now,
            usage_s=report.usage_s,
            shots=report.shots if report.shots is not None else live.task.shots,
            cost=report.cost,
        )
        self.tell(live, done)
        settled = self.results.settle(done) if fetched else asyncio.sleep(0)
        done, _ = await asyncio.gather(self._counted(done, vendor_task, report), settled)
        await self.save(live, done)

    async def _counted(self, done: Task, vendor_task: str, report: TaskReport) -> Task:
        """With the vendor's own count of what was used, where that takes a call more."""
        if not report.more:
            return done
        try:
            told = await self._call(done, "task_usage", vendor_task)
        except QtandemError as error:
            log("tasks").warning("usage not known", task=done.id, why=error.one_line())
            return done
        return replace(done, usage_s=told) if isinstance(told, float) else done

    async def _fetch(self, live: Live) -> bool:
        for attempt in range(RESULT_TRIES):
            try:
                await self.results.fetch(live.task)
            except QtandemError as error:
                if not error.retryable or attempt == RESULT_TRIES - 1:
                    # The vendor still has it: whoever asks for the result asks the vendor then.
                    log("tasks").warning("result not fetched", task=live.task.id, why=error.one_line())
                    return False
                await asyncio.sleep(RETRY_FIRST_S * 2.0**attempt)
            else:
                return True
        return False

    async def _finish(self, live: Live, state: TaskState, reason: str) -> None:
        await self.save(live, replace(live.task, state=state, reason=reason, finished_at=self.clock()))

    async def _call(self, task: Task, method: str, *args: object) -> object:
        return await self.calls.call(task.resource, method, *args, purpose="execute", uid=task.uid)


def poll_pause_s(elapsed_s: float) -> float:
    """How long to wait before the next look at a task that has been in its state for so long."""
    return min(max(FIRST_POLL_S, POLL_SHARE * elapsed_s), POLL_MAX_S)


async def _pause(live: Live, seconds: float) -> None:
    """Sleep that a stop ends at once."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await live.nudge.wait()
    live.nudge.clear()

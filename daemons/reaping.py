"""Background upkeep of leases: runs that the manager says are over, times that ran out, releases to try again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from qtandem.core.errors import QtandemError
from qtandem.core.leases.reaper import Reaper
from qtandem.core.managers import Job
from qtandem.core.runs import JobId, Run
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log

# The two answers that make a run dead lie so far apart; a start that waits for a slot has the question asked now.
APART_S = 5.0
SWEEP_MIN_S, SWEEP_MAX_S = 0.25, 1.0
DAY_S = 86_400.0
# Between looks at what is over for long, and between steps while there is some.
FORGET_S, FORGET_NEXT_S = 3600.0, 1.0


class Reaping:
    """Compares open runs with their managers every `reap_s`, or soon after somebody asked for it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reaper = Reaper(APART_S)

    async def reap_forever(self) -> None:
        wanted = self._context.lifecycle.reap
        while True:
            await self.reap()
            period = self._context.settings.timing.reap_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await wanted.wait()
                # Whoever asked suspects a run: two answers at the least distance that counts settle it.
                await self.reap()
                await asyncio.sleep(APART_S)
            wanted.clear()

    async def reap(self) -> None:
        context = self._context
        runs = context.leases.open_runs()
        answers: dict[JobId, Job | None] = {}
        for name in {run.id.job.manager for run in runs}:
            answers |= await self._ask(name, [run for run in runs if run.id.job.manager == name])
        dead = self._reaper.judge(runs, answers, context.clock())
        for each in dead:
            log("reaper").warning("reaped", run=str(each.run), why=each.reason)
        ends = (context.lifecycle.end(each.run.job, each.run.attempt, f"reaped: {each.reason}") for each in dead)
        await asyncio.gather(*ends)

    async def _ask(self, name: str, runs: list[Run]) -> Mapping[JobId, Job | None]:
        """The manager's answers; none where it cannot be reached, or is not configured any more: that means keep."""
        manager = self._context.managers.get(name)
        ids = sorted({run.id.job for run in runs if manager and run.id.job.cluster == manager.cluster})
        if manager is None or not ids:
            return {}
        try:
            return await manager.jobs(ids)
        except QtandemError as error:
            log("reaper").info("manager not asked", manager=name, why=error.one_line())
            return {}

    async def forget_forever(self) -> None:
        """Let go of what is over for longer than the site keeps it, a little at a time: others write meanwhile."""
        context = self._context
        while True:
            days = context.settings.daemon.keep_days
            gone = await context.records.forget(context.clock() - days * DAY_S) if days else 0
            if gone:
                log("reaper").info("forgotten", leases=gone, days=days)
            await asyncio.sleep(FORGET_NEXT_S if gone else FORGET_S)

    async def sweep_forever(self) -> None:
        """Let times run out soon after their time."""
        leases, clock = self._context.leases, self._context.clock
        while True:
            await leases.sweep(clock())
            due = leases.next_sweep()
            left = SWEEP_MAX_S if due is None else due - clock()
            await asyncio.sleep(min(max(left, SWEEP_MIN_S), SWEEP_MAX_S))

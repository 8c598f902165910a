"""Which resources jobs wait for, as far as managers and submissions tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Job, Manager
from qtandem.core.settings import Timing
from qtandem.daemons.logs import log
from qtandem.daemons.steady import keep


class Pending:
    """Asks each manager for its pending jobs every `poll_waiting_s`; a submission counts at once.

    `wanted()` is read by the observer; `on_new` is told of resources that were not waited for before.
    """

    def __init__(self, *, clock: Callable[[], float], on_new: Callable[[Iterable[str]], None]) -> None:
        self._clock = clock
        self._on_new = on_new
        self._asked: dict[str, frozenset[str]] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._noted: dict[str, float] = {}
        self._wanted: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        self._period_s = 15.0

    def wanted(self) -> frozenset[str]:
        return self._wanted

    def waiting(self, resource: str) -> int:
        """Jobs that the managers have pending for the resource."""
        return sum(counts.get(resource, 0) for counts in self._counts.values())

    def note(self, resources: Iterable[str]) -> None:
        """A job was just submitted for these; the next poll of its manager confirms or ends that."""
        until = self._clock() + 2 * self._period_s
        self._noted.update(dict.fromkeys(resources, until))
        self._renew()

    def configure(self, managers: Iterable[Manager], timing: Timing) -> None:
        for task in self._tasks:
            task.cancel()
        self._asked.clear()
        self._counts.clear()
        self._period_s = timing.poll_waiting_s
        self._tasks = [
            asyncio.create_task(keep("pending", partial(self._follow, manager)), name=f"pending {manager.name}")
            for manager in managers
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, manager: Manager) -> None:
        while True:
            try:
                self._take(manager.name, await manager.pending())
            except QtandemError as error:
                log("pending").info("pending jobs unknown", manager=manager.name, why=error.one_line())
            await asyncio.sleep(self._period_s)

    def _take(self, manager: str, jobs: Iterable[Job]) -> None:
        counts: dict[str, int] = {}
        for job in jobs:
            for grant in job.grants:
                counts[grant.resource] = counts.get(grant.resource, 0) + 1
        self._counts[manager] = counts
        self._asked[manager] = frozenset(counts)
        self._renew()

    def _renew(self) -> None:
        now = self._clock()
        self._noted = {name: until for name, until in self._noted.items() if until > now}
        wanted = frozenset(self._noted).union(*self._asked.values())
        fresh, self._wanted = wanted - self._wanted, wanted
        if fresh:
            self._on_new(fresh)

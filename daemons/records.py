"""The store's tasks, refusals and past runs, off the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from qtandem.core.leases.accounting import EACH_RUN, By
from qtandem.core.leases.model import Refusal, RunRecord, Task, Usage
from qtandem.core.leases.queries import Filter
from qtandem.core.leases.service import LeaseService
from qtandem.core.leases.store import Store
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId


class Records:
    """Each method as the store's own, on the writer's thread of the lease service where it writes."""

    def __init__(self, service: LeaseService, store: Store) -> None:
        self._service, self._store = service, store

    async def add_task(self, task: Task) -> Task:
        return await self._service.write(self._store.add_task, task)

    async def update_task(self, task: Task) -> None:
        await self._service.write(self._store.update_task, task)

    async def task(self, id: str) -> Task | None:
        return await self._service.read(self._store.task, id)

    async def tasks(self, where: Filter) -> list[Task]:
        return await self._service.read(self._store.tasks, where)

    async def refuse(self, job: str, now: float, base_s: float, max_s: float, reason: str) -> Refusal:
        return await self._service.write(self._store.refuse, job, now, base_s, max_s, reason)

    async def refusal(self, job: str) -> Refusal | None:
        return await self._service.read(self._store.refusal, job)

    async def clear_refusals(self, job: str) -> None:
        """Nothing is written for a job that was never refused, which is nearly every one."""
        if await self.refusal(job) is not None:
            await self._service.write(self._store.clear_refusals, job)

    async def pin(self, job: str, grants: Sequence[Grant], now: float) -> None:
        await self._service.write(self._store.pin, job, grants, now)

    async def pins(self) -> dict[str, tuple[Grant, ...]]:
        return await self._service.read(self._store.pins)

    async def unpin(self, jobs: Sequence[str]) -> None:
        await self._service.write(self._store.unpin, jobs)

    async def forget(self, before: float) -> int:
        return await self._service.write(self._store.forget, before)

    async def runs(self, where: Filter) -> list[RunRecord]:
        return await self._service.read(self._store.runs, where)

    async def runs_of_job(self, job: JobId) -> list[RunRecord]:
        return await self._service.read(self._store.runs_of_job, job)

    async def usage(self, where: Filter, now: float, by: Sequence[By] = EACH_RUN) -> list[Usage]:
        return await self._service.read(self._store.usage, where, now, by)

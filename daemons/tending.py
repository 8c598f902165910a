"""Looks after waiting jobs: moves them to a resource that opens earlier, and ends pauses that have lost their cause."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from qtandem.core import requests, verdicts
from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState, Manager, Mover
from qtandem.core.verdicts import Asker, Situation
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log

# Resources that open together are one look at the manager's jobs.
GATHER_S = 0.2
# A look changes so many jobs at most; the next one goes on.
CHANGES = 32
# A pause that is nearly over ends by itself.
WORTH_S = 2.0


class Tending:
    """Looks when a resource opens, and every `poll_waiting_s`; not at all while no job waits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: frozenset[str] = frozenset()
        self._free_now: frozenset[str] = frozenset()
        # Managers whose waiting jobs include such as other resources could serve too, at the last look.
        self._choosing: set[str] = set()

    async def forever(self) -> None:
        context = self._context
        due = context.clock()
        with context.signals.watch("facts", "leases") as news:
            while True:
                await news.next(max(0.05, due - context.clock()))
                opened, freed, taken = self._opened()
                if not (opened or freed or (taken and self._choosing)) and context.clock() < due:
                    continue
                await asyncio.sleep(GATHER_S)
                opened |= self._opened()[0]
                due = context.clock() + context.settings.timing.poll_waiting_s
                if context.pending.wanted():
                    await self.look(opened)

    async def look(self, opened: Collection[str]) -> None:
        """One look at all managers' waiting jobs; `opened` are the resources that were closed before."""
        for manager in self._context.managers.values():
            try:
                waiting = [job for job in await manager.pending() if job.state is JobState.PENDING]
                await self._resume(manager, waiting, opened)
                if isinstance(manager, Mover):
                    await self._move(manager, manager, waiting)
            except QtandemError as error:
                log("tending").info("waiting jobs not looked at", manager=manager.name, why=error.one_line())

    def _opened(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """What opened by its facts since the last call, what has a slot free that had none, what has none any more.

        Only the first ends a back-off: a refused start itself takes a slot and gives it back. After the last one
        whoever waits for it may be better off elsewhere.
        """
        situation, resources = self._context.situation(), self._context.catalog.resources.values()
        unleased = replace(situation, leased={})
        now = frozenset(each.name for each in resources if unleased.openness(each).open)
        free = frozenset(each.name for each in resources if situation.openness(each).open)
        opened, self._open = now - self._open, now
        freed, taken, self._free_now = free - self._free_now, self._free_now - free, free
        return opened, freed, taken

    async def _resume(self, manager: Manager, waiting: Sequence[Job], opened: Collection[str]) -> None:
        """End the pause of jobs whose resources are open: the manager's own, or ours if one has opened since.

        Each of our refusals counts, so a resource that opens and closes all the time ends in a hold, not a storm. A
        job that names its nodes keeps the manager's pause: it may have lost one of them, and would be launched there
        the moment the node is back, before it can take a job.
        """
        situation, changes = self._context.situation(), 0
        for job in waiting:
            paused = job.eligible_at is not None and job.eligible_at > situation.now + WORTH_S
            if not paused or not self._fits(job.grants, situation):
                continue
            refusal = await self._context.records.refusal(str(job.id))
            ours = refusal is not None and any(grant.resource in opened for grant in job.grants)
            if (ours or (refusal is None and job.pausing and not job.nodes)) and changes < CHANGES:
                changes += 1
                await manager.delay(job.id, 0.0)
                log("tending").info("resumed", job=str(job.id), refusals=refusal.count if refusal else 0)

    async def _move(self, manager: Manager, mover: Mover, waiting: Sequence[Job]) -> None:
        """Move jobs from resources that are closed to such as are open and that their owners may have."""
        candidates = [job for job in waiting if job.request]
        self._choosing.discard(manager.name)
        if not candidates:
            return
        self._choosing.add(manager.name)
        pins, situation = await self._context.records.pins(), self._context.situation()
        await self._forget(manager, pins, waiting)
        free, changes = self._free(waiting, situation), 0
        for job in candidates:
            if changes == CHANGES or not any(slots > 0 for slots in free.values()):
                break
            pinned = pins.get(str(job.id), job.pinned)
            if set(pinned) != set(job.grants) or self._fits(job.grants, situation):
                continue
            better = self._better(job, situation)
            if not better or any(free.get(grant.resource, 0) < grant.slots for grant in better):
                continue
            changes += 1
            for grant in better:
                free[grant.resource] -= grant.slots
            # Noted first: a move that is not noted would pass for its owner's.
            await self._context.records.pin(str(job.id), better, situation.now)
            try:
                await mover.move(job.id, better)
            except QtandemError as error:
                log("tending").info("not moved", job=str(job.id), why=error.one_line())
                await self._context.records.pin(str(job.id), pinned, situation.now)
            else:
                names = [grant.resource for grant in better]
                log("tending").info("moved", job=str(job.id), to=names, frm=[grant.resource for grant in job.grants])

    def _better(self, job: Job, situation: Situation) -> tuple[Grant, ...]:
        """What the job would get if it were submitted now, by its owner's rights of now; empty if that is not open."""
        partitions = tuple(job.partition.split(",")) if job.partition else ()
        registered = self._context.keys.resources(job.uid)
        asker = Asker(job.uid, job.user, job.account, partitions, job.nodes, registered)
        try:
            verdict = verdicts.submit(requests.parse(job.request), (), asker, self._context.catalog, situation)
        except QtandemError as error:
            log("tending").info("not moved", job=str(job.id), why=error.one_line())
            return ()
        if verdict is None or set(verdict.grants) == set(job.grants) or not self._fits(verdict.grants, situation):
            return ()
        return verdict.grants

    def _fits(self, grants: Sequence[Grant], situation: Situation) -> bool:
        for grant in grants:
            resource = self._context.catalog.find(grant.resource)
            if resource is None or situation.openness(resource).free < grant.slots:
                return False
        return True

    def _free(self, waiting: Sequence[Job], situation: Situation) -> dict[str, int]:
        """Free slots that no waiting job is about to take."""
        free = {each.name: situation.openness(each).free for each in self._context.catalog.resources.values()}
        for job in waiting:
            if self._fits(job.grants, situation) and (job.eligible_at or 0.0) <= situation.now:
                for grant in job.grants:
                    free[grant.resource] -= grant.slots
        return free

    async def _forget(self, manager: Manager, pins: Mapping[str, object], waiting: Sequence[Job]) -> None:
        mine = f"{manager.name}:{manager.cluster}:"
        there = {str(job.id) for job in waiting}
        gone = [job for job in pins if job.startswith(mine) and job not in there]
        if gone:
            await self._context.records.unpin(gone)

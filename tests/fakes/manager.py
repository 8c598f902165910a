"""A workload manager in memory, with faults to order and a record of what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities, Published, SensorValue
from qtandem.core.runs import JobId


class FakeManager:
    """Meets `Manager`. `lost` natives never read back; `gate` (an event), when set, is waited for by publications."""

    capabilities = ManagerCapabilities()

    def __init__(self, name: str = "fake", cluster: str = "c", natives: Mapping[str, str] | None = None) -> None:
        self.name, self.cluster = name, cluster
        self.natives = dict(natives or {})
        self.values: dict[str, SensorValue] = {}
        self.publications: list[list[SensorValue]] = []
        self.kicks: list[frozenset[str]] = []
        self.known: dict[JobId, Job] = {}
        self.asked = 0
        self.held: dict[JobId, str] = {}
        self.delays: dict[JobId, float] = {}
        self.unreachable = False
        self.lost: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.at_once = 0
        self.most_at_once = 0

    def id(self, job: str, index: int | None = None) -> JobId:
        return JobId(self.name, self.cluster, job, index)

    def add(self, job: str, state: JobState = JobState.PENDING, uid: int = 1000, **fields: object) -> Job:
        id = self.id(job)
        self.known[id] = Job(id, state, uid, f"u{uid}", **fields)  # type: ignore[arg-type]
        return self.known[id]

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        return {"licenses": ",".join(f"{self.natives[grant.resource]}@q:{grant.slots}" for grant in grants)}

    def read_native(self, text: str) -> tuple[Grant, ...]:
        names = {native: name for name, native in self.natives.items()}
        grants = []
        for part in filter(None, text.split(",")):
            native, _, slots = part.partition("@q:")
            if native in names:
                grants.append(Grant(names[native], int(slots or 1)))
        return tuple(grants)

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(0)
            self._reach()
            self.publications.append(list(values))
            good = {value.native: value for value in values if value.native not in self.lost}
            self.values |= good
            bad = {value.native: "reads back otherwise" for value in values if value.native in self.lost}
            return Published(frozenset(good), bad)
        finally:
            self.at_once -= 1

    async def sensors(self) -> dict[str, int]:
        self._reach()
        return {native: value.open for native, value in self.values.items()}

    async def kick(self, natives: Iterable[str]) -> None:
        self._reach()
        self.kicks.append(frozenset(natives))

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        self._reach()
        self.asked += 1
        return {id: self.known.get(id) for id in ids}

    async def pending(self) -> list[Job]:
        self._reach()
        return [job for job in self.known.values() if job.state is JobState.PENDING and job.grants]

    async def hold(self, job: JobId, comment: str) -> None:
        self._reach()
        self.held[job] = comment

    async def delay(self, job: JobId, seconds: float) -> None:
        self._reach()
        self.delays[job] = seconds

    async def move(self, job: JobId, grants: Sequence[Grant]) -> None:
        self._reach()
        if self.known[job].state is not JobState.PENDING:
            raise QtandemError("command-failed", "it has started")
        self.known[job] = replace(self.known[job], grants=tuple(grants))

    def become(self, job: JobId, state: JobState, **fields: object) -> None:
        self.known[job] = replace(self.known[job], state=state, **fields)  # type: ignore[arg-type]

    def _reach(self) -> None:
        if self.unreachable:
            raise QtandemError("manager-unreachable", f"{self.name} does not answer")

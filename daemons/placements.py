"""What we have pinned and ordered, on disk before the manager is told, so that none of it outlives its time.

What a submit hook pinned is noted with the job instead (AdminComment in Slurm); both are taken back here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from qtandem.core.errors import QtandemError
from qtandem.core.files import write_atomic
from qtandem.core.inventory import Placer, Waiting
from qtandem.core.managers import JobState
from qtandem.core.runs import JobId
from qtandem.daemons.logs import log

# The time up to which hooks' pins are expected is written again when it has grown by so much.
EXPECTED_S = 60.0


@dataclass(frozen=True, slots=True)
class Placement:
    """What we did to one pending job: the nodes that it is pinned to, and the niceness before we set `nice`."""

    job: str
    at: float
    nodes: tuple[str, ...] = ()
    nice: int | None = None
    nice_before: int = 0


@dataclass(frozen=True, slots=True)
class _File:
    placements: list[Placement] = field(default_factory=list)
    expect_until: float = 0.0


_ADAPTER: TypeAdapter[_File] = TypeAdapter(_File)


class Placements:
    """Kept in `file`. `pins` are those to one node, by job."""

    def __init__(self, file: Path) -> None:
        self._file = file
        kept = _read(file)
        self._kept = {each.job: each for each in kept.placements}
        self._expect_until = kept.expect_until
        self._writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """What we have pinned jobs to."""
        return {name: each.nodes for name, each in self._kept.items() if each.nodes}

    @property
    def pins(self) -> dict[str, str]:
        return {name: nodes[0] for name, nodes in self.nodes.items() if len(nodes) == 1}

    def get(self, job: str) -> Placement | None:
        return self._kept.get(job)

    async def note(self, placements: Sequence[Placement]) -> None:
        """On disk when this returns; to be called before the manager is told."""
        self._kept.update({each.job: each for each in placements})
        await self._write()

    async def forget(self, jobs: Iterable[str]) -> None:
        gone = [job for job in jobs if self._kept.pop(job, None) is not None]
        if gone:
            await self._write()

    async def expect(self, until: float) -> None:
        """A hook is about to pin a job: jobs are to be looked at until then, whatever becomes of the settings."""
        if until > self._expect_until + EXPECTED_S:
            self._expect_until = until
            await self._write()

    def expecting(self, now: float) -> bool:
        return bool(self._kept) or now < self._expect_until

    async def withdraw(self, manager: Placer, waiting: Sequence[Waiting], now: float, after_s: float) -> int:
        """Take back what has stood for `after_s` on jobs that still wait; returns how many.

        A job that has started keeps it, and may wait again; one that is over is forgotten.
        """
        there = {str(job.id): job for job in waiting}
        await self.forget(await _over(manager, [name for name in self._kept if name not in there]))
        count = 0
        for name, job in there.items():
            kept = self._kept.get(name)
            since = max(job.eligible_at, kept.at if kept is not None else job.submitted_at)
            if now - since < after_s:
                continue
            count += await self._undo(manager, job, kept) if kept is not None else await _undo_noted(manager, job)
        return count

    async def release(self, manager: Placer, job: Waiting) -> bool:
        """Take back what was done to one job; whether there was anything."""
        kept = self._kept.get(str(job.id))
        return await self._undo(manager, job, kept) if kept is not None else await _undo_noted(manager, job)

    async def _undo(self, manager: Placer, job: Waiting, kept: Placement) -> bool:
        """Only what still is as we set it: what its owner has changed since is the owner's."""
        changed = False
        if kept.nodes and job.shape.required == kept.nodes:
            changed |= await _told(manager.place(job.id, ()), job.id, "pin")
        if kept.nice is not None and job.nice == kept.nice:
            changed |= await _told(manager.reorder(job.id, kept.nice_before), job.id, "order")
        await self.forget([str(job.id)])
        return changed

    async def _write(self) -> None:
        async with self._writing:
            data = _ADAPTER.dump_json(_File(list(self._kept.values()), self._expect_until))
            await asyncio.to_thread(write_atomic, self._file, data, 0o600)


def pinned_by_hook(job: Waiting) -> str | None:
    """The node to which the submit hook pinned a job, if that still holds."""
    placed = job.placed
    holds = placed is not None and placed.policy == "pin" and placed.nodes == job.shape.required
    return job.shape.required[0] if holds and len(job.shape.required) == 1 else None


async def _over(manager: Placer, names: Sequence[str]) -> list[str]:
    """Those of the jobs that the manager has no more."""
    ids = {JobId.parse(name): name for name in names}
    found = await manager.jobs(list(ids)) if ids else {}
    return [ids[id] for id, job in found.items() if job is None or job.state is JobState.ENDED]


async def _undo_noted(manager: Placer, job: Waiting) -> bool:
    placed, shape = job.placed, job.shape
    if placed is None:
        return False
    if placed.policy == "pin" and placed.nodes == shape.required:
        return await _told(manager.place(job.id, ()), job.id, "pin of its submission")
    if placed.policy == "exclude" and placed.nodes and set(placed.nodes) <= set(shape.excluded):
        rest = [node for node in shape.excluded if node not in placed.nodes]
        return await _told(manager.bar(job.id, rest), job.id, "exclusion of its submission")
    return False


async def _told(change: Awaitable[None], job: JobId, what: str) -> bool:
    try:
        await change
    except QtandemError as error:
        if error.code == "manager-unreachable":
            raise
        # It has started or gone since it was listed.
        log("planning").info("not taken back", job=str(job), what=what, why=error.one_line())
        return False
    log("planning").info("taken back", job=str(job), what=what)
    return True


def _read(file: Path) -> _File:
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except FileNotFoundError:
        return _File()
    except (OSError, ValidationError) as error:
        log("planning").warning("placements not read", file=str(file), why=str(error)[:200])
        return _File()

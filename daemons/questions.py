"""Questions to a manager about jobs that somebody on a node speaks of: few at a time, whoever asks how often.

Each is a command or a call of the manager, and comes before anything is known of who may ask. What a node asks while
its last question is under way goes together in its next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qtandem.core.managers import Job, Manager
from qtandem.core.runs import JobId

# Of all nodes; the launcher has some places more, which publishers and workers must find free.
AT_ONCE = 16

Found = Mapping[JobId, Job | None]


@dataclass(slots=True)
class _Line:
    """One node's."""

    asked: list[JobId] = field(default_factory=list)
    next: asyncio.Task[Found] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Questions:
    """Those of one daemon."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._lines: dict[tuple[str, str], _Line] = {}

    async def job(self, manager: Manager, job: JobId, node: str) -> Job | None:
        """What the manager says of the job after this call began; raises as `Manager.jobs`."""
        key = manager.name, node
        line = self._lines.setdefault(key, _Line())
        if line.next is None:
            line.asked = []
            line.next = asyncio.create_task(self._round(key, line, line.asked, manager))
            line.next.add_done_callback(_heard)
        line.asked.append(job)
        return (await asyncio.shield(line.next))[job]

    async def _round(self, key: tuple[str, str], line: _Line, asked: Sequence[JobId], manager: Manager) -> Found:
        try:
            async with line.lock, self._turns:
                line.next = None
                return await manager.jobs(list(dict.fromkeys(asked)))
        finally:
            if line.next is None and not line.lock.locked():
                self._lines.pop(key, None)


def _heard(task: asyncio.Task[Found]) -> None:
    """Whoever asked may have left."""
    if not task.cancelled():
        task.exception()

"""Looks at tasks: those that are wanted while one call is under way go together in the next one.

However many tasks a resource has, its vendor is asked by one call at a time, and not more often than every `GAP_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import TaskReport
from qtandem.core.providers.secrecy import digest

GAP_S = 0.01
MOST = 200

Secrets = Mapping[str, str] | None
# The reports on tasks of a resource in their order, or on the first of them.
Ask = Callable[[str, Sequence[str], Secrets], Awaitable[object]]
Seen = Mapping[str, TaskReport | QtandemError]


@dataclass(slots=True)
class _Line:
    """One resource and credential."""

    asked: list[str] = field(default_factory=list)
    next: asyncio.Task[Seen] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0


class Looks:
    """`ask` is one call to the vendor."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lines: dict[tuple[str, str], _Line] = {}

    async def report(self, resource: str, task: str, secrets: Secrets) -> TaskReport:
        """How the vendor's task stands; raises what the vendor's answer means for it, or for all that were asked."""
        line = self._lines.setdefault((resource, digest(secrets or {})), _Line())
        while True:
            if line.next is None or len(line.asked) >= MOST:
                line.asked = []
                line.next = asyncio.create_task(self._round(line, line.asked, resource, secrets))
                line.next.add_done_callback(_heard)
            line.asked.append(task)
            seen = await asyncio.shield(line.next)
            if task in seen:
                found = seen[task]
                if isinstance(found, QtandemError):
                    raise found
                return found

    async def _round(self, line: _Line, asked: Sequence[str], resource: str, secrets: Secrets) -> Seen:
        me = asyncio.current_task()
        async with line.lock:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(line.free_at - loop.time())
            if line.next is me:
                line.next = None
            line.free_at = loop.time() + GAP_S
            tasks = list(dict.fromkeys(asked))
            answers = await self._ask(resource, tasks, secrets)
        if not isinstance(answers, list):
            raise QtandemError("vendor-error", f"The provider of {resource} answered task_statuses wrongly")
        return dict(zip(tasks, answers, strict=False))


def _heard(task: asyncio.Task[Seen]) -> None:
    """Whoever asked may have left."""
    if not task.cancelled():
        task.exception()

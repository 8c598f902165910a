"""Looks at tasks: those that are wanted while one call is under way go together in the next one.

However many tasks a resource has, its vendor is asked by one call at a time, and not more often than every `GAP_S`.
Where a vendor's answer tells of others too that were seen under way, those that have ended need no look of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import TaskReport
from qtandem.core.providers.secrecy import digest

GAP_S = 0.01
MOST = 200

T = TypeVar("T")
Secrets = Mapping[str, str] | None
# Reports on the tasks of a resource, or on some of them; and on those of the others that have ended, where that costs
# nothing.
Ask = Callable[[str, Sequence[str], Sequence[str], Secrets], Awaitable[object]]
Seen = Mapping[str, TaskReport | QtandemError]


@dataclass(slots=True)
class _Line:
    """One resource and credential. `open` are the tasks that had not ended when they were last seen, `ended` those
    seen to have ended in a look for others."""

    open: dict[str, None] = field(default_factory=dict)
    ended: dict[str, TaskReport] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    next: asyncio.Task[Seen] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0


class Looks:
    """`ask` is one call to the vendor; `tell` is called with a resource and its task that a look is due for."""

    def __init__(self, ask: Ask, tell: Callable[[str, str], None]) -> None:
        self._ask, self._tell = ask, tell
        self._lines: dict[tuple[str, str], _Line] = {}

    async def report(self, resource: str, task: str, secrets: Secrets) -> TaskReport:
        """How the vendor's task stands; raises what the vendor's answer means for it, or for all that were asked."""
        line = self._lines.setdefault((resource, digest(secrets or {})), _Line())
        line.open.pop(task, None)
        while (report := line.ended.pop(task, None)) is None:
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
                if not found.state.final:
                    _keep(line.open, task, None)
                return found
        return report

    async def _round(self, line: _Line, asked: Sequence[str], resource: str, secrets: Secrets) -> Seen:
        me = asyncio.current_task()
        async with line.lock:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(line.free_at - loop.time())
            if line.next is me:
                line.next = None
            line.free_at = loop.time() + GAP_S
            tasks = dict.fromkeys(asked)
            others = [task for task in line.open if task not in tasks]
            answers = await self._ask(resource, list(tasks), others, secrets)
        if not isinstance(answers, dict):
            raise QtandemError("vendor-error", f"The provider of {resource} answered task_statuses wrongly")
        for task in others:
            if task in answers and task in line.open:
                del line.open[task]
                _keep(line.ended, task, answers[task])
                self._tell(resource, task)
        return answers


def _keep(tasks: dict[str, T], task: str, value: T) -> None:
    """Of those that nobody asks for any more no more than this are kept."""
    tasks[task] = value
    if len(tasks) > MOST:
        del tasks[next(iter(tasks))]


def _heard(task: asyncio.Task[Seen]) -> None:
    """Whoever asked may have left."""
    if not task.cancelled():
        task.exception()

"""Tasks that nobody waits for at their start."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background(set[asyncio.Task[Any]]):
    """Those that are under way. An event loop alone would let go of a task before its end."""

    def spawn(
        self, work: Coroutine[Any, Any, T], name: str | None = None, *, forgiven: bool = False
    ) -> asyncio.Task[T]:
        """`forgiven`: asyncio does not complain where nobody looks at what it failed with."""
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self._forgive if forgiven else self.discard)
        return task

    def _forgive(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled():
            task.exception()

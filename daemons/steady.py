"""Background loops that go on: a fault in one is logged with its trace and counted, and the loop starts again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from qtandem.daemons.logs import log

PAUSE_S = 1.0
# Faults by loop since the daemon started; shown by health and metrics.
faults: Counter[str] = Counter()


async def keep(name: str, loop: Callable[[], Awaitable[None]], pause_s: float = PAUSE_S) -> None:
    """Run `loop` for ever. What it raises is a bug of ours or of a plugin, never a reason to stop serving."""
    while True:
        try:
            await loop()
        except Exception:
            faults[name.partition(" ")[0]] += 1
            log("fault").exception("fault", loop=name)
        await asyncio.sleep(pause_s)


def every(name: str, period_s: Callable[[], float], work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """A task that does `work` at once and then each `period_s()` seconds."""

    async def loop() -> None:
        while True:
            await work()
            await asyncio.sleep(period_s())

    return asyncio.create_task(keep(name, loop), name=name)

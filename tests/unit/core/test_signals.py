"""Waiting for changes without polling."""

from __future__ import annotations

import asyncio

from qtandem.core.signals import Signals


async def test_a_wait_ends_at_the_next_change():
    signals = Signals()
    with signals.watch("leases") as watch:
        waiting = asyncio.create_task(watch.next(5))
        await asyncio.sleep(0)
        signals.send("facts", "fez")
        await asyncio.sleep(0)
        assert not waiting.done()
        signals.send("leases", "fez")
        assert await waiting == {"fez"}


async def test_a_wait_gives_up_in_time():
    with Signals().watch("leases") as watch:
        assert await watch.next(0.01) == frozenset()


async def test_a_watch_collects_what_changed_between_two_looks():
    signals = Signals()
    with signals.watch("leases", "facts") as watch:
        for key in ("fez", "garnet", "fez"):
            signals.send("leases", key)
        signals.send("facts", "torino")
        signals.send("tasks", "t1")
        assert await watch.next(1) == {"fez", "garnet", "torino"}
        assert await watch.next(0.01) == frozenset()
    signals.send("leases", "fez")
    assert await watch.next(0.01) == frozenset()

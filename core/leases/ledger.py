"""Changes leases in memory and on disk, in one order: memory at once, the disk on one writer thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import structlog

from qtandem.core.leases.book import Book, Owner
from qtandem.core.leases.model import Lease, OwnerChange
from qtandem.core.leases.store import Store
from qtandem.core.signals import Signals

P = ParamSpec("P")
R = TypeVar("R")
TOPIC = "leases"
# What came while the disk was waited for is written in one transaction, up to so many writes.
MOST_TOGETHER = 64

_log = structlog.get_logger("qtandem.leases")


@dataclass(frozen=True, slots=True)
class _Write:
    work: Callable[[], object]
    done: asyncio.Future[Any]

    def settle(self, outcome: object) -> None:
        if self.done.cancelled():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class Ledger:
    """`write` and `read` run a method of the store off the event loop; writes keep the order of their calls.

    A write that was asked for is done, whatever becomes of its caller.
    """

    def __init__(self, store: Store, clock: Callable[[], float], signals: Signals) -> None:
        self.store, self.clock, self.book = store, clock, Book()
        self._signals = signals
        self._asked: deque[_Write] = deque()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="qtandem-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="qtandem-read")

    async def write(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()
        self._asked.append(_Write(lambda: method(*args, **kwargs), done))
        self._writer.submit(self._write_asked, loop)
        return await asyncio.shield(done)

    async def read(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, lambda: method(*args, **kwargs))

    async def reserve(self, owner: Owner, leases: Sequence[Lease]) -> None:
        """Take the slots at once, then write; when that fails the slots are free again, and the error raised."""
        self._put(owner, leases)
        try:
            await self.write(self.store.reserve, owner.record, leases, self.clock())
        except Exception:
            self.drop(owner)
            raise

    async def change(self, owner: Owner, leases: Sequence[Lease], change: OwnerChange | None = None) -> None:
        """Put leases that stay open into a new state. Memory keeps it even when writing fails and raises."""
        self._put(owner, leases)
        if change is not None:
            owner.state, owner.change = change.state, change
        try:
            await self.write(self.store.save, leases, change)
        except BaseException:
            owner.unwritten = True
            raise

    async def mend(self, owner: Owner) -> None:
        """Write what an earlier `change` could not."""
        if owner.unwritten:
            await self.write(self.store.save, tuple(owner.leases.values()), owner.change)
            owner.unwritten = False

    async def finish(self, owner: Owner, lease: Lease) -> None:
        """Write a lease's last state, and only then free its slots."""
        await self.write(self.store.save, (lease,))
        self._put(owner, (lease,))

    def note(self, owner: Owner, lease: Lease) -> None:
        """Show a passing remark on a lease, in memory alone."""
        self.book.put(owner, lease)
        self._signals.send(TOPIC, lease.resource)

    def drop(self, owner: Owner) -> None:
        resources = {lease.resource for lease in owner.leases.values()}
        self.book.drop(owner)
        self._tell(resources)

    def close(self) -> None:
        """Finish the writes that were asked for; nothing can be asked afterwards."""
        self._writer.shutdown()
        self._reader.shutdown()

    def _write_asked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what was asked for until now, in the writer's thread; those submitted for it find none later."""
        taken: list[_Write] = []
        while self._asked and len(taken) < MOST_TOGETHER:
            taken.append(self._asked.popleft())
        for write, outcome in zip(taken, self.store.together([each.work for each in taken]), strict=True):
            loop.call_soon_threadsafe(write.settle, outcome)

    def _put(self, owner: Owner, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.book.put(owner, lease)
            _log.info(
                "lease",
                lease=lease.id,
                owner=lease.owner,
                resource=lease.resource,
                slots=lease.slots,
                state=lease.state.value,
                reason=lease.reason,
            )
        self._tell({lease.resource for lease in leases})

    def _tell(self, resources: Iterable[str]) -> None:
        for resource in resources:
            self._signals.send(TOPIC, resource)

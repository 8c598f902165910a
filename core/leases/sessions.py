"""What leases open and close at the vendor, and how that survives a vendor that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import structlog

from qtandem.core.background import Background
from qtandem.core.errors import QtandemError
from qtandem.core.leases.book import Owner
from qtandem.core.leases.ledger import Ledger
from qtandem.core.leases.model import ClaimHead, Lease, LeaseState, OwnerChange, OwnerState

T = TypeVar("T")

# With these answers to an acquisition nothing was opened, and asking the vendor again would fail the same way.
_REFUSED = {"bad-config", "bad-credentials", "no-provider", "policy", "unknown-resource", "unsupported"}
# After these an acquisition may still be carried out: the vendor is looked at twice, this long apart.
_UNSURE = {"vendor-error", "vendor-timeout", "internal"}
SETTLE_S = 5.0

_log = structlog.get_logger("qtandem.leases")


class Vendor(Protocol):
    """The vendors of all resources. Each call answers or raises within a deadline of its own.

    `key` is the lease's id. `find_session` tells the token of the open session that `acquire` made with `key`,
    None where there is none. Releasing a closed session is no error.
    """

    async def acquire(self, resource: str, key: str, slots: int) -> str: ...

    async def release(self, resource: str, token: str) -> None: ...

    async def find_session(self, resource: str, key: str) -> str | None: ...


class Tasks:
    """Work that goes on whoever asked for it and left."""

    def __init__(self) -> None:
        self._tasks = Background()
        self._stopped = False

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        # Whoever asked may have left.
        task = self._tasks.spawn(work, forgiven=True)
        if self._stopped:
            task.cancel()
        return task

    async def settled(self) -> None:
        """Return once no work is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Stop everything, and what a task spawns while it is being stopped before it does anything."""
        self._stopped = True
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Unsettled(Exception):
    """The vendor shows no session, but a lost acquisition may still be on its way there."""


@dataclass(frozen=True, slots=True)
class _Retry:
    tries: int
    at: float


class Sessions:
    """One task at a time for each lease: an acquisition, then as many tries of its release as it takes."""

    def __init__(self, ledger: Ledger, vendor: Vendor, tasks: Tasks, backoff_max_s: Callable[[], float]) -> None:
        self._ledger, self._vendor, self._tasks = ledger, vendor, tasks
        self._backoff_max_s = backoff_max_s
        self._acquiring: dict[str, asyncio.Task[None]] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}
        self._retries: dict[str, _Retry] = {}
        self._empty: set[str] = set()
        self._unsure: set[str] = set()

    async def acquire(self, owner: Owner) -> None:
        """Acquire all leases of `owner`; raises the vendor's error when one of them fails.

        Returns also when the owner was ended meanwhile: look at its state.
        """
        now = self._ledger.clock()
        leases = [replace(x, state=LeaseState.ACQUIRING, changed_at=now) for x in owner.leases.values()]
        await self._ledger.change(owner, leases)
        if not owner.active:
            return
        tasks = {lease.id: self._tasks.spawn(self._acquire(owner, lease)) for lease in leases}
        self._acquiring |= tasks
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        for id in tasks:
            self._acquiring.pop(id, None)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise errors[0]

    def abandon(self, owner: Owner) -> None:
        """Stop waiting for acquisitions that the vendor does not answer; their release looks what became of them."""
        for id in owner.leases:
            if id in self._acquiring:
                self._acquiring[id].cancel()

    async def give_back(
        self, owner: Owner, change: OwnerChange, outcome: LeaseState | None = None
    ) -> list[asyncio.Task[None]]:
        """Write that all leases of `owner` go back, and start doing it; returns the first tries.

        `outcome` is the state that they end in (default: `released` if it was held, else `failed`).
        """
        changed: list[Lease] = []
        for lease in owner.leases.values():
            if lease.state is LeaseState.RELEASING:
                continue
            if lease.state is LeaseState.RESERVED:
                self._empty.add(lease.id)
            end = LeaseState.RELEASED if lease.state is LeaseState.HELD else LeaseState.FAILED
            changed.append(
                replace(
                    lease,
                    state=LeaseState.RELEASING,
                    changed_at=change.at,
                    expires_at=None,
                    reason=change.reason,
                    outcome=outcome or end,
                )
            )
        try:
            await self._ledger.change(owner, changed, change)
        except Exception:
            self.release(owner)
            raise
        return self.release(owner)

    def release(self, owner: Owner) -> list[asyncio.Task[None]]:
        """Start, or join, the release of each lease of `owner`, which are all in `releasing`."""
        return [self._release_task(owner, id) for id in tuple(owner.leases)]

    def retry(self, now: float) -> None:
        """Try those releases again whose time has come."""
        for id, retry in tuple(self._retries.items()):
            found = self._ledger.book.find(id)
            if found is None:
                del self._retries[id]
            elif retry.at <= now:
                self._release_task(found[0], id)

    def next_retry(self) -> float | None:
        """When `retry` has something to do; None while nothing waits."""
        return min((retry.at for retry in self._retries.values()), default=None)

    async def recover(self, owner: Owner) -> None:
        """Finish what the last process had begun for `owner`, where the vendor has done it all, else undo it."""
        try:
            whole = await self._find_all(owner)
        except QtandemError as error:
            _log.warning("recover", owner=owner.key, error=error.one_line())
            whole = False
        if not owner.active or whole:
            return
        change = OwnerChange(owner.key, OwnerState.REFUSED, self._ledger.clock(), "interrupted by a restart")
        await self.give_back(owner, change)

    async def _find_all(self, owner: Owner) -> bool:
        """Whether every lease of `owner` is held at the vendor; those that are have been written so."""
        leases = tuple(owner.leases.values())
        self._unsure |= {lease.id for lease in leases if lease.state is LeaseState.ACQUIRING}
        if any(lease.state is LeaseState.RESERVED for lease in leases):
            return False
        for lease in leases:
            if lease.state is not LeaseState.ACQUIRING:
                continue
            token = await self._ask(self._vendor.find_session(lease.resource, lease.id))
            if token is None or not owner.active:
                return False
            await self._hold(owner, lease.id, token)
        return True

    async def _acquire(self, owner: Owner, lease: Lease) -> None:
        try:
            token = await self._ask(self._vendor.acquire(lease.resource, lease.id, lease.slots))
        except QtandemError as error:
            if error.code in _REFUSED:
                self._empty.add(lease.id)
            elif error.code in _UNSURE:
                self._unsure.add(lease.id)
            raise
        except asyncio.CancelledError:
            self._unsure.add(lease.id)
            raise
        await self._hold(owner, lease.id, token)

    async def _hold(self, owner: Owner, id: str, token: str) -> None:
        """Write the token; the lease is held unless its owner was ended meanwhile."""
        now, lease = self._ledger.clock(), owner.leases[id]
        self._unsure.discard(id)
        if not owner.active:
            await self._ledger.change(owner, [replace(lease, token=token)])
            return
        record = owner.record
        expires_at = record.expires_at if isinstance(record, ClaimHead) else None
        lease = replace(lease, state=LeaseState.HELD, changed_at=now, expires_at=expires_at, token=token)
        others = [other for other in owner.leases.values() if other.id != id]
        whole = all(other.state is LeaseState.HELD for other in others)
        change = OwnerChange(owner.key, OwnerState.HELD, now) if whole else None
        await self._ledger.change(owner, [lease], change)

    def _release_task(self, owner: Owner, id: str) -> asyncio.Task[None]:
        task = self._releasing.get(id)
        if task is None:
            task = self._releasing[id] = self._tasks.spawn(self._release(owner, id))
            task.add_done_callback(lambda _: self._releasing.pop(id, None))
        return task

    async def _release(self, owner: Owner, id: str) -> None:
        if id in self._acquiring:
            await asyncio.wait([self._acquiring[id]])
        try:
            await self._ledger.mend(owner)
            await self._close(owner, id)
            lease = owner.leases[id]
            done = replace(lease, state=lease.outcome, token=None, changed_at=self._ledger.clock())
            await self._ledger.finish(owner, done)
        except Exception as error:  # whatever it was: the slot is kept, the error shown, the release tried again
            self._try_again(owner, id, error)
        else:
            self._retries.pop(id, None)
            self._empty.discard(id)
            self._unsure.discard(id)

    async def _close(self, owner: Owner, id: str) -> None:
        """Close the vendor's session of the lease, looking for it where its token is not known."""
        lease = owner.leases[id]
        token = lease.token
        if token is None:
            if id in self._empty:
                return
            token = await self._ask(self._vendor.find_session(lease.resource, id))
            if token is None:
                if id in self._unsure:
                    self._unsure.discard(id)
                    raise _Unsettled
                return
            await self._ledger.change(owner, [replace(lease, token=token)])
        await self._ask(self._vendor.release(lease.resource, token))

    def _try_again(self, owner: Owner, id: str, error: Exception) -> None:
        lease = owner.leases.get(id)
        if lease is None:
            return
        now = self._ledger.clock()
        if isinstance(error, _Unsettled):
            self._retries[id] = _Retry(0, now + SETTLE_S)
            return
        tries = self._retries[id].tries + 1 if id in self._retries else 1
        delay = min(self._backoff_max_s(), 2.0 ** min(tries - 1, 32))
        self._retries[id] = _Retry(tries, now + delay)
        what = error.message if isinstance(error, QtandemError) else f"{type(error).__name__}: {error}"
        self._ledger.note(owner, replace(lease, reason=f"release failed {tries} times, last: {what}"))
        _log.warning("release", lease=id, resource=lease.resource, tries=tries, again_in_s=delay, error=what)

    async def _ask(self, call: Awaitable[T]) -> T:
        """The vendor's answer; whatever else a vendor raises is a fault of its provider."""
        try:
            return await call
        except QtandemError:
            raise
        except Exception as error:
            raise QtandemError("internal", "The provider failed", cause=f"{type(error).__name__}: {error}") from error

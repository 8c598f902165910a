"""The lease service: the only place that reserves, acquires and releases."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.leases.book import Owner, claim_of
from qtandem.core.leases.ledger import Ledger
from qtandem.core.leases.model import (
    Claim,
    ClaimHead,
    Lease,
    LeaseState,
    OwnerChange,
    OwnerState,
    run_owner,
)
from qtandem.core.leases.opened import OpenLeases, active_run
from qtandem.core.leases.sessions import Sessions, Tasks, Vendor
from qtandem.core.leases.store import Store
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId, Run, RunId
from qtandem.core.signals import Signals

__all__ = ["LeaseService", "Timing", "Vendor"]


class Timing(Protocol):
    """Of the configuration in force, in seconds."""

    @property
    def reserve_ttl_s(self) -> float: ...
    @property
    def claim_ttl_s(self) -> float: ...
    @property
    def backoff_max_s(self) -> float: ...


class LeaseService(OpenLeases):
    """Leases of runs and claims. One event loop; `open` first, `close` last.

    `slots` tells how many a resource has now. Work goes on when the caller of a method is cancelled.

    An `end` may overtake its own `begin`. It is then remembered, on disk, and a begin of that run (or an
    earlier one of the job) within `CROSSING_S` raises `run-ended` instead of leaving a lease that nobody ends.
    """

    def __init__(
        self,
        store: Store,
        vendor: Vendor,
        slots: Callable[[str], int],
        clock: Callable[[], float],
        signals: Signals,
        timing: Callable[[], Timing],
    ) -> None:
        self._slots, self._clock, self._timing = slots, clock, timing
        self._ledger = Ledger(store, clock, signals)
        self._tasks = Tasks()
        self._sessions = Sessions(self._ledger, vendor, self._tasks, lambda: timing().backoff_max_s)
        self._store = store
        super().__init__(self._ledger.book)
        self._starts: dict[str, asyncio.Task[tuple[Lease, ...]]] = {}
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        self.write, self.read = self._ledger.write, self._ledger.read

    async def open(self) -> None:
        """Load the open leases and start to finish, or to undo, what was under way (`settled` waits for it)."""
        for opened in await self.read(self._store.load):
            owner = Owner(opened.record, opened.state)
            self._book.add(owner)
            for lease in opened.leases:
                self._book.put(owner, lease)
            if owner.state is OwnerState.STARTING:
                self._recover(owner)
            elif not owner.active:
                self._sessions.release(owner)

    async def close(self, grace_s: float = 0.0) -> None:
        """Wait up to `grace_s` for calls under way, then stop; the next `open` goes on from there."""
        try:
            async with asyncio.timeout(grace_s):
                await self.settled()
        except TimeoutError:
            await self._tasks.cancel()
        self._ledger.close()

    async def settled(self) -> None:
        """Return once nothing is under way, except releases that wait for their next try."""
        await self._tasks.settled()

    async def begin(self, run: Run, grants: Sequence[Grant]) -> tuple[Lease, ...]:
        """The run's leases, all held: the same ones when it has them, also in concurrent calls.

        Earlier attempts of the job are ended first. Raises `slots-busy`; `run-ended` when the run's end, or a
        later attempt, came before; and the vendor's error, after all of the run's leases were set to go back.
        """
        key = run_owner(run.id)
        leases = await self._once(key, lambda: self._begin(key, run, grants))
        while any(lease.state is LeaseState.RESERVED for lease in leases):
            # It joined a call of `reserve`.
            leases = await self._once(key, lambda: self._begin(key, run, grants))
        return leases

    async def reserve(self, run: Run, grants: Sequence[Grant]) -> tuple[Lease, ...]:
        """Take the run's slots without asking a vendor; `begin` goes on from there, or else their time runs out.

        Earlier attempts of the job are ended first. Raises `slots-busy` and `run-ended`, as `begin` does.
        """
        key = run_owner(run.id)
        return await self._once(key, lambda: self._begin(key, run, grants, acquire=False))

    async def end(
        self, job: JobId, attempt: int | None, reason: str, exit_code: int | None = None, *, wait: bool = True
    ) -> int:
        """End the open runs of `job` up to `attempt` (None: all), and return how many there were.

        With `wait` it returns after each release was tried once; those that fail are tried again by `sweep`.
        """
        return await asyncio.shield(self._tasks.spawn(self._end(job, attempt, reason, exit_code, wait)))

    async def claim(
        self,
        uid: int,
        user: str,
        grants: Sequence[Grant],
        ttl_s: float | None = None,
        name: str = "",
        account: str | None = None,
    ) -> Claim:
        """Lease outside a job until `ttl_s` (default and limit: the configured one) from now.

        A user's open claim of the same name is returned as it is. Raises as `begin` does.
        """
        for owner in self._book.owners():
            head = owner.record
            if isinstance(head, ClaimHead) and owner.active and name and (head.uid, head.name) == (uid, name):
                return await self._claimed(owner, grants)
        now = self._clock()
        most = self._timing().claim_ttl_s
        ttl = min(ttl_s or most, most)
        head = ClaimHead(secrets.token_hex(6), uid, user, name, now, now + ttl, account)
        owner = Owner(head)
        self._book.add(owner)
        return await self._claimed(owner, grants)

    async def end_claim(self, id: str, uid: int | None, reason: str = "ended by its owner") -> bool:
        """End a claim; False when it is not open. `uid` None is root. Raises `not-yours`."""
        owner = self._book.owner(f"claim {id}")
        if owner is None or not owner.active:
            return False
        if uid is not None and owner.record.uid != uid:
            raise QtandemError("not-yours", f"Claim {id} belongs to somebody else")
        change = OwnerChange(owner.key, OwnerState.ENDED, self._clock(), reason)
        await asyncio.shield(self._tasks.spawn(self._give_back([owner], [change], wait=True)))
        return True

    async def sweep(self, now: float) -> None:
        """Expire what has its time over (runs that never got all their leases, claims), and try releases again."""
        for owner in self._book.owners():
            if not owner.active:
                continue
            times = [lease.expires_at for lease in owner.leases.values() if lease.expires_at is not None]
            if not times or min(times) > now:
                continue
            held = owner.state is OwnerState.HELD
            state = OwnerState.ENDED if held else OwnerState.REFUSED
            reason = "its time to live is over" if held else "the vendor did not answer in time"
            change = OwnerChange(owner.key, state, now, reason)
            self._tasks.spawn(self._sessions.give_back(owner, change, LeaseState.EXPIRED))
            self._sessions.abandon(owner)
        self._sessions.retry(now)

    def next_sweep(self) -> float | None:
        """When `sweep` has something to do next; None while nothing waits for a time."""
        times = [lease.expires_at for lease in self._book.leases() if lease.expires_at is not None]
        retry = self._sessions.next_retry()
        return min(times if retry is None else [*times, retry], default=None)

    def _recover(self, owner: Owner) -> None:
        key = owner.key
        task = self._recoveries[key] = self._tasks.spawn(self._sessions.recover(owner))
        task.add_done_callback(lambda _: self._recoveries.pop(key, None))

    async def _once(self, key: str, work: Callable[[], Coroutine[Any, Any, tuple[Lease, ...]]]) -> tuple[Lease, ...]:
        task = self._starts.get(key)
        if task is None:
            task = self._starts[key] = self._tasks.spawn(work())
            task.add_done_callback(lambda _: self._starts.pop(key, None))
        return await asyncio.shield(task)

    async def _begin(self, key: str, run: Run, grants: Sequence[Grant], *, acquire: bool = True) -> tuple[Lease, ...]:
        if key in self._recoveries:
            await asyncio.wait([self._recoveries[key]])
        owner = self._book.owner(key)
        if owner is not None and owner.reserved:
            return await self._go_on(owner, run, grants) if acquire else tuple(owner.leases.values())
        if owner is not None:
            return _again(owner)
        if any(other.id.attempt > run.id.attempt for other in self.runs_of_job(run.id.job)):
            raise QtandemError("run-ended", f"A later attempt than {run.id} has its leases")
        owner = Owner(run)
        self._book.add(owner)
        try:
            await self._end_earlier(run.id)
            if not owner.active:
                raise _over(owner)
        except Exception:
            self._ledger.drop(owner)
            raise
        return await self._start(owner, grants, acquire=acquire)

    async def _go_on(self, owner: Owner, run: Run, grants: Sequence[Grant]) -> tuple[Lease, ...]:
        """Acquire what was reserved. The manager knows the run's nodes only now."""
        if {lease.resource: lease.slots for lease in owner.leases.values()} != _by_resource(grants):
            change = OwnerChange(owner.key, OwnerState.REFUSED, self._clock(), "the job was changed meanwhile")
            await self._sessions.give_back(owner, change)
            raise QtandemError("slots-busy", f"What was reserved for {run.id} is not what it asks for now")
        owner.record = run
        await self.write(self._store.tell, run)
        if owner.active:
            await self._acquire(owner)
        if owner.state is not OwnerState.HELD:
            raise _over(owner)
        return tuple(owner.leases.values())

    async def _start(self, owner: Owner, grants: Sequence[Grant], *, acquire: bool = True) -> tuple[Lease, ...]:
        try:
            leases = self._new_leases(owner, grants)
        except Exception:
            self._ledger.drop(owner)
            raise
        await self._ledger.reserve(owner, leases)
        if not acquire and owner.active:
            return tuple(owner.leases.values())
        if owner.active:
            await self._acquire(owner)
        if owner.state is not OwnerState.HELD:
            raise _over(owner)
        return tuple(owner.leases.values())

    async def _acquire(self, owner: Owner) -> None:
        try:
            await self._sessions.acquire(owner)
        except Exception as error:
            if not owner.active:
                raise _over(owner) from error
            reason = error.message if isinstance(error, QtandemError) else type(error).__name__
            change = OwnerChange(owner.key, OwnerState.REFUSED, self._clock(), reason)
            await self._sessions.give_back(owner, change)
            raise

    async def _claimed(self, owner: Owner, grants: Sequence[Grant]) -> Claim:
        head = owner.record
        assert isinstance(head, ClaimHead)
        held = owner.state is OwnerState.HELD
        leases = (
            tuple(owner.leases.values()) if held else await self._once(owner.key, lambda: self._start(owner, grants))
        )
        if {lease.resource: lease.slots for lease in leases} != _by_resource(grants):
            raise QtandemError(
                "ambiguous",
                f"Claim {head.name} is open, for other resources",
                remedy="End it first, or give the new claim another name.",
            )
        return claim_of(head, leases)

    def _new_leases(self, owner: Owner, grants: Sequence[Grant]) -> list[Lease]:
        """One lease a resource, or `slots-busy` for all of them."""
        wanted = _by_resource(grants)
        if not wanted:
            raise QtandemError("bad-request", f"{owner.key} asks for no resource")
        for resource, slots in wanted.items():
            used, total = self._book.used(resource), self._slots(resource)
            if used + slots > total:
                raise QtandemError("slots-busy", f"{used} of {total} slots of {resource} are leased, {slots} wanted")
        now = self._clock()
        return [
            Lease(
                id=secrets.token_hex(16),
                owner=owner.key,
                resource=resource,
                slots=slots,
                state=LeaseState.RESERVED,
                uid=owner.record.uid,
                created_at=now,
                changed_at=now,
                expires_at=now + self._timing().reserve_ttl_s,
            )
            for resource, slots in wanted.items()
        ]

    async def _end(self, job: JobId, attempt: int | None, reason: str, exit_code: int | None, wait: bool) -> int:
        now = self._clock()
        ending = [
            owner
            for owner in self._book.owners_of_job(job)
            if (run := active_run(owner)) is not None and (attempt is None or run.id.attempt <= attempt)
        ]
        unknown = not all(owner.leases for owner in ending) or not ending
        changes = [OwnerChange(owner.key, OwnerState.ENDED, now, reason, exit_code) for owner in ending]
        await self._give_back(ending, changes, wait)
        if unknown:
            await self.write(self._store.note_end, job, attempt, now)
        return len(ending)

    async def _end_earlier(self, run: RunId) -> None:
        """Give back what earlier attempts of the job still have; their slots may be the ones that are wanted."""
        change_at, reason = self._clock(), f"attempt {run.attempt} has begun"
        tasks: list[asyncio.Task[None]] = []
        for owner in self._book.owners_of_job(run.job):
            record = owner.record
            if not isinstance(record, Run) or record.id.attempt >= run.attempt:
                continue
            if owner.active:
                change = OwnerChange(owner.key, OwnerState.ENDED, change_at, reason)
                tasks += await self._sessions.give_back(owner, change)
            else:
                tasks += self._sessions.release(owner)
        if tasks:
            await asyncio.wait(tasks)

    async def _give_back(self, owners: Sequence[Owner], changes: Sequence[OwnerChange], wait: bool) -> None:
        tasks: list[asyncio.Task[None]] = []
        for owner, change in zip(owners, changes, strict=True):
            tasks += await self._sessions.give_back(owner, change)
        if wait and tasks:
            await asyncio.wait(tasks)


def _by_resource(grants: Sequence[Grant]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for grant in grants:
        wanted[grant.resource] = wanted.get(grant.resource, 0) + grant.slots
    return wanted


def _again(owner: Owner) -> tuple[Lease, ...]:
    """What a repeated start of `owner` gets."""
    if owner.state is OwnerState.HELD:
        return tuple(owner.leases.values())
    if owner.state is OwnerState.ENDED:
        raise _over(owner)
    raise QtandemError("slots-busy", f"What an earlier start of {owner.key} took is still being given back")


def _over(owner: Owner) -> QtandemError:
    """Why a start of `owner` came to nothing although no vendor refused it."""
    reason = owner.change.reason if owner.change is not None else "ended"
    if owner.state is OwnerState.REFUSED:
        return QtandemError("vendor-timeout", f"The leases of {owner.key} were undone: {reason}")
    return QtandemError("run-ended", f"{owner.key} was ended before it had its leases: {reason}")

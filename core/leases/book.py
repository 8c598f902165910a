"""The open leases in memory, with what is counted of them; ended ones leave it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from qtandem.core.leases.model import Claim, ClaimHead, Lease, LeaseState, OwnerChange, OwnerState, owner_of
from qtandem.core.runs import JobId, Run


@dataclass(slots=True, eq=False)
class Owner:
    """A run or claim that has open leases, or is about to have them.

    `unwritten`: the disk has not taken the newest state, of which `change` is the owner's part.
    """

    record: Run | ClaimHead
    state: OwnerState = OwnerState.STARTING
    leases: dict[str, Lease] = field(default_factory=dict)
    change: OwnerChange | None = None
    unwritten: bool = False

    @property
    def key(self) -> str:
        return owner_of(self.record)

    @property
    def active(self) -> bool:
        """Whether its leases are for use, not on their way back."""
        return self.state in (OwnerState.STARTING, OwnerState.HELD)

    @property
    def reserved(self) -> bool:
        """Whether its slots are taken, and no vendor was asked yet."""
        states = {lease.state for lease in self.leases.values()}
        return self.state is OwnerState.STARTING and states == {LeaseState.RESERVED}


class Book:
    """`put` is the only way in and out for a lease, so that the counts always fit."""

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}
        self._owner_of: dict[str, Owner] = {}
        self._jobs: dict[JobId, list[Owner]] = {}
        self._used: Counter[str] = Counter()

    def add(self, owner: Owner) -> None:
        self._owners[owner.key] = owner
        if isinstance(owner.record, Run):
            self._jobs.setdefault(owner.record.id.job, []).append(owner)

    def drop(self, owner: Owner) -> None:
        """Take an owner out, with the leases it may have."""
        for lease in owner.leases.values():
            del self._owner_of[lease.id]
            self._count(lease.resource, -lease.slots)
        owner.leases.clear()
        self._forget(owner)

    def put(self, owner: Owner, lease: Lease) -> None:
        """Write a new or changed lease; one that is not open any more is forgotten, the last with its owner."""
        before = owner.leases.get(lease.id)
        if before is None:
            self._count(lease.resource, lease.slots)
        if lease.open:
            owner.leases[lease.id] = lease
            self._owner_of[lease.id] = owner
            return
        owner.leases.pop(lease.id, None)
        self._owner_of.pop(lease.id, None)
        self._count(lease.resource, -lease.slots)
        if not owner.leases:
            self._forget(owner)

    def owner(self, key: str) -> Owner | None:
        return self._owners.get(key)

    def owners(self) -> tuple[Owner, ...]:
        return tuple(self._owners.values())

    def owners_of_job(self, job: JobId) -> tuple[Owner, ...]:
        return tuple(self._jobs.get(job, ()))

    def find(self, lease: str) -> tuple[Owner, Lease] | None:
        owner = self._owner_of.get(lease)
        return None if owner is None else (owner, owner.leases[lease])

    def leases(self) -> Iterable[Lease]:
        return (lease for owner in self._owners.values() for lease in owner.leases.values())

    def used(self, resource: str) -> int:
        return self._used[resource]

    def _count(self, resource: str, slots: int) -> None:
        self._used[resource] += slots
        if not self._used[resource]:
            del self._used[resource]

    def _forget(self, owner: Owner) -> None:
        if self._owners.get(owner.key) is owner:
            del self._owners[owner.key]
        if isinstance(owner.record, Run):
            job = owner.record.id.job
            left = [other for other in self._jobs.get(job, ()) if other is not owner]
            if left:
                self._jobs[job] = left
            else:
                self._jobs.pop(job, None)


def claim_of(head: ClaimHead, leases: Iterable[Lease]) -> Claim:
    """A claim with its leases."""
    return Claim(head.id, head.uid, head.user, head.name, head.created_at, head.expires_at, head.account, tuple(leases))

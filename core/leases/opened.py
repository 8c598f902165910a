"""What is leased now, by whom and for whom."""

from __future__ import annotations

from qtandem.core.errors import QtandemError
from qtandem.core.leases.book import Book, Owner, claim_of
from qtandem.core.leases.model import Claim, ClaimHead, Lease, OwnerState, run_owner
from qtandem.core.runs import JobId, Run, RunId


class OpenLeases:
    """Answers from memory; the lease service adds how that changes."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def leased(self, resource: str) -> int:
        """Slots of `resource` that open leases keep."""
        return self._book.used(resource)

    def leases(self) -> list[Lease]:
        """All open leases."""
        return list(self._book.leases())

    def lease(self, id: str) -> Lease | None:
        """The open lease with this id."""
        found = self._book.find(id)
        return None if found is None else found[1]

    def leases_of(self, owner: str) -> tuple[Lease, ...]:
        """The open leases of `run RUN` or `claim ID`."""
        found = self._book.owner(owner)
        return () if found is None else tuple(found.leases.values())

    def held(self, run: RunId) -> tuple[Lease, ...]:
        """The leases of a run that has all it asked for, else none."""
        owner = self._book.owner(run_owner(run))
        return () if owner is None or owner.state is not OwnerState.HELD else tuple(owner.leases.values())

    def holder(self, id: str) -> tuple[str, str | None] | None:
        """The user and the account of an open lease."""
        found = self._book.find(id)
        return None if found is None else (found[0].record.user, found[0].record.account)

    def usable(self, id: str, uid: int) -> Lease:
        """The held lease `id`, for a process of `uid`; raises `no-lease` or `not-yours`."""
        found = self._book.find(id)
        if found is not None and found[1].uid != uid:
            raise QtandemError("not-yours", f"Lease {id} belongs to somebody else")
        if found is None or found[0].state is not OwnerState.HELD:
            raise QtandemError("no-lease", f"Lease {id} is not held")
        return found[1]

    def run(self, id: RunId) -> Run | None:
        """A run that is starting or has its leases."""
        return next((run for run in self.runs_of_job(id.job) if run.id == id), None)

    def runs_of_job(self, job: JobId) -> list[Run]:
        """The runs of a job that are starting or have their leases."""
        return [run for owner in self._book.owners_of_job(job) if (run := active_run(owner)) is not None]

    def open_runs(self) -> list[Run]:
        return [run for owner in self._book.owners() if (run := active_run(owner)) is not None]

    def claims(self, uid: int | None = None) -> list[Claim]:
        """Claims that have all their leases; of one user, or of all."""
        return [
            claim_of(owner.record, owner.leases.values())
            for owner in self._book.owners()
            if isinstance(owner.record, ClaimHead)
            and owner.state is OwnerState.HELD
            and uid in (None, owner.record.uid)
        ]


def active_run(owner: Owner) -> Run | None:
    """The run that an owner is, if its leases are for use."""
    return owner.record if owner.active and isinstance(owner.record, Run) else None

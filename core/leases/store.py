"""Leases, runs and claims on disk. Every method is one transaction: all of it is there after a crash, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, insert, select, update

from qtandem.core.errors import QtandemError
from qtandem.core.leases.accounting import Accounting
from qtandem.core.leases.model import (
    OPEN,
    ClaimHead,
    Lease,
    LeaseState,
    OwnerChange,
    OwnerState,
    RunRecord,
)
from qtandem.core.leases.queries import Filter, bounded, whose
from qtandem.core.leases.schema import claims, early_ends, leases, refusals, runs, tasks
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId, Run, RunId

# A start hook asks again within seconds, so its call may arrive after the end of its own run. Within this time
# such a start is refused; later ones are new executions, by a manager that counts no attempts or counts them late.
CROSSING_S = 12.0

_OPEN = [state.value for state in OPEN]


@dataclass(frozen=True, slots=True)
class Opened:
    """A run or claim that has open leases, as it was found on disk."""

    record: Run | ClaimHead
    state: OwnerState
    leases: tuple[Lease, ...]


class Store(Accounting):
    """Tokens are sealed on their way in. Writers run on one thread; readers on any."""

    def reserve(self, record: Run | ClaimHead, granted: Sequence[Lease], now: float) -> None:
        """Write a new run or claim with its leases; raises `run-ended` for a run whose end came before."""
        owner = {"state": OwnerState.STARTING.value, "started_at": None, "ended_at": None, "reason": ""}
        with self.writing() as connection:
            if isinstance(record, Run):
                _refuse_ended(connection, record.id, now)
                grants = [[lease.resource, lease.slots] for lease in granted]
                _put(connection, runs, _run_values(record) | owner | {"grants": grants, "asked_at": now})
            else:
                _put(connection, claims, _claim_values(record) | owner)
            whose = {"user": record.user, "account": record.account}
            rows = [self._lease_values(lease) | whose | {"created_at": lease.created_at} for lease in granted]
            connection.execute(insert(leases), rows)

    def save(self, changed: Sequence[Lease], owner: OwnerChange | None = None) -> None:
        """Write changed leases, and what happened to their owner, at once."""
        with self.writing() as connection:
            for lease in changed:
                values = self._lease_values(lease)
                connection.execute(update(leases).where(leases.c.id == lease.id).values(**values))
            if owner is not None:
                _change_owner(connection, owner)

    def tell(self, run: Run) -> None:
        """Write what is known of a run now; it was reserved before its nodes were known."""
        with self.writing() as connection:
            connection.execute(update(runs).where(runs.c.id == str(run.id)).values(**_run_values(run)))

    def note_end(self, job: JobId, attempt: int | None, now: float) -> None:
        """Remember an end that met no open run, so that a start that comes after it gets nothing.

        The end of a run that is known to have ended is only a repetition.
        """
        known = select(runs.c.id).where(runs.c.job == str(job), runs.c.state == OwnerState.ENDED.value)
        if attempt is not None:
            known = known.where(runs.c.id == str(job.run(attempt)))
        with self.writing() as connection:
            connection.execute(delete(early_ends).where(early_ends.c.at < now - CROSSING_S))
            if connection.execute(known.limit(1)).first() is None:
                _put(connection, early_ends, {"job": str(job), "attempt": attempt, "at": now}, key="job")

    def load(self) -> list[Opened]:
        """Every run and claim that has open leases."""
        query = select(leases).where(leases.c.state.in_(_OPEN)).order_by(leases.c.created_at)
        with self.reading() as connection:
            found: dict[str, list[Lease]] = {}
            for row in connection.execute(query):
                found.setdefault(row.owner, []).append(self._lease(row))
            return [self._opened(connection, owner, held) for owner, held in found.items()]

    def forget(self, before: float, most: int = 500) -> int:
        """Delete up to so many leases that ended before a time, their tasks, and whose they were; how many went.

        What has a lease that is open, or ended later, stays whole.
        """
        old = select(leases.c.id, leases.c.owner).where(
            leases.c.created_at < before, leases.c.ended_at < before, leases.c.state.not_in(_OPEN)
        )
        with self.writing() as connection:
            gone = connection.execute(old.order_by(leases.c.created_at).limit(most)).all()
            ids, owners = [row.id for row in gone], {row.owner for row in gone}
            connection.execute(delete(tasks).where(tasks.c.lease.in_(ids)))
            connection.execute(delete(leases).where(leases.c.id.in_(ids)))
            left = select(leases.c.owner).where(leases.c.owner.in_(owners))
            ended = owners - set(connection.execute(left).scalars())
            for table, kind in ((runs, "run "), (claims, "claim ")):
                names = [each.removeprefix(kind) for each in ended if each.startswith(kind)]
                connection.execute(delete(table).where(table.c.id.in_(names), table.c.ended_at < before))
            connection.execute(delete(refusals).where(refusals.c.next_at < before))
        return len(ids)

    def leases(self, where: Filter) -> list[Lease]:
        """Leases, open ones and others, oldest first."""
        query = bounded(select(leases), leases, where).where(*whose(where))
        if where.open is not None:
            query = query.where(leases.c.state.in_(_OPEN) if where.open else leases.c.state.not_in(_OPEN))
        with self.reading() as connection:
            return [self._lease(row) for row in reversed(connection.execute(query).all())]

    def lease(self, id: str) -> Lease | None:
        with self.reading() as connection:
            row = connection.execute(select(leases).where(leases.c.id == id)).one_or_none()
        return None if row is None else self._lease(row)

    def runs(self, where: Filter) -> list[RunRecord]:
        """Runs, oldest first; one row a run. `since` and `until` bound when they first asked."""
        query = bounded(select(runs), runs, where, "asked_at").where(*whose(where, runs))
        if where.owner is not None:
            query = query.where(runs.c.id == where.owner.removeprefix("run "))
        if where.resource is not None:
            users = select(leases.c.owner).where(leases.c.resource == where.resource)
            query = query.where(("run " + runs.c.id).in_(users))
        if where.open is not None:
            query = query.where(runs.c.ended_at.is_(None) if where.open else runs.c.ended_at.is_not(None))
        with self.reading() as connection:
            return [_run_record(row) for row in reversed(connection.execute(query).all())]

    def runs_of_job(self, job: JobId) -> list[RunRecord]:
        """All runs of a job that asked for a lease, by attempt."""
        query = select(runs).where(runs.c.job == str(job))
        with self.reading() as connection:
            records = [_run_record(row) for row in connection.execute(query)]
        return sorted(records, key=lambda record: record.run.id)

    def _opened(self, connection: Connection, owner: str, held: list[Lease]) -> Opened:
        kind, _, id = owner.partition(" ")
        if kind == "run":
            row = connection.execute(select(runs).where(runs.c.id == id)).one()
            return Opened(_run_record(row).run, OwnerState(row.state), tuple(held))
        row = connection.execute(select(claims).where(claims.c.id == id)).one()
        names = ("id", "uid", "user", "name", "created_at", "expires_at", "account")
        head = ClaimHead(**{name: row._mapping[name] for name in names})
        return Opened(head, OwnerState(row.state), tuple(held))

    def _lease_values(self, lease: Lease) -> dict[str, Any]:
        """All columns but those that are written once; `held_at` and `ended_at` when the state says so."""
        values: dict[str, Any] = {
            "id": lease.id,
            "owner": lease.owner,
            "resource": lease.resource,
            "slots": lease.slots,
            "state": lease.state.value,
            "uid": lease.uid,
            "token": None if lease.token is None else self.cipher.seal(lease.token, lease.id),
            "outcome": lease.outcome.value,
            "reason": lease.reason,
            "changed_at": lease.changed_at,
            "expires_at": lease.expires_at,
        }
        if lease.state is LeaseState.HELD:
            values["held_at"] = lease.changed_at
        elif not lease.open:
            values["ended_at"] = lease.changed_at
        return values

    def _lease(self, row: Row[Any]) -> Lease:
        return Lease(
            id=row.id,
            owner=row.owner,
            resource=row.resource,
            slots=row.slots,
            state=LeaseState(row.state),
            uid=row.uid,
            created_at=row.created_at,
            changed_at=row.changed_at,
            expires_at=row.expires_at,
            token=None if row.token is None else self.cipher.unseal(row.token, row.id),
            reason=row.reason,
            outcome=LeaseState(row.outcome),
        )


def _refuse_ended(connection: Connection, run: RunId, now: float) -> None:
    early = connection.execute(select(early_ends).where(early_ends.c.job == str(run.job))).one_or_none()
    if early is not None and (early.attempt is None or run.attempt <= early.attempt):
        _refuse_crossed(run, early.at, now)
    row = connection.execute(select(runs.c.state, runs.c.ended_at).where(runs.c.id == str(run))).one_or_none()
    if row is not None and row.state == OwnerState.ENDED.value:
        _refuse_crossed(run, row.ended_at, now)


def _refuse_crossed(run: RunId, ended_at: float, now: float) -> None:
    left = ended_at + CROSSING_S - now
    if left > 0:
        raise QtandemError("run-ended", f"The end of {run} was reported before this start", retry_after=left)


def _change_owner(connection: Connection, change: OwnerChange) -> None:
    kind, _, id = change.owner.partition(" ")
    table = runs if kind == "run" else claims
    values: dict[str, Any] = {"state": change.state.value, "reason": change.reason}
    values["started_at" if change.state is OwnerState.HELD else "ended_at"] = change.at
    if kind == "run" and change.exit_code is not None:
        values["exit_code"] = change.exit_code
    connection.execute(update(table).where(table.c.id == id).values(**values))


def _put(connection: Connection, table: Table, values: Mapping[str, Any], key: str = "id") -> None:
    done = connection.execute(update(table).where(table.c[key] == values[key]).values(**values))
    if not done.rowcount:
        connection.execute(insert(table).values(**values))


def _run_values(run: Run) -> dict[str, Any]:
    return {
        "id": str(run.id),
        "job": str(run.id.job),
        "uid": run.uid,
        "user": run.user,
        "account": run.account,
        "partition": run.partition,
        "nodes": list(run.nodes),
        "time_limit_s": run.time_limit_s,
        "can_requeue": run.can_requeue,
    }


def _claim_values(claim: ClaimHead) -> dict[str, Any]:
    names = ("id", "uid", "user", "account", "name", "created_at", "expires_at")
    return {name: getattr(claim, name) for name in names}


def _run_record(row: Row[Any]) -> RunRecord:
    run = Run(
        id=RunId.parse(row.id),
        uid=row.uid,
        user=row.user,
        account=row.account,
        partition=row.partition,
        nodes=tuple(row.nodes),
        time_limit_s=row.time_limit_s,
        can_requeue=row.can_requeue,
    )
    return RunRecord(
        run=run,
        state=OwnerState(row.state),
        asked_at=row.asked_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        reason=row.reason,
        exit_code=row.exit_code,
        grants=tuple(Grant(resource, slots) for resource, slots in row.grants),
    )

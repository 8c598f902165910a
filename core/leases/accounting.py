"""Accounting: who used which resource for how long, task by task; and the refusals and moves of waiting jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from sqlalchemy import Row, Select, delete, func, insert, select, update

from qtandem.core.errors import QtandemError
from qtandem.core.leases.database import Database
from qtandem.core.leases.model import Refusal, Task, Usage
from qtandem.core.leases.queries import Filter, bounded, whose
from qtandem.core.leases.schema import leases, pins, refusals, tasks
from qtandem.core.managers import Grant
from qtandem.core.providers.base import TaskState

By = Literal["user", "account", "resource", "owner"]
EACH_RUN: tuple[By, ...] = ("user", "account", "resource", "owner")
_FINAL = [state.value for state in TaskState if state.final]


class Accounting(Database):
    """Tasks, usage and refusals. Each method is one transaction; writers run on the writer's thread."""

    def add_task(self, task: Task) -> Task:
        """Note a new task; for a key that its lease has used before, the task of then."""
        key = task.key or task.id
        with self.writing() as connection:
            same = (tasks.c.lease == task.lease) & (tasks.c.key == key)
            row = connection.execute(select(tasks).where(same)).one_or_none()
            if row is None:
                connection.execute(insert(tasks).values(**asdict(task) | {"key": key}))
                row = connection.execute(select(tasks).where(tasks.c.id == task.id)).one()
        return _task(row)

    def update_task(self, task: Task) -> None:
        """Write all fields of a task; raises `no-such-run` for one that was never added."""
        values = asdict(task)
        del values["key"]
        with self.writing() as connection:
            done = connection.execute(update(tasks).where(tasks.c.id == task.id).values(**values))
            if not done.rowcount:
                raise QtandemError("no-such-run", f"There is no task {task.id}")

    def task(self, id: str) -> Task | None:
        with self.reading() as connection:
            row = connection.execute(select(tasks).where(tasks.c.id == id)).one_or_none()
        return None if row is None else _task(row)

    def tasks(self, where: Filter) -> list[Task]:
        """Tasks, oldest first; `open` True are those that are not final."""
        query = bounded(select(tasks), tasks, where)
        if where.user is not None or where.account is not None:
            query = query.join(leases, leases.c.id == tasks.c.lease).where(*whose(where))
        if where.open is not None:
            query = query.where(tasks.c.state.not_in(_FINAL) if where.open else tasks.c.state.in_(_FINAL))
        with self.reading() as connection:
            return [_task(row) for row in reversed(connection.execute(query).all())]

    def usage(self, where: Filter, now: float, by: Sequence[By] = EACH_RUN) -> list[Usage]:
        """What the leases that were held, and their tasks, sum up to; one row for each value of `by`."""
        held = _held_query(where, now, by)
        used = _used_query(where, by)
        with self.reading() as connection:
            rows = connection.execute(held).mappings().all()
            task_rows = connection.execute(used).mappings().all()
        sums: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for row in task_rows:
            sums[tuple(row[name] for name in by)].append(row)
        return [_usage(row, by, sums[tuple(row[name] for name in by)]) for row in rows]

    def refuse(self, job: str, now: float, base_s: float, max_s: float, reason: str) -> Refusal:
        """Count one more refusal of `job`; its next try is after `base_s` · 2ⁿ, at most `max_s`, seconds."""
        with self.writing() as connection:
            row = connection.execute(select(refusals).where(refusals.c.job == job)).one_or_none()
            count = 1 if row is None else row._mapping["count"] + 1
            next_at = now + min(max_s, base_s * 2.0 ** min(count - 1, 32))
            if row is not None:
                connection.execute(delete(refusals).where(refusals.c.job == job))
            refusal = Refusal(job, count, next_at, reason)
            connection.execute(insert(refusals).values(**asdict(refusal)))
        return refusal

    def refusal(self, job: str) -> Refusal | None:
        with self.reading() as connection:
            row = connection.execute(select(refusals).where(refusals.c.job == job)).one_or_none()
        return None if row is None else Refusal(**row._mapping)

    def clear_refusals(self, job: str) -> None:
        """Forget the refusals of a job that started, or that is gone."""
        with self.writing() as connection:
            connection.execute(delete(refusals).where(refusals.c.job == job))

    def pin(self, job: str, grants: Sequence[Grant], now: float) -> None:
        """Note what a pending job is moved to."""
        with self.writing() as connection:
            connection.execute(delete(pins).where(pins.c.job == job))
            pairs = [[grant.resource, grant.slots] for grant in grants]
            connection.execute(insert(pins).values(job=job, grants=pairs, at=now))

    def pins(self) -> dict[str, tuple[Grant, ...]]:
        """What pending jobs were moved to, by job."""
        with self.reading() as connection:
            rows = connection.execute(select(pins.c.job, pins.c.grants)).all()
        return {job: tuple(Grant(*pair) for pair in pairs) for job, pairs in rows}

    def unpin(self, jobs: Sequence[str]) -> None:
        """Forget the moves of jobs that wait no more."""
        with self.writing() as connection:
            connection.execute(delete(pins).where(pins.c.job.in_(jobs)))


def _held_query(where: Filter, now: float, by: Sequence[By]) -> Select[Any]:
    groups: list[Any] = [leases.c[name] for name in by]
    seconds = (func.coalesce(leases.c.ended_at, now) - leases.c.held_at) * leases.c.slots
    columns: list[Any] = [
        *groups,
        func.count().label("leases"),
        func.sum(leases.c.slots).label("slots"),
        func.min(leases.c.held_at).label("started_at"),
        func.max(leases.c.ended_at).label("ended_at"),
        func.count(leases.c.ended_at).label("ended"),
        func.sum(seconds).label("held_s"),
    ]
    query = bounded(select(*columns), leases, where).where(leases.c.held_at.is_not(None), *whose(where))
    return query.order_by(None).group_by(*groups).order_by(func.min(leases.c.held_at))


def _used_query(where: Filter, by: Sequence[By]) -> Select[Any]:
    groups: list[Any] = [leases.c[name] for name in by]
    completed = func.sum((tasks.c.state == TaskState.COMPLETED.value).cast(tasks.c.uid.type))
    columns: list[Any] = [
        *groups,
        tasks.c.currency,
        func.count().label("tasks"),
        completed.label("completed"),
        func.sum(tasks.c.shots).label("shots"),
        func.sum(tasks.c.usage_s).label("usage_s"),
        func.sum(tasks.c.cost).label("cost"),
    ]
    query = select(*columns).join_from(tasks, leases, leases.c.id == tasks.c.lease)
    bounds = Filter(where.uid, resource=where.resource, owner=where.owner, since=where.since, until=where.until)
    query = bounded(query, leases, bounds).where(leases.c.held_at.is_not(None), *whose(where))
    return query.order_by(None).group_by(*groups, tasks.c.currency)


def _usage(row: Any, by: Sequence[By], parts: Sequence[Any]) -> Usage:
    fields = {name: row[name] or "" if name in by else "" for name in EACH_RUN}
    qpu = [part["usage_s"] for part in parts if part["usage_s"] is not None]
    return Usage(
        **fields,
        leases=row["leases"],
        slots=row["slots"],
        started_at=row["started_at"],
        ended_at=row["ended_at"] if row["ended"] == row["leases"] else None,
        held_s=row["held_s"],
        tasks=sum(part["tasks"] for part in parts),
        completed=sum(part["completed"] for part in parts),
        shots=sum(part["shots"] or 0 for part in parts),
        usage_s=sum(qpu) if qpu else None,
        cost={part["currency"]: part["cost"] for part in parts if part["cost"] is not None},
    )


def _task(row: Row[Any]) -> Task:
    values = {name: row._mapping[name] for name in tasks.c.keys()}  # noqa: SIM118
    return Task(**values | {"state": TaskState(values["state"])})

"""What queries may ask for, and the conditions that leases, runs and tasks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Table

from qtandem.core.leases.schema import leases


@dataclass(frozen=True, slots=True)
class Filter:
    """What a query shall return; None leaves a field open.

    `since` and `until` bound the time of creation. `open` True means what is not over yet. `limit` keeps the
    newest.
    """

    uid: int | None = None
    user: str | None = None
    account: str | None = None
    resource: str | None = None
    owner: str | None = None
    since: float | None = None
    until: float | None = None
    open: bool | None = None
    limit: int | None = None


def bounded(query: Select[Any], table: Table, where: Filter, made_at: str = "created_at") -> Select[Any]:
    """Newest first, within the fields of `where` that `table` has; `made_at` names its time of creation."""
    for name in ("uid", "resource", "owner"):
        value = getattr(where, name)
        if value is not None and name in table.c:
            query = query.where(table.c[name] == value)
    time = table.c[made_at]
    if where.since is not None:
        query = query.where(time >= where.since)
    if where.until is not None:
        query = query.where(time < where.until)
    return query.order_by(time.desc(), table.c.id.desc()).limit(where.limit)


def whose(where: Filter, table: Table = leases) -> list[ColumnElement[bool]]:
    """Conditions on the user and account; tasks have them through their lease."""
    conditions: list[ColumnElement[bool]] = []
    if where.user is not None:
        conditions.append(table.c.user == where.user)
    if where.account is not None:
        conditions.append(table.c.account == where.account)
    return conditions

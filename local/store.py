"""The jobs of one machine in one SQLite file, shared by the runner, the users' tools and the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL, account TEXT,
  argv TEXT NOT NULL, env TEXT NOT NULL, cwd TEXT NOT NULL, output TEXT NOT NULL,
  request TEXT NOT NULL, native TEXT NOT NULL,
  time_limit_s INTEGER, can_requeue INTEGER NOT NULL,
  state TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, run TEXT NOT NULL DEFAULT '',
  held INTEGER NOT NULL DEFAULT 0, comment TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
  eligible_at REAL NOT NULL DEFAULT 0, refusals INTEGER NOT NULL DEFAULT 0, wanted TEXT NOT NULL DEFAULT '',
  submitted_at REAL NOT NULL, started_at REAL, ended_at REAL, exit_code INTEGER,
  pid INTEGER, born INTEGER
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state);
CREATE TABLE IF NOT EXISTS ends (job INTEGER NOT NULL, attempt INTEGER NOT NULL, exit_code INTEGER,
  PRIMARY KEY (job, attempt));
"""


class State(StrEnum):
    """`starting` asks the daemon for the lease; `ending` gives it back. Both count as running."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (State.COMPLETED, State.FAILED, State.CANCELLED)


ACTIVE = (State.STARTING, State.RUNNING, State.ENDING)


@dataclass(frozen=True, slots=True)
class Row:
    """One job. `wanted` is `cancel` or `requeue` while a job is to stop; times are Unix times."""

    id: int
    name: str
    uid: int
    user: str
    account: str | None
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    output: str
    request: str
    native: str
    time_limit_s: int | None
    can_requeue: bool
    state: State
    attempt: int
    run: str
    held: bool
    comment: str
    reason: str
    eligible_at: float
    refusals: int
    wanted: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    pid: int | None
    born: int | None


@dataclass(frozen=True, slots=True)
class End:
    """An end that the daemon has not confirmed yet."""

    job: int
    attempt: int
    exit_code: int | None


class QueueStore:
    """Every method is one transaction on a connection of its own. Raises `manager-unreachable`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "jobs.db"
        try:
            # SQLite does not wait for its turn to change the journal mode, so openers take turns here.
            with open(folder / "jobs.lock", "w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                with contextlib.closing(self._connect()) as connection:
                    os.chmod(self._path, 0o600)
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error

    def add(self, job: Mapping[str, Any]) -> int:
        columns = {**job, "argv": json.dumps(list(job["argv"])), "env": json.dumps(dict(job["env"]))}
        names = ", ".join(columns)
        marks = ", ".join(f":{name}" for name in columns)
        with self._transaction() as connection:
            cursor = connection.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", columns)  # noqa: S608
            return int(cursor.lastrowid or 0)

    def get(self, job: int) -> Row | None:
        rows = self._select("id = ?", [job])
        return rows[0] if rows else None

    def all(self) -> list[Row]:
        return self._select("1", [])

    def in_states(self, *states: State) -> list[Row]:
        return self._select(f"state IN ({', '.join('?' * len(states))})", list(states))

    def update(self, job: int, *, only: Sequence[State] = (), **values: Any) -> bool:
        """Set columns of a job, if it is in one of the states `only` (empty: any). False if it was not."""
        sets = ", ".join(f"{name} = ?" for name in values)
        where = f"id = ? AND state IN ({', '.join('?' * len(only))})" if only else "id = ?"
        with self._transaction() as connection:
            cursor = connection.execute(f"UPDATE jobs SET {sets} WHERE {where}", [*values.values(), job, *only])  # noqa: S608
            return cursor.rowcount > 0

    def finish(self, job: int, end: End | None, **values: Any) -> None:
        """Set columns of a job and note, in the same transaction, that its end must be reported."""
        sets = ", ".join(f"{name} = ?" for name in values)
        with self._transaction() as connection:
            connection.execute(f"UPDATE jobs SET {sets} WHERE id = ?", [*values.values(), job])  # noqa: S608
            if end is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", [end.job, end.attempt, end.exit_code]
                )

    def ends(self) -> list[End]:
        with self._transaction() as connection:
            rows = connection.execute("SELECT job, attempt, exit_code FROM ends ORDER BY job, attempt").fetchall()
        return [End(*row) for row in rows]

    def ended(self, end: End) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM ends WHERE job = ? AND attempt = ?", [end.job, end.attempt])

    def _select(self, where: str, values: Sequence[Any]) -> list[Row]:
        with self._transaction() as connection:
            rows = connection.execute(f"SELECT * FROM jobs WHERE {where} ORDER BY id", values).fetchall()  # noqa: S608
        return [_row(dict(row)) for row in rows]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._connect()
        except sqlite3.Error as error:
            raise self._fault(error) from error
        try:
            with connection:
                yield connection
        except sqlite3.Error as error:
            raise self._fault(error) from error
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=10)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _fault(self, error: Exception) -> QtandemError:
        return QtandemError("manager-unreachable", f"The jobs in {self._path} cannot be reached", cause=str(error))


def _row(values: dict[str, Any]) -> Row:
    return Row(
        **{
            **values,
            "argv": tuple(json.loads(values["argv"])),
            "env": json.loads(values["env"]),
            "state": State(values["state"]),
            "can_requeue": bool(values["can_requeue"]),
            "held": bool(values["held"]),
        }
    )

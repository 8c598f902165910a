"""The simulated device: its sessions, tasks, knobs and log, in one SQLite file that processes share."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.places import state_folder
from qtandem.core.providers.base import TaskReport, TaskState
from qtandem.core.providers.simulator.retention import INDEXES, Keep

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
  token TEXT PRIMARY KEY, key TEXT NOT NULL, slots INTEGER NOT NULL, opened_at REAL NOT NULL, closed_at REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS session_open ON sessions (key) WHERE closed_at IS NULL;
CREATE TABLE IF NOT EXISTS tasks (
  id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, token TEXT NOT NULL, payload TEXT, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', shots INTEGER, usage_s REAL, result TEXT,
  created_at REAL NOT NULL, started_at REAL, finished_at REAL
);
CREATE INDEX IF NOT EXISTS task_state ON tasks (state);
CREATE TABLE IF NOT EXISTS knobs (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, event TEXT NOT NULL, detail TEXT NOT NULL
);
"""
_KEEP_LOG = 100_000
FAULTS = ("", "hang", "500", "401", "403", "garbage", "crash", "flood")


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a test, a demo or an operator turns while the device runs.

    `slots` None: those of the configuration. `free_slots` None: nobody else uses the device. `latency_s` delays
    every call. `fault` strikes the methods in `fault_on` (`all`, or names with commas), `fault_at` `before` or
    `after` they took effect. `task_s` is the least duration of a task. `calibration_windows` are pairs of Unix
    times between which the device is paused.
    """

    availability: str = Availability.ONLINE
    reason: str = ""
    queue: int = 0
    wait_s: float | None = None
    opens_at: float | None = None
    slots: int | None = None
    free_slots: int | None = None
    latency_s: float = 0.0
    fault: str = ""
    fault_on: str = "all"
    fault_at: str = "before"
    task_s: float = 0.0
    calibration_windows: tuple[tuple[float, float], ...] = ()

    def check(self) -> None:
        """Raise `bad-request` for a value that the device cannot take."""
        ok = (
            self.availability in set(Availability)
            and self.fault in FAULTS
            and self.fault_at in ("before", "after")
            and all(value is None or value >= 0 for value in (self.queue, self.slots, self.free_slots))
            and all(start <= end for start, end in self.calibration_windows)
        )
        if not ok:
            raise QtandemError("bad-request", f"The simulator cannot be set to {self}")

    def strikes(self, method: str, when: str) -> str:
        """The fault that hits this method now, or an empty string."""
        hit = self.fault_on == "all" or method in self.fault_on.replace(" ", "").split(",")
        return self.fault if hit and self.fault_at == when else ""

    def window(self, now: float) -> tuple[float, float] | None:
        return next(((start, end) for start, end in self.calibration_windows if start <= now < end), None)

    def calibrated_at(self, now: float) -> float | None:
        return max((end for _, end in self.calibration_windows if end <= now), default=None)

    def capacity(self, configured: int) -> int:
        """Slots that sessions may take: others' use is taken off."""
        total = configured if self.slots is None else self.slots
        return total if self.free_slots is None else min(total, self.free_slots)


@dataclass(frozen=True, slots=True)
class Task:
    """A task that was claimed for running."""

    id: str
    token: str
    payload: dict[str, Any]


def state_dir(resource: str, settings: Mapping[str, str]) -> Path:
    """Where the device of a resource keeps its state: the setting `state_dir`, or the default of this host.

    Raises `bad-config` for a relative path: processes with different working directories share the device.
    """
    if settings.get("state_dir"):
        named = Path(settings["state_dir"])
        if not named.is_absolute():
            raise QtandemError("bad-config", f"state_dir = {str(named)!r} is not an absolute path")
        return named
    return state_folder() / "simulator" / resource


class SimulatedDevice:
    """The device whose state is in the folder `path`; every process that opens it sees the same one."""

    def __init__(self, path: Path | str, clock: Callable[[], float] = time.time, keep: Keep | None = None) -> None:
        self.path = Path(path)
        self.clock = clock
        self._keep = keep or Keep()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.RLock()
        with self._alone():
            self._db = self._open()

    # What tests and operators use.

    def set(self, **knobs: object) -> None:
        """Turn knobs by name; raises `bad-request` for an unknown name or value."""
        unknown = knobs.keys() - {field.name for field in fields(Knobs)}
        if unknown:
            raise QtandemError("bad-request", f"The simulator has no knob {', '.join(sorted(unknown))}")
        with self._write():
            for name, value in knobs.items():
                self._db.execute("REPLACE INTO knobs VALUES (?, ?)", (name, json.dumps(value)))
            try:
                self.knobs().check()
            except (TypeError, ValueError) as error:
                raise QtandemError("bad-request", f"The simulator cannot be set so: {error}") from error
            self._note("knobs", **knobs)

    def knobs(self) -> Knobs:
        values = {row["name"]: json.loads(row["value"]) for row in self._rows("SELECT * FROM knobs")}
        if "calibration_windows" in values:
            pairs = values["calibration_windows"]
            values["calibration_windows"] = tuple((float(start), float(end)) for start, end in pairs)
        return Knobs(**values)

    def log(self) -> list[dict[str, Any]]:
        """Everything that changed the device, oldest first: `at`, `event` and its details."""
        rows = self._rows("SELECT at, event, detail FROM log ORDER BY n")
        return [{"at": row["at"], "event": row["event"], **json.loads(row["detail"])} for row in rows]

    def sessions(self) -> list[dict[str, Any]]:
        """The open sessions."""
        return [dict(row) for row in self._rows("SELECT * FROM sessions WHERE closed_at IS NULL")]

    def violations(self) -> list[str]:
        """What the log proves against whoever drives the device; empty when all was right."""
        return list(_violations(self.log()))

    # What the provider uses.

    def acquire(self, key: str, slots: int, configured: int) -> str:
        """Open a session, or return the open one of this key; raises `slots-busy` when the slots are taken."""
        with self._write():
            row = self._row("SELECT token FROM sessions WHERE key = ? AND closed_at IS NULL", key)
            if row:
                self._note("acquire", key=key, token=row["token"], again=True)
                return str(row["token"])
            knobs = self.knobs()
            total = configured if knobs.slots is None else knobs.slots
            used = int(self._value("SELECT coalesce(sum(slots), 0) FROM sessions WHERE closed_at IS NULL"))
            if used + slots <= knobs.capacity(configured):
                token = f"session-{uuid.uuid4().hex}"
                self._db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, NULL)", (token, key, slots, self.clock()))
                self._note("acquire", key=key, token=token, slots=slots, used=used + slots, total=total)
                return token
            self._note("refused", key=key, slots=slots, used=used, total=total)
        raise QtandemError("slots-busy", f"The simulator has {total} slots, {used} in sessions")

    def release(self, token: str) -> list[str]:
        """Close a session and cancel its unfinished tasks, whose ids are returned."""
        with self._write():
            row = self._row("SELECT key FROM sessions WHERE token = ? AND closed_at IS NULL", token)
            if row is None:
                return []
            self._db.execute("UPDATE sessions SET closed_at = ? WHERE token = ?", (self.clock(), token))
            open_tasks = self._rows(
                "SELECT id FROM tasks WHERE token = ? AND state IN ('queued', 'running') ORDER BY rowid", token
            )
            cancelled = [str(task["id"]) for task in open_tasks]
            for task in cancelled:
                self._end(task, TaskState.CANCELLED, "its session was released")
            self._note("release", key=row["key"], token=token, tasks=cancelled)
            self._keep.prune(self._db, self.clock())
        return cancelled

    def find_session(self, key: str) -> str | None:
        row = self._row("SELECT token FROM sessions WHERE key = ? AND closed_at IS NULL", key)
        return None if row is None else str(row["token"])

    def session_is_open(self, token: str) -> bool:
        return self._row("SELECT 1 FROM sessions WHERE token = ? AND closed_at IS NULL", token) is not None

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        """Queue a task, or return the one of this key; raises `no-lease` when the session is not open."""
        with self._write():
            row = self._row("SELECT id FROM tasks WHERE key = ?", key)
            if row:
                self._note("task_start", key=key, task=row["id"], again=True)
                return str(row["id"])
            if not self.session_is_open(token):
                raise QtandemError("no-lease", "The session is not open at the simulator")
            task, now = f"task-{uuid.uuid4().hex}", self.clock()
            self._keep.prune(self._db, now)
            self._db.execute(
                "INSERT INTO tasks (id, key, token, payload, state, created_at) VALUES (?, ?, ?, ?, 'queued', ?)",
                (task, key, token, json.dumps(payload), now),
            )
            self._note("task_start", key=key, task=task, token=token)
        return task

    def find_task(self, key: str) -> str | None:
        row = self._row("SELECT id FROM tasks WHERE key = ?", key)
        return None if row is None else str(row["id"])

    def task_report(self, task: str) -> TaskReport:
        row = self._task(task)
        return TaskReport(TaskState(row["state"]), row["reason"], row["usage_s"], row["shots"])

    def task_result(self, task: str) -> str:
        """The result's text; raises `task-not-ready` or `task-failed`."""
        row = self._task(task)
        state = TaskState(row["state"])
        if state is TaskState.COMPLETED:
            return str(row["result"])
        if state.final:
            raise QtandemError("task-failed", f"The task {task} {state}", cause=row["reason"] or None)
        raise QtandemError("task-not-ready", f"The task {task} is {state}", retry_after=1)

    def task_log(self, task: str) -> list[dict[str, Any]]:
        self._task(task)
        rows = self._rows("SELECT at, event, detail FROM log WHERE json_extract(detail, '$.task') = ? ORDER BY n", task)
        return [{"at": row["at"], "event": row["event"], **json.loads(row["detail"])} for row in rows]

    def task_stop(self, task: str) -> None:
        with self._write():
            if not TaskState(self._task(task)["state"]).final:
                self._end(task, TaskState.CANCELLED, "stopped on request")

    # What the runner uses.

    def claim_task(self) -> Task | None:
        """Mark the oldest queued task whose session has a slot left as running, and return it."""
        with self._write():
            row = self._row(
                "SELECT t.id, t.token, t.payload FROM tasks t JOIN sessions s ON s.token = t.token"
                " WHERE t.state = 'queued' AND s.slots >"
                " (SELECT count(*) FROM tasks r WHERE r.token = t.token AND r.state = 'running')"
                " ORDER BY t.rowid LIMIT 1"
            )
            if row is None:
                return None
            self._db.execute(
                "UPDATE tasks SET state = 'running', started_at = ? WHERE id = ?", (self.clock(), row["id"])
            )
            self._note("task_running", task=row["id"])
            return Task(row["id"], row["token"], json.loads(row["payload"]))

    def requeue_tasks(self) -> None:
        """Queue again what a dead runner left running. Only the holder of the runner's lock may call this."""
        with self._write():
            for row in self._rows("SELECT id FROM tasks WHERE state = 'running'"):
                self._db.execute("UPDATE tasks SET state = 'queued' WHERE id = ?", (row["id"],))
                self._note("task_requeued", task=row["id"])

    def is_running(self, task: str) -> bool:
        return self._row("SELECT 1 FROM tasks WHERE id = ? AND state = 'running'", task) is not None

    def unfinished_tasks(self) -> int:
        return int(self._value("SELECT count(*) FROM tasks WHERE state IN ('queued', 'running')"))

    def finish_task(self, task: str, result: str, shots: int, usage_s: float) -> None:
        """Store the result, unless the task was cancelled meanwhile."""
        with self._write():
            if self.is_running(task):
                self._db.execute(
                    "UPDATE tasks SET result = ?, shots = ?, usage_s = ? WHERE id = ?", (result, shots, usage_s, task)
                )
                self._end(task, TaskState.COMPLETED, "")

    def fail_task(self, task: str, reason: str) -> None:
        with self._write():
            if self.is_running(task):
                self._end(task, TaskState.FAILED, reason)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path / "device.db", timeout=20, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_SCHEMA + INDEXES)
        return db

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # Two processes that turn a new file to WAL at once fail each other, whatever the time-out.
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _end(self, task: str, state: TaskState, reason: str) -> None:
        self._db.execute(
            "UPDATE tasks SET state = ?, reason = ?, finished_at = ?, payload = NULL WHERE id = ?",
            (state.value, reason, self.clock(), task),
        )
        self._note(f"task_{state.value}", task=task, reason=reason)

    def _task(self, task: str) -> sqlite3.Row:
        row = self._row("SELECT * FROM tasks WHERE id = ?", task)
        if row is None:
            raise QtandemError("no-such-run", f"The simulator knows no task {task!r}")
        return row

    def _note(self, event: str, **detail: object) -> None:
        at = self.clock()
        cursor = self._db.execute(
            "INSERT INTO log (at, event, detail) VALUES (?, ?, ?)", (at, event, json.dumps(detail))
        )
        if cursor.lastrowid is not None and cursor.lastrowid % 1000 == 0:
            self._db.execute("DELETE FROM log WHERE n <= ?", (cursor.lastrowid - _KEEP_LOG,))

    @contextmanager
    def _write(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, sql: str, *args: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, args).fetchall()

    def _row(self, sql: str, *args: object) -> sqlite3.Row | None:
        return next(iter(self._rows(sql, *args)), None)

    def _value(self, sql: str) -> Any:
        return self._rows(sql)[0][0]


def _violations(log: list[dict[str, Any]]) -> Iterator[str]:
    open_sessions: dict[str, str] = {}
    started: dict[str, str] = {}
    done: set[str] = set()
    for entry in log:
        event, again = entry["event"], entry.get("again", False)
        if event == "acquire" and not again:
            if entry["key"] in open_sessions.values():
                yield f"two sessions are open for {entry['key']}"
            if entry["used"] > entry["total"]:
                yield f"{entry['key']} makes {entry['used']} slots of {entry['total']}"
            open_sessions[entry["token"]] = entry["key"]
        elif event == "refused" and entry["used"] + entry["slots"] > entry["total"]:
            yield f"{entry['key']} wanted {entry['slots']} slots with {entry['used']} of {entry['total']} taken"
        elif event == "release":
            open_sessions.pop(entry["token"], None)
        elif event == "task_start" and not again:
            if entry["key"] in started:
                yield f"two tasks were started for {entry['key']}"
            started[entry["key"]] = entry["task"]
        elif event == "task_completed":
            if entry["task"] in done:
                yield f"{entry['task']} completed twice"
            done.add(entry["task"])

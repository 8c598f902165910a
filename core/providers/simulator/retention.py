"""How long a simulated device remembers what is over."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

DAY_S = 86_400.0
DAYS, TASKS = 7.0, 10_000
# So many rows of a kind go at once: whoever starts a task meanwhile waits for no more.
STEP = 100

INDEXES = """
CREATE INDEX IF NOT EXISTS task_end ON tasks (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS session_end ON sessions (closed_at) WHERE closed_at IS NOT NULL;
"""


@dataclass(frozen=True, slots=True)
class Keep:
    """Ended tasks with their results, and closed sessions, go after `days`; of more than `tasks` the oldest go too."""

    days: float = DAYS
    tasks: int = TASKS

    def prune(self, db: sqlite3.Connection, now: float) -> None:
        """One step, within the caller's transaction. The file's pages are used again; it does not grow any more."""
        for table, end in (("tasks", "finished_at"), ("sessions", "closed_at")):
            old = f"SELECT rowid FROM {table} WHERE {end} < ? ORDER BY {end} LIMIT ?"  # noqa: S608
            db.execute(f"DELETE FROM {table} WHERE rowid IN ({old})", (now - self.days * DAY_S, STEP))  # noqa: S608
            rest = f"SELECT rowid FROM {table} WHERE {end} IS NOT NULL ORDER BY {end} DESC LIMIT ? OFFSET ?"  # noqa: S608
            db.execute(f"DELETE FROM {table} WHERE rowid IN ({rest})", (STEP, self.tasks))  # noqa: S608

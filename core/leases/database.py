"""The connection to the database: one process writes to it, every commit is on disk before it returns."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import structlog
from sqlalchemy import Connection, create_engine, event, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from qtandem.core.errors import QtandemError
from qtandem.core.leases import schema
from qtandem.core.leases.cipher import Cipher

_KEY_CHECK = "key-check"
_BUSY_MS = 5000

_log = structlog.get_logger("qtandem.leases")


class Database:
    """Opens, and migrates, the database at `url` (`sqlite:///PATH`).

    Raises `bad-config` where it cannot be opened, is in use by another daemon, comes from a newer qtandem, or
    was made with another master key. `committed` is called when a transaction has reached the disk.
    """

    def __init__(self, url: str, cipher: Cipher, *, committed: Callable[[], None] | None = None) -> None:
        self.url = make_url(url)
        self.cipher = cipher
        self._committed = committed or (lambda: None)
        self._group = threading.local()
        self._lock: BinaryIO | None = None
        self.engine = create_engine(self.url)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _set_up)
        try:
            self._lock = _lock(self.url.database) if self.engine.dialect.name == "sqlite" else None
            self._open()
        except DBAPIError as error:
            self.close()
            raise QtandemError(
                "bad-config", f"The database {self.url.database} cannot be opened", cause=str(error.orig)
            ) from error
        except QtandemError:
            self.close()
            raise

    def close(self) -> None:
        """Close every connection; the object is of no use any more."""
        self.engine.dispose()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction, on disk when the block is left without an error, or with its group. Writer's thread only."""
        shared: Connection | None = getattr(self._group, "connection", None)
        if shared is not None:
            yield shared
            return
        with _failing("written"), self.engine.begin() as connection:
            yield connection
        self._committed()

    def together(self, works: Sequence[Callable[[], object]]) -> list[object | Exception]:
        """What each work gives or raises, all of them in one transaction: one wait for the disk instead of many.

        Where one of them fails each gets a transaction of its own, so that nobody else's writing is undone with it.
        """
        if len(works) > 1:
            try:
                return self._as_one(works)
            except Exception as error:
                _log.debug("group undone", writes=len(works), why=str(error))
        return [_outcome(work) for work in works]

    def _as_one(self, works: Sequence[Callable[[], object]]) -> list[object | Exception]:
        with self.engine.begin() as connection:
            self._group.connection = connection
            try:
                results: list[object | Exception] = [work() for work in works]
            finally:
                del self._group.connection
        self._committed()
        return results

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view for queries; from any thread, beside the writer."""
        with _failing("read"), self.engine.connect() as connection:
            yield connection

    def _open(self) -> None:
        with self.engine.begin() as connection:
            schema.migrate(connection)
            self._check_key(connection)

    def _check_key(self, connection: Connection) -> None:
        table = schema.about
        sealed = connection.execute(select(table.c.value).where(table.c.key == _KEY_CHECK)).scalar()
        if sealed is None:
            value = self.cipher.seal("", _KEY_CHECK)
            connection.execute(insert(table).values(key=_KEY_CHECK, value=value))
        else:
            self.cipher.unseal(sealed, _KEY_CHECK)


def _outcome(work: Callable[[], object]) -> object | Exception:
    try:
        return work()
    except Exception as error:
        # Its owner raises it.
        return error


@contextmanager
def _failing(how: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise QtandemError("internal", f"The database cannot be {how}", cause=str(error.orig)) from error


def _set_up(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _lock(path: str | None) -> BinaryIO | None:
    """Keep other daemons out; the kernel gives the lock back however this process ends."""
    if not path or path == ":memory:":
        return None
    name = Path(f"{path}.lock")
    try:
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        _private(Path(path))
    except OSError as error:
        raise QtandemError("bad-config", f"The database {path} cannot be opened", cause=str(error)) from error
    file = os.fdopen(handle, "r+b")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise QtandemError(
            "bad-config",
            f"The database {path} is in use by another daemon",
            remedy="Run one qtandemd on one database.",
            cause=str(error),
        ) from error
    return file


def _private(path: Path) -> None:
    """Make the file before SQLite does, so that it is nobody else's to read from its first moment."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

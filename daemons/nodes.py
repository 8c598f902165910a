"""Which nodes may speak: enrolment tokens (hashed) and issued certificates, in one small SQLite file.

The daemon and the command line open it at the same time; what one writes holds for the next call of the other,
so a revocation needs no reload. A certificate that is not in it is refused, even if our authority signed it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.files import give_to_parent_owner

VERSION = 1
# Used and expired tokens are kept so long, to tell their reuse from a typing error.
_KEEP_TOKENS_S = 30 * 86400.0
_SCHEMA = """
create table tokens (
  hash text primary key, node text not null, created_at real not null, expires_at real not null, used_at real
) strict;
create table certificates (
  id integer primary key, serial text not null unique, node text not null, fingerprint text not null,
  issued_at real not null, expires_at real not null, seen_at real, revoked_at real,
  reason text not null default ''
) strict;
create index certificates_node on certificates(node);
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One certificate of a node. `state`: waiting (never used yet), active, expired or revoked."""

    node: str
    state: str
    fingerprint: str
    issued_at: float
    expires_at: float
    revoked_at: float | None
    reason: str


class Nodes:
    """The register. Raises `not-enrolled` with the reason; one instance belongs to one thread."""

    def __init__(self, path: Path) -> None:
        try:
            _create(path)
            self._db = sqlite3.connect(path, timeout=2.0, isolation_level=None)
            self._migrate()
        except (sqlite3.Error, OSError) as error:
            remedy = "Run it as root on the daemon's host; the file is the user qtandem's."
            message = f"The register {path} cannot be opened"
            raise QtandemError("bad-config", message, cause=str(error), remedy=remedy) from error

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_token(self, token: str, node: str, now: float, ttl_s: float) -> None:
        with self.transaction():
            self._db.execute("delete from tokens where expires_at < ?", (now - _KEEP_TOKENS_S,))
            self._db.execute(
                "insert into tokens (hash, node, created_at, expires_at) values (?, ?, ?, ?)",
                (_hash(token), node, now, now + ttl_s),
            )

    def use_token(self, token: str, node: str, now: float) -> None:
        """Spend a token, once; in the caller's transaction, so that a failed enrolment leaves it unspent."""
        row = self._db.execute(
            "select node, expires_at, used_at from tokens where hash = ?", (_hash(token),)
        ).fetchone()
        if row is None:
            raise QtandemError("not-enrolled", "The enrolment token is not known")
        owner, expires_at, used_at = row
        if used_at is not None:
            raise QtandemError("not-enrolled", "The enrolment token was used already")
        if now > expires_at:
            raise QtandemError("not-enrolled", "The enrolment token has expired")
        if owner != node:
            raise QtandemError("not-enrolled", f"The enrolment token is not for the node {node}")
        self._db.execute("update tokens set used_at = ? where hash = ?", (now, _hash(token)))

    def add_certificate(self, serial: str, node: str, fingerprint: str, now: float, expires_at: float) -> None:
        self._db.execute(
            "insert into certificates (serial, node, fingerprint, issued_at, expires_at) values (?, ?, ?, ?, ?)",
            (serial, node, fingerprint, now, expires_at),
        )

    def admit(self, serial: str, node: str, now: float) -> None:
        """Let a certificate pass or raise `not-enrolled`. The first use of a new one retires the older ones."""
        row = self._db.execute(
            "select id, node, expires_at, seen_at, revoked_at, reason from certificates where serial = ?",
            (serial,),
        ).fetchone()
        if row is None or row[1] != node:
            raise QtandemError("not-enrolled", f"The certificate of {node} is not in the register")
        number, _, expires_at, seen_at, revoked_at, reason = row
        if revoked_at is not None:
            raise QtandemError("not-enrolled", f"The certificate of {node} is revoked ({reason})")
        if now > expires_at:
            raise QtandemError("not-enrolled", f"The certificate of {node} has expired")
        if seen_at is None:
            self._first_use(number, node, now)

    def revoke(self, node: str, now: float, reason: str = "by the admin") -> int:
        """Refuse every certificate and open token of the node from now on; returns how many certificates."""
        with self.transaction():
            self._db.execute("delete from tokens where node = ? and used_at is null", (node,))
            return self._db.execute(
                "update certificates set revoked_at = ?, reason = ? where node = ? and revoked_at is null",
                (now, reason, node),
            ).rowcount

    def certificates(self, now: float) -> list[Node]:
        rows = self._db.execute(
            "select node, fingerprint, issued_at, expires_at, seen_at, revoked_at, reason from certificates"
            " order by node, id"
        )
        return [
            Node(node, _state(seen, revoked, expires, now), mark, issued, expires, revoked, reason)
            for node, mark, issued, expires, seen, revoked, reason in rows
        ]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def _first_use(self, number: int, node: str, now: float) -> None:
        with self.transaction():
            self._db.execute("update certificates set seen_at = ? where id = ?", (now, number))
            self._db.execute(
                "update certificates set revoked_at = ?, reason = 'replaced by a newer one'"
                " where node = ? and id < ? and revoked_at is null",
                (now, node, number),
            )

    def _migrate(self) -> None:
        with self.transaction():
            found = self._db.execute("pragma user_version").fetchone()[0]
            if found == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"pragma user_version = {VERSION}")
            elif found > VERSION:
                raise QtandemError("bad-config", f"The register is of a newer version ({found})")


def _create(path: Path) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        give_to_parent_owner(path, path.parent)


def _hash(token: str) -> str:
    # Tokens are 256 random bits: a plain digest cannot be searched.
    return hashlib.sha256(token.strip().encode()).hexdigest()


def _state(seen: float | None, revoked: float | None, expires: float, now: float) -> str:
    if revoked is not None:
        return "revoked"
    if now > expires:
        return "expired"
    return "active" if seen is not None else "waiting"

"""Files that others read while we write them: whole or not at all, and never through a planted link."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qtandem.core.errors import QtandemError


def write_atomic(
    path: Path,
    data: bytes,
    mode: int = 0o644,
    *,
    replace: bool = True,
    like_parent: bool = False,
    mtime_ns: int | None = None,
) -> None:
    """Put `data` at `path` by rename. With `replace` False an existing file raises `already-exists`.

    `like_parent` gives the file the owner of its directory, so that what root makes stays usable for the
    service's own user.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            if like_parent:
                give_to_parent_owner(file.fileno(), path.parent)
            file.flush()
            if mtime_ns is not None:
                os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
            os.fsync(file.fileno())
        _place(temporary, path, replace)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def disk(whose: str, done: str) -> Iterator[None]:
    """Turn the disk's refusal into `internal`, for users: `whose` file cannot be `done`, without paths or content."""
    try:
        yield
    except OSError as error:
        raise QtandemError(
            "internal", f"{whose} file cannot be {done}", cause=error.strerror, remedy="Tell the site's admin."
        ) from error


def give_to_parent_owner(handle: int | Path, parent: Path) -> None:
    """As root, give a new file to whoever owns its directory; others cannot and need not."""
    if os.geteuid() == 0:
        owner = parent.stat()
        os.chown(handle, owner.st_uid, owner.st_gid)


def read_private(path: Path) -> bytes:
    """The content of a file that holds a key; raises `bad-config` when others can read it or it is missing."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise QtandemError(
                    "bad-config", f"{path} can be read by others (mode {mode:04o})", remedy=f"chmod 600 {path}"
                )
            return file.read()
    except OSError as error:
        raise QtandemError("bad-config", f"{path} cannot be read", cause=error.strerror) from error


def _place(temporary: Path, path: Path, replace: bool) -> None:
    if replace:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise QtandemError("already-exists", f"{path} is there already; it is not overwritten") from None

"""The local socket: made without a moment of wrong mode, room for who calls, and the kernel's word on who that is."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import socket
import struct
from pathlib import Path

from qtandem.core.errors import QtandemError

_UCRED = struct.Struct("3i")


def listen_unix(path: Path, mode: int = 0o666, backlog: int = 1024) -> socket.socket:
    """A listening socket at `path`; a left-over of a dead process is replaced.

    Raises `already-exists` while another process still answers there.
    """
    if _answers(path):
        raise QtandemError("already-exists", f"Another process already listens on {path}", remedy="Stop it first.")
    # Short: a path of a socket has room for 107 bytes, and the final one may need them all (unix(7)).
    temporary = path.with_name(f".{secrets.token_hex(4)}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(temporary))
        temporary.chmod(mode)
        listener.listen(backlog)
        temporary.replace(path)
    except OSError as error:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise QtandemError("bad-config", f"Cannot listen on {path}", cause=error.strerror or str(error)) from error
    return listener


def raise_file_limit() -> None:
    """Let this process have as many files open as it may: the usual 1024 would let a few users' open calls fill it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def peer_uid(transport: asyncio.BaseTransport | None) -> int | None:
    """The uid of the process that connected (SO_PEERCRED); None when the connection is not a local one."""
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        with contextlib.suppress(OSError):
            probe.connect(str(path))
            return True
    return False

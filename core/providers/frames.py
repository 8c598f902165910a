"""Framed messages between a process and the children it starts, and what such a child owes its parent.

A message is one frame (4 bytes of length, big endian, then JSON). A message with `"raw": true` is followed by
one more frame of UTF-8 text, so that a long result is never parsed on its way.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

HEADER = struct.Struct(">I")
LIMIT = 64 << 20

_ROOT = str(Path(__file__).parents[3])
_BOOT = (
    "import sys, importlib; root, name = sys.argv[1:3]; root in sys.path or sys.path.insert(0, root); "
    "importlib.import_module(name).main()"
)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_KEPT = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "XDG_STATE_HOME", "LD_LIBRARY_PATH",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
_THREADS = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "QISKIT_PARALLEL": "FALSE"}


class FrameError(Exception):
    """What came over the pipe is not a message."""


def pack(message: Mapping[str, object], text: str | None = None) -> bytes:
    """One message as bytes; raises `FrameError` when it is over `LIMIT`."""
    body = dict(message, raw=True) if text is not None else message
    parts = [json.dumps(body).encode()]
    if text is not None:
        parts.append(text.encode("utf-8", "surrogatepass"))
    if any(len(part) > LIMIT for part in parts):
        raise FrameError(f"a message of {max(map(len, parts))} bytes is over {LIMIT}")
    return b"".join(HEADER.pack(len(part)) + part for part in parts)


def length(header: bytes) -> int:
    """The length that a frame's header announces; raises `FrameError` when it is over `LIMIT`."""
    (size,) = HEADER.unpack(header)
    if size > LIMIT:
        raise FrameError(f"a frame of {size} bytes is over {LIMIT}")
    return int(size)


def unpack(frame: bytes) -> dict[str, Any]:
    """The message in one frame; raises `FrameError` when it is none."""
    try:
        message = json.loads(frame)
    except ValueError as error:
        raise FrameError("a frame does not hold JSON") from error
    if not isinstance(message, dict):
        raise FrameError("a frame does not hold an object")
    return message


class Channel:
    """The blocking end of a pair of pipes."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    def claim_stdio(cls) -> Channel:
        """Take the pipes away from fds 0 and 1: what a library prints then goes to stderr, never between frames."""
        reader, writer = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        return cls(os.fdopen(reader, "rb"), os.fdopen(writer, "wb"))

    def read(self) -> tuple[dict[str, Any], str | None] | None:
        """The next message and its text; None when the other side is gone."""
        frame = self._frame()
        if frame is None:
            return None
        message = unpack(frame)
        if not message.get("raw"):
            return message, None
        text = self._frame()
        return None if text is None else (message, text.decode("utf-8", "surrogatepass"))

    def write(self, message: Mapping[str, object], text: str | None = None) -> None:
        self._writer.write(pack(message, text))
        self._writer.flush()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _frame(self) -> bytes | None:
        header = self._reader.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        size = length(header)
        body = self._reader.read(size)
        return body if len(body) == size else None


def command(module: str) -> list[str]:
    """argv of a child that runs `module.main()` in isolated mode and dies with this process."""
    return [sys.executable, "-I", "-c", _BOOT, _ROOT, module, str(os.getpid())]


def environment() -> dict[str, str]:
    """The environment of a child: what finds programs, certificates and proxies, and nothing else."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8"} | kept | _THREADS


def die_with_parent() -> None:
    """Called first in a child that `command` started: the kernel kills it when its parent's thread ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(sys.argv[3]):
        os._exit(1)


def confine(memory_bytes: int) -> None:
    """Bound this process's address space (0: not at all), and keep its memory, which holds secrets, to itself.

    No core dump is written, and no other process of the same uid can look into it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if memory_bytes:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))

"""The calls of one daemon, written once as coroutines for programs that wait and for those that do not."""

from __future__ import annotations

import http.client
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from qtandem.core.client.http import MAX_ANSWER, Query, answer, request, unreachable
from qtandem.core.errors import QtandemError
from qtandem.core.places import runtime_folder

log = logging.getLogger("qtandem.client")

DEADLINE_S = 30.0
SYSTEM_SOCKET = "/run/qtandem/qtandem.sock"

_T = TypeVar("_T")


def default_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """`QTANDEM_SOCKET`, else the site's socket, else that of a daemon which the user runs."""
    if named := environ.get("QTANDEM_SOCKET"):
        return Path(named)
    site = Path(SYSTEM_SOCKET)
    own = runtime_folder(environ)
    if not site.exists() and _mine(own):
        return own / "qtandem.sock"
    return site


def _mine(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False


class Dialogue(ABC):
    """Calls and their repetition; a subclass moves the bytes.

    Every method raises `QtandemError`: the daemon's own, or `daemon-unreachable`. A call that cannot reach the
    daemon is made again for `patience_s` seconds: every call of the API may be repeated.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        patience_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._named = None if path is None else Path(path)
        self.clock = clock
        self._deadline_s = deadline_s
        self._patience_s = patience_s

    @property
    def path(self) -> Path:
        """The socket; where none was named, looked for anew, since the user's own daemon may start after us."""
        return self._named or default_socket()

    async def get(self, *parts: str, deadline_s: float | None = None, **query: str | float | None) -> object:
        """GET /v1/PARTS?QUERY; parameters that are None are left out."""
        return await self.call("GET", *parts, query=query, deadline_s=deadline_s)

    async def post(self, *parts: str, body: Mapping[str, object], deadline_s: float | None = None) -> object:
        return await self.call("POST", *parts, body=body, deadline_s=deadline_s)

    async def delete(self, *parts: str) -> object:
        return await self.call("DELETE", *parts)

    async def call(
        self,
        method: str,
        *parts: str,
        query: Query | None = None,
        body: Mapping[str, object] | None = None,
        deadline_s: float | None = None,
    ) -> object:
        """The decoded answer: an object for JSON, text for anything else.

        A relay says `daemon-unreachable` in an answer, a missing daemon by none: both are waited out.
        """
        data = request(method, parts, query, body)
        ends = self.clock() + self._patience_s
        pause = 0.05
        while True:
            try:
                return await self._once(data, deadline_s or self._deadline_s)
            except QtandemError as error:
                if error.code != "daemon-unreachable" or self.clock() + pause > ends:
                    raise
                log.warning("%s; trying again", error.message)
            await self.pause(pause)
            pause = min(2.0, 2 * pause)

    async def _once(self, data: bytes, deadline_s: float) -> object:
        try:
            return answer(await self.exchange(data, deadline_s))
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(error, self.path, deadline_s) from error

    @abstractmethod
    async def exchange(self, data: bytes, deadline_s: float) -> bytes:
        """Send `data` on a connection of its own; all that comes back, up to `MAX_ANSWER`, within `deadline_s`.

        Raises OSError (TimeoutError at the deadline), or http.client.HTTPException.
        """

    @abstractmethod
    async def pause(self, seconds: float) -> None: ...


class Received:
    """The bytes of an answer as they come; raises http.client.HTTPException for too many."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MAX_ANSWER:
            raise http.client.HTTPException("the answer is too large")
        self._chunks.append(chunk)

    def all(self) -> bytes:
        return b"".join(self._chunks)


def address(path: Path) -> str:
    """The path as a socket takes it; raises OSError for one that is too long."""
    text = os.fspath(path)
    if len(os.fsencode(text)) > 107:
        raise OSError("the path is longer than the 107 bytes that a unix socket may have")
    return text


def now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that never waits, because what it awaits blocks instead."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call tried to wait for an event loop")

"""Calls of the daemon's API over the unix socket, with a deadline for each call as a whole."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from qtandem.core.client.dialogue import DEADLINE_S, Dialogue, Received, address, default_socket, now
from qtandem.core.client.http import Query

__all__ = ["DEADLINE_S", "Daemon", "default_socket"]


class Blocking(Dialogue):
    """A dialogue whose coroutines never wait: they block."""

    def __init__(
        self,
        path: Path | str | None,
        *,
        deadline_s: float,
        patience_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__(path, deadline_s=deadline_s, patience_s=patience_s, clock=clock)
        self._sleep = sleep

    async def exchange(self, data: bytes, deadline_s: float) -> bytes:
        ends = self.clock() + deadline_s
        received = Received()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(deadline_s)
            connection.connect(address(self.path))
            with suppress(BrokenPipeError, ConnectionResetError):  # a refusal may come before all was read
                connection.sendall(data)
            while True:
                left = ends - self.clock()
                if left <= 0:
                    raise TimeoutError
                connection.settimeout(left)
                chunk = connection.recv(65536)
                if not chunk:
                    return received.all()
                received.add(chunk)

    async def pause(self, seconds: float) -> None:
        self._sleep(seconds)


class Daemon:
    """The API of one daemon (or relay). Each call is a connection of its own, so threads and forks may share it.

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
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.dialogue = Blocking(path, deadline_s=deadline_s, patience_s=patience_s, clock=clock, sleep=pause)

    @property
    def path(self) -> Path:
        return self.dialogue.path

    def get(self, *parts: str, deadline_s: float | None = None, **query: str | float | None) -> object:
        """GET /v1/PARTS?QUERY; parameters that are None are left out."""
        return now(self.dialogue.get(*parts, deadline_s=deadline_s, **query))

    def post(self, *parts: str, body: Mapping[str, object], deadline_s: float | None = None) -> object:
        return now(self.dialogue.post(*parts, body=body, deadline_s=deadline_s))

    def delete(self, *parts: str) -> object:
        return now(self.dialogue.delete(*parts))

    def call(
        self,
        method: str,
        *parts: str,
        query: Query | None = None,
        body: Mapping[str, object] | None = None,
        deadline_s: float | None = None,
    ) -> object:
        """The decoded answer: an object for JSON, text for anything else."""
        return now(self.dialogue.call(method, *parts, query=query, body=body, deadline_s=deadline_s))

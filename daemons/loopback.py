"""The loopback port where jobs' programs reach the proxy, on the daemon's host and on every relay's.

The kernel does not say who calls over TCP, so calls are plain, few and short here before a token has been looked at.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from aiohttp import web

from qtandem.core.errors import QtandemError

# Nobody in particular: over TCP the kernel does not say who calls, the token does.
NOBODY = 65534
PATH = "/v1/proxy"
CONNECTIONS = 256
# A connection that sends no whole head in this time, or nothing after an answer, is closed.
IDLE_S = 20.0
# What a caller goes on to send after a refusal is thrown away for so long, so that it reads the answer.
LINGER_S = 2.0
HEADER_BYTES, HEADERS = 8190, 32
MOST_QUERY = 4000
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,38}"
_PART = r"[A-Za-z0-9_.:~\-]{1,100}"
_TARGET = re.compile(rf"/{_NAME}(?:/{_PART}){{1,8}}/?(?:\?[!-~]{{0,{MOST_QUERY}}})?")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})

LIMITS: dict[str, Any] = {
    "access_log": None,
    "keepalive_timeout": IDLE_S,
    "lingering_time": LINGER_S,
    "max_line_size": HEADER_BYTES,
    "max_field_size": HEADER_BYTES,
    "max_headers": HEADERS,
}


def loopback(address: str) -> tuple[str, int]:
    """Host and port of a loopback address; raises `bad-config` for any other, which would let others in."""
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not port.isdigit() or not 0 < int(port) < 65536:
        raise QtandemError(
            "bad-config", f"The proxy's address {address!r} is no port of 127.0.0.1", remedy="Write 127.0.0.1:748."
        )
    return "127.0.0.1", int(port)


def plain(request: web.BaseRequest, raw_path: str) -> None:
    """Raises `bad-request` for a call that could mean two things to two readers, or more than a call."""
    headers = request.headers
    if request.method not in METHODS:
        raise QtandemError("bad-request", f"{request.method[:20]} is none of the vendor's methods")
    if "Upgrade" in headers or "upgrade" in headers.get("Connection", "").lower():
        raise QtandemError("bad-request", "A connection is not turned into another protocol here")
    if any(len(headers.getall(name, [])) > 1 for name in ("Authorization", "Content-Length", "Content-Type", "Host")):
        raise QtandemError("bad-request", "A header is there twice")
    # A name and plain parts below it: nothing encoded, nothing to resolve.
    path = raw_path.partition("?")[0]
    if not _TARGET.fullmatch(raw_path) or any(part in (".", "..") for part in path.split("/")):
        raise QtandemError("bad-request", "The path is none of the vendor's")


class Bounded(web.Server):
    """Refuses connections beyond `most`: all come from this host, and nobody knows from whom."""

    def __init__(self, handler: Any, most: int = CONNECTIONS, **options: Any) -> None:
        super().__init__(handler, **{**LIMITS, **options})
        self._most = most

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > self._most:
            transport.abort()

"""Passing one local call on to the daemon: what may pass, what is added, and what is said when it cannot."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.wire import JSON, MAX_BODY, TEXT, UID_HEADER
from qtandem.core.wiretext import encode_text
from qtandem.daemons import tls
from qtandem.daemons.logs import log
from qtandem.daemons.loopback import plain
from qtandem.daemons.sockets import peer_uid
from qtandem.daemons.upstream import Upstream

# RFC 9110 7.6.1; Host is the daemon's, and Expect is answered here.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
OURS = "x-qtandem-"
_ANSWERED = ("Content-Type", "Content-Length", "Retry-After")
PER_UID = 256
# What the proxy needs of a call; anything else is made anew before it reaches a vendor.
PROXIED_HEADERS = frozenset({"authorization", "content-type"})
# Longer than a vendor's call may take in the daemon.
PROXY_S = 90.0
PROXY_CALLS = 64

Headers = list[tuple[str, str]]


class Body:
    """A caller's body in pieces, cut off when it exceeds the limit."""

    def __init__(self, content: aiohttp.StreamReader, limit: int) -> None:
        self._content = content
        self._left = limit
        self.overflowed = False

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._content.iter_any():
            self._left -= len(piece)
            if self._left < 0:
                self.overflowed = True
                raise ConnectionAbortedError("the body is over the limit")
            yield piece


class _Passing:
    """Passes calls on, and their answers back, piece by piece."""

    def __init__(self, upstream: Upstream, limit: int) -> None:
        self._upstream, self._limit = upstream, limit

    def _check_size(self, request: web.BaseRequest) -> None:
        if (request.content_length or 0) > self._limit:
            raise self._too_large()

    async def _pass_on(
        self, request: web.BaseRequest, path: str, headers: Headers, answered: Callable[[Mapping[str, str]], Headers]
    ) -> web.StreamResponse:
        """Call `path` with `headers`; `answered` chooses the headers of the answer."""
        body = Body(request.content, self._limit) if request.body_exists else None
        pieces = body.pieces() if body else None
        sent: web.StreamResponse | None = None
        try:
            async with self._upstream.call(request.method, path, headers, pieces) as answer:
                sent = web.StreamResponse(status=answer.status, reason=answer.reason, headers=answered(answer.headers))
                await _stream(request, answer, sent)
                return sent
        except QtandemError:
            if sent is not None and sent.prepared:
                # Half an answer must not look like a whole one.
                _abort(request)
                return sent
            if body and body.overflowed:
                raise self._too_large() from None
            raise

    def _too_large(self) -> QtandemError:
        return QtandemError("too-large", f"A call carries at most {self._limit // 2**20} MiB")


class Forwarder(_Passing):
    """The request handler of the relay's server."""

    def __init__(self, upstream: Upstream, limit: int = MAX_BODY) -> None:
        super().__init__(upstream, limit)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            uid = peer_uid(request.transport)
            if uid is None:
                raise QtandemError("not-authorised", "The relay serves its local socket only")
            if request.path.startswith(tls.ENROL_PATH):
                raise QtandemError("not-authorised", "Nodes enrol themselves; no user does it through them")
            self._check_size(request)
            if request.body_exists and request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            headers = [*passed_headers(request.headers), (UID_HEADER, str(uid))]
            return await self._pass_on(request, request.raw_path, headers, passed_headers)
        except QtandemError as error:
            log("relay").debug("refused", path=request.path, code=error.code, cause=error.cause)
            return refusal(request.headers, error)


class ProxyForwarder(_Passing):
    """The handler of the relay's loopback port: nobody vouches for who calls there, the token in the call does."""

    def __init__(self, upstream: Upstream, path: str, uid: int, limit: int = MAX_BODY) -> None:
        super().__init__(upstream, limit)
        self._path, self._uid = path, uid
        self._places = asyncio.Semaphore(PROXY_CALLS)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            plain(request, request.raw_path)
            self._check_size(request)
            if self._places.locked():
                raise QtandemError("too-many-calls", f"{PROXY_CALLS} calls are under way here", retry_after=1.0)
            headers = [(name, value) for name, value in request.headers.items() if name.lower() in PROXIED_HEADERS]
            headers.append((UID_HEADER, str(self._uid)))
            async with self._places, asyncio.timeout(PROXY_S):
                return await self._pass_on(request, f"{self._path}{request.raw_path}", headers, _proxied_back)
        except TimeoutError:
            return refusal({}, QtandemError("vendor-timeout", f"No answer within {PROXY_S:.0f} s"))
        except QtandemError as error:
            return refusal({}, error)


class BoundedServer(web.Server):
    """Refuses connections of a uid that has `per_uid` open, so that it cannot starve others; root is exempt."""

    def __init__(
        self, handler: Forwarder, per_uid: int = PER_UID, exempt: frozenset[int] = frozenset({0}), **options: Any
    ) -> None:
        super().__init__(handler, handler_cancellation=True, **options)
        self._per_uid = per_uid
        self._exempt = exempt
        self._open: Counter[int] = Counter()
        self._owner: dict[object, int] = {}

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        uid = peer_uid(transport)
        if uid is None or uid in self._exempt:
            return
        self._owner[handler] = uid
        self._open[uid] += 1
        if self._open[uid] > self._per_uid:
            transport.write(_refused_connection(uid, self._per_uid))
            transport.close()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        uid = self._owner.pop(handler, None)
        if uid is not None:
            self._open[uid] -= 1


def passed_headers(headers: Mapping[str, str]) -> Headers:
    """The end-to-end headers: no hop-by-hop ones, none that Connection names, none of our own."""
    items = list(headers.items())
    named = {word.strip().lower() for name, value in items if _is(name, "connection") for word in value.split(",")}
    dropped = HOP_BY_HOP | named
    return [(name, value) for name, value in items if name.lower() not in dropped and not name.lower().startswith(OURS)]


def _proxied_back(headers: Mapping[str, str]) -> Headers:
    return [(name, headers[name]) for name in _ANSWERED if name in headers]


def refusal(headers: Mapping[str, str], error: QtandemError) -> web.Response:
    """An error in the caller's own form: text for one that speaks or accepts only text, else JSON."""
    accept, sent = headers.get("Accept", "*/*"), headers.get("Content-Type", "")
    wants_text = JSON not in accept and (accept.startswith(TEXT) or sent.startswith(TEXT))
    body = error.to_wire()
    text, kind = (encode_text(body), TEXT) if wants_text else (json.dumps(body), JSON)
    response = web.Response(status=error.kind.http, text=text, content_type=kind)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


async def _stream(request: web.BaseRequest, answer: aiohttp.ClientResponse, sent: web.StreamResponse) -> None:
    await sent.prepare(request)
    async for piece in answer.content.iter_any():
        await sent.write(piece)
    await sent.write_eof()


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None and isinstance(request.transport, asyncio.Transport):
        request.transport.abort()


def _is(name: str, other: str) -> bool:
    return name.lower() == other


def _refused_connection(uid: int, limit: int) -> bytes:
    error = QtandemError("too-many-calls", f"uid {uid} has {limit} calls open on this host")
    body = json.dumps(error.to_wire()).encode()
    head = f"HTTP/1.1 {error.kind.http} Too Many Requests\r\nContent-Type: {JSON}\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body

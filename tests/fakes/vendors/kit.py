"""A small HTTP server that plays a vendor: routes, a log of all requests, and faults to order.

A vendor's fake subclasses `FakeServer` and marks its handlers with `route`. It runs in a thread of the test,
on a free port of 127.0.0.1. Faults strike by method and path, before the handler's work or after it (`after`:
the work is done and only the answer is lost).
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

HANG_S = 120.0
JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """One request as it arrived. `query` keeps all values of a name; header names are in lower case.

    `at` is when, by `time.monotonic`.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    at: float = 0.0

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    def one(self, name: str, default: str | None = None) -> str | None:
        return self.query.get(name, [default])[0]

    def form(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(self.body.decode()).items()}


@dataclass(frozen=True)
class Reply:
    """An answer; a `body` that is neither text nor bytes is sent as JSON, None as nothing."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = JSON

    def content(self) -> bytes:
        if self.body is None:
            return b""
        if isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


@dataclass
class Fault:
    """What goes wrong with requests that match; `times` None: until it is healed.

    `kind`: `latency` (`seconds`), `hang`, `drop` (the connection ends without an answer), `status` (`reply`),
    `malformed` (JSON cut short), `garbage` (a proxy's HTML page with status 200), `unknown` (fields that nobody
    knows in every object), `null` (the named `fields` are null), `missing` (the named `fields` are not there).
    """

    kind: str
    method: str = ""
    path: str = ""
    times: int | None = None
    after: bool = False
    seconds: float = 0.0
    fields: tuple[str, ...] = ()
    reply: Reply = field(default_factory=Reply)

    def hits(self, request: Request) -> bool:
        if self.times == 0 or (self.method and self.method != request.method):
            return False
        return re.search(self.path, request.path) is not None


Handler = Callable[..., Reply]
_ROUTE = "_routes"


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Let a method of a fake answer `method` on a path, whose named groups become its arguments."""

    def mark(handler: Handler) -> Handler:
        routes = getattr(handler, _ROUTE, [])
        setattr(handler, _ROUTE, [*routes, (method, re.compile(path))])
        return handler

    return mark


class FakeServer:
    """The server. `seen` is the log of all requests that arrived, whatever became of them.

    `skew_s` is how far the vendor's clock is ahead of ours. `lock` guards the fake's own state.
    """

    # Requests that change nothing although they are not GET, such as those for an access token.
    harmless: tuple[str, ...] = ()
    # How soon a server notices that it shall close, in seconds; each look costs a process with many of them.
    look_s = 0.02

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.seen: list[Request] = []
        self.faults: list[Fault] = []
        self.skew_s = 0.0
        self.lock = threading.RLock()
        self._clock = clock
        self._healed = threading.Event()
        self._routes = list(_routes_of(self))
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(self.look_s,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def now(self) -> float:
        """The vendor's time."""
        return self._clock() + self.skew_s

    def writes(self) -> list[Request]:
        """The requests that may have changed something."""
        with self.lock:
            return [
                each
                for each in self.seen
                if each.method not in ("GET", "HEAD") and not any(re.search(path, each.path) for path in self.harmless)
            ]

    def fail(
        self,
        status: int,
        *,
        method: str = "",
        path: str = "",
        times: int | None = None,
        after: bool = False,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        retry_after: object = None,
    ) -> Fault:
        """Answer a status instead; `retry_after` adds the header of that name."""
        extra = {} if retry_after is None else {"Retry-After": str(retry_after)}
        body = self.error(status) if body is None else body
        return self.fault(
            "status", method=method, path=path, times=times, after=after,
            reply=Reply(status, body, {**(headers or {}), **extra}),
        )  # fmt: skip

    def fault(self, kind: str, **detail: Any) -> Fault:
        """Order a fault; the earliest that matches a request strikes."""
        fault = Fault(kind, **detail)
        with self.lock:
            self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more faults; what hangs now ends without an answer."""
        with self.lock:
            self.faults.clear()
            self._healed.set()
            self._healed = threading.Event()

    def error(self, status: int) -> object:
        """The body that the vendor gives an error, in the vendor's own form."""
        return {"message": f"scripted {status}"}

    def close(self) -> None:
        self.heal()
        self._server.shutdown()
        self._server.end()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, request: Request) -> Reply | None:
        """The answer to one request; None ends the connection without one."""
        with self.lock:
            self.seen.append(request)
            fault = self._strike(request)
            healed = self._healed
        if fault is None:
            return self.handle(request)
        reply = self.handle(request) if fault.after or fault.kind not in ("hang", "drop", "status") else None
        match fault.kind:
            case "latency":
                time.sleep(fault.seconds)
            case "hang":
                healed.wait(HANG_S)
                return None
            case "drop":
                return None
            case "status":
                return fault.reply
        assert reply is not None
        return _spoil(reply, fault)

    def handle(self, request: Request) -> Reply:
        """The answer of the vendor in good health."""
        known = False
        for method, path, handler in self._routes:
            found = path.fullmatch(request.path)
            known = known or found is not None
            if found and method == request.method:
                with self.lock:
                    return handler(request, **found.groupdict())
        status = 405 if known else 404
        return Reply(status, self.error(status))

    def _strike(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.hits(request):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


def page(items: list[Any], start: int, limit: int) -> tuple[list[Any], int | None]:
    """One page of a listing, and where the next one begins."""
    following = start + limit
    return items[start:following], following if following < len(items) else None


@contextmanager
def closing(*servers: FakeServer) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.close()


def _routes_of(fake: object) -> Iterator[tuple[str, re.Pattern[str], Handler]]:
    for name in dir(type(fake)):
        for method, path in getattr(getattr(type(fake), name), _ROUTE, []):
            yield method, path, getattr(fake, name)


def _spoil(reply: Reply, fault: Fault) -> Reply:
    match fault.kind:
        case "malformed":
            content = reply.content()
            return Reply(reply.status, content[: len(content) // 2] + b"\x00", reply.headers)
        case "garbage":
            return Reply(200, "<html><body><h1>502 Bad Gateway</h1></body></html>", {}, "text/html")
        case "unknown":
            return Reply(
                reply.status, _each(reply.body, lambda row: {**row, "brand_new": {"deep": [1]}}), reply.headers
            )
        case "null":
            return Reply(reply.status, _each(reply.body, lambda row: _with_null(row, fault.fields)), reply.headers)
        case "missing":
            keep = lambda row: {key: value for key, value in row.items() if key not in fault.fields}  # noqa: E731
            return Reply(reply.status, _each(reply.body, keep), reply.headers)
    return reply


def _with_null(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: None if key in names else value for key, value in row.items()}


def _each(node: object, change: Callable[[dict[str, Any]], dict[str, Any]]) -> object:
    """The same JSON with every object changed."""
    if isinstance(node, dict):
        return change({key: _each(value, change) for key, value in node.items()})
    return [_each(each, change) for each in node] if isinstance(node, list) else node


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def end(self) -> None:
        """Connections that are kept alive end with the server."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed leave broken connections; that is what the tests do to them."""


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Connection(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            parts = urlsplit(self.path)
            reply = fake.serve(
                Request(
                    self.command,
                    parts.path,
                    parse_qs(parts.query, keep_blank_values=True),
                    {key.lower(): value for key, value in self.headers.items()},
                    self.rfile.read(length),
                    time.monotonic(),
                )
            )
            if reply is None:
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send(reply)

        def send(self, reply: Reply) -> None:
            content = reply.content()
            self.send_response(reply.status)
            if content:
                self.send_header("Content-Type", reply.type)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD" and reply.status != 204:
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def handle_expect_100(self) -> bool:
            went = super().handle_expect_100()
            self.wfile.flush()
            return went

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(fake.now() if timestamp is None else timestamp, usegmt=True)

        def log_message(self, *_: object) -> None:
            """The log is `seen`."""

    return Connection

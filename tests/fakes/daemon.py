"""A daemon that a test scripts: real HTTP over a unix socket, answers by route, a record of the calls."""

from __future__ import annotations

import json
import socketserver
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from qtandem.core.errors import QtandemError


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    body: Any


Route = Callable[[Call], Any]


@dataclass
class FakeDaemon:
    """Answers `METHOD /path` (below /v1) from `routes`: a value, or a function of the call.

    A function may raise `QtandemError`, which is sent as the daemon sends it. A `*` in a route's path stands for
    one part.
    """

    routes: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A short path of its own: that of a test's folder may be longer than a unix socket takes.
        self._folder = tempfile.TemporaryDirectory(prefix="qt")
        self.path = Path(self._folder.name) / "s"
        self._server: socketserver.UnixStreamServer | None = None

    def start(self) -> FakeDaemon:
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def address_string(self) -> str:
                return "unix"

            def _serve(self) -> None:
                split = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                path = unquote(split.path).removeprefix("/v1")
                status, answer = daemon._answer(Call(self.command, path, dict(parse_qsl(split.query)), body))
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = _serve

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None: ...

        self.path.unlink(missing_ok=True)
        self._server = Server(str(self.path), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.stop()
        self._folder.cleanup()

    def called(self, method: str, path: str) -> list[Call]:
        return [call for call in self.calls if call.method == method and _matches(path, call.path)]

    def _answer(self, call: Call) -> tuple[int, Any]:
        self.calls.append(call)
        try:
            for route, answer in self.routes.items():
                method, _, path = route.partition(" ")
                if method == call.method and _matches(path, call.path):
                    return 200, answer(call) if callable(answer) else answer
            raise QtandemError("bad-request", f"no route for {call.method} {call.path}")
        except QtandemError as error:
            return error.kind.http, error.to_wire()


def _matches(pattern: str, path: str) -> bool:
    wanted, parts = pattern.split("/"), path.split("/")
    return len(wanted) == len(parts) and all(want in ("*", part) for want, part in zip(wanted, parts, strict=True))


def resource(name: str = "fez", **values: Any) -> dict[str, Any]:
    """A row of /v1/resources."""
    row = {
        "name": name,
        "native": name.replace("-", "_"),
        "type": "simulator",
        "vendor": "simulator",
        "availability": "online",
        "reason": "",
        "open": True,
        "why": "open, 2 of 2 slots free",
        "slots": 2,
        "free": 2,
        "queue": 3,
        "wait_s": None,
        "age_s": 0.4,
        "qubits": 156,
        "two_qubit_error": 0.003,
        "price": None,
        "currency": "",
        "simulator": True,
        "credentials": "brokered",
    }
    return {**row, **values}


def task(state: str = "completed", **values: Any) -> dict[str, Any]:
    """An answer of /v1/tasks/ID."""
    row = {
        "id": "t-1",
        "lease": "l-1",
        "run": "local:local:1.0",
        "resource": "fez",
        "state": state,
        "reason": "",
        "shots": 100,
        "vendor_task": "v-1",
        "created_at": 1.0,
        "started_at": None,
        "finished_at": None,
        "usage_s": None,
    }
    return {**row, **values}


def lease(**values: Any) -> dict[str, Any]:
    """A row of /v1/leases."""
    row = {
        "id": "l-1",
        "owner": "run local:local:1.0",
        "resource": "fez",
        "slots": 1,
        "state": "held",
        "uid": 0,
        "created_at": 1.0,
        "changed_at": 2.0,
        "expires_at": None,
        "reason": "",
    }
    return {**row, **values}

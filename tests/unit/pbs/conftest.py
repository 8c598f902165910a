"""Hooks as they are installed, in a PBS of tests, against a daemon on a socket."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from qtandem.core.wiretext import decode_text, encode_text
from tests.fakes.pbs.hooks import RESOURCES, Site
from tests.fakes.pbs.module import FakePbs


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


@dataclass
class Asked:
    method: str
    path: str
    values: dict[str, str]


@dataclass
class TextDaemon:
    """Answers by path from `answers` (a mapping, a list of them, or a function of the call's values)."""

    path: Path
    answers: dict[str, Any] = field(default_factory=dict)
    calls: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return ""

            def log_message(self, *_: object) -> None: ...

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                asked = Asked(self.command, self.path, decode_text(self.rfile.read(length).decode()))
                daemon.calls.append(asked)
                status, body = daemon._answer(asked)
                data = encode_text(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve

        self._server = _Server(str(self.path), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)

    def asked(self, path: str) -> list[dict[str, str]]:
        return [each.values for each in self.calls if each.path == path]

    def _answer(self, asked: Asked) -> tuple[int, Mapping[str, Any]]:
        found = self.answers.get(asked.path)
        if found is None:
            return 404, {"code": "no-such-run", "message": "There is no open run"}
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if callable(found):
            found = found(asked.values)
        return found if isinstance(found, tuple) else (200, found)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qt") as folder:
        yield Path(folder)


@pytest.fixture
def daemon(short: Path) -> Iterator[TextDaemon]:
    made = TextDaemon(short / "s")
    yield made
    made.close()


@pytest.fixture
def pbs() -> FakePbs:
    return FakePbs(RESOURCES)


@pytest.fixture
def site(pbs: FakePbs, short: Path) -> Site:
    return Site(pbs, short)


@pytest.fixture
def silent(short: Path) -> Iterator[Callable[[], None]]:
    """A daemon that takes calls and never answers."""
    import socket

    server = socket.socket(socket.AF_UNIX)
    server.bind(str(short / "s"))
    server.listen(64)
    yield lambda: None
    server.close()

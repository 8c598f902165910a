"""Calls of the daemon's API over the unix socket, with a deadline for each call as a whole."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from qtandem.core.errors import QtandemError

log = logging.getLogger("qtandem.client")

DEADLINE_S = 30.0
SYSTEM_SOCKET = "/run/qtandem/qtandem.sock"
_MAX_ANSWER = 256 * 1024 * 1024


def default_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """`QTANDEM_SOCKET`, else the site's socket, else that of a daemon which the user runs."""
    if named := environ.get("QTANDEM_SOCKET"):
        return Path(named)
    site = Path(SYSTEM_SOCKET)
    own = Path(environ.get("XDG_RUNTIME_DIR") or f"/tmp/qtandem-{os.geteuid()}") / "qtandem"  # noqa: S108
    if not site.exists() and _mine(own):
        return own / "qtandem.sock"
    return site


def _mine(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(_address(self._path))
        except BaseException:
            connection.close()
            raise
        self.sock = connection


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
        self.path = default_socket() if path is None else Path(path)
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._clock = clock
        self._pause = pause

    def get(self, *parts: str, deadline_s: float | None = None, **query: str | float | None) -> object:
        """GET /v1/PARTS?QUERY; parameters that are None are left out."""
        return self.call("GET", *parts, query=query, deadline_s=deadline_s)

    def post(self, *parts: str, body: Mapping[str, object], deadline_s: float | None = None) -> object:
        return self.call("POST", *parts, body=body, deadline_s=deadline_s)

    def delete(self, *parts: str) -> object:
        return self.call("DELETE", *parts)

    def call(
        self,
        method: str,
        *parts: str,
        query: Mapping[str, str | float | None] | None = None,
        body: Mapping[str, object] | None = None,
        deadline_s: float | None = None,
    ) -> object:
        """The decoded answer: an object for JSON, text for anything else."""
        target = "/v1/" + "/".join(quote(part, safe="") for part in parts)
        given = {key: value for key, value in (query or {}).items() if value is not None}
        if given:
            target += "?" + urlencode(given)
        data = None if body is None else json.dumps(body).encode()
        return self._patiently(method, target, data, deadline_s or self._deadline_s)

    def _patiently(self, method: str, target: str, data: bytes | None, deadline_s: float) -> object:
        """A relay says `daemon-unreachable` in an answer, a missing daemon by none: both are waited out."""
        ends = self._clock() + self._patience_s
        pause = 0.05
        while True:
            try:
                return _decode(*self._exchange(method, target, data, deadline_s))
            except QtandemError as error:
                if error.code != "daemon-unreachable" or self._clock() + pause > ends:
                    raise
                log.warning("%s; trying again", error.message)
            self._pause(pause)
            pause = min(2.0, 2 * pause)

    def _exchange(self, method: str, target: str, data: bytes | None, deadline_s: float) -> tuple[int, str, bytes]:
        ends = self._clock() + deadline_s
        connection = _UnixConnection(self.path, deadline_s)
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, target, body=data, headers=headers)
            answer = connection.getresponse()
            raw = self._read(connection, answer, ends)
            return answer.status, answer.headers.get_content_type(), raw
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, deadline_s) from error
        finally:
            connection.close()

    def _read(self, connection: _UnixConnection, answer: http.client.HTTPResponse, ends: float) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            left = ends - self._clock()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left)
            chunk = answer.read1(65536)
            if not chunk:
                if answer.length:
                    raise http.client.IncompleteRead(b"", answer.length)
                return b"".join(chunks)
            size += len(chunk)
            if size > _MAX_ANSWER:
                raise http.client.HTTPException("the answer is too large")
            chunks.append(chunk)

    def _unreachable(self, error: Exception, deadline_s: float) -> QtandemError:
        if isinstance(error, TimeoutError):
            return QtandemError("daemon-unreachable", f"qtandemd did not answer within {deadline_s:g} s at {self.path}")
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return QtandemError("daemon-unreachable", f"qtandemd cannot be reached at {self.path}", cause=words)


def _address(path: Path) -> str:
    text = os.fspath(path)
    if len(os.fsencode(text)) > 107:
        raise OSError("the path is longer than the 107 bytes that a unix socket may have")
    return text


def _decode(status: int, kind: str, raw: bytes) -> object:
    if kind != "application/json":
        text = raw.decode(errors="replace")
        if status >= 400:
            raise QtandemError("internal", f"qtandemd answered {status}", cause=text[:300] or None)
        return text
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise QtandemError("internal", "qtandemd answered with something that is not JSON") from error
    if status < 400:
        return body
    inner = body.get("error", body) if isinstance(body, dict) else {}
    raise QtandemError.from_wire(inner if isinstance(inner, dict) and "code" in inner else {"message": str(body)})

"""Calls of the daemon's API as bytes: what is sent, and what an answer means. No I/O, so that any client may use it."""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from qtandem.core.errors import QtandemError

MAX_ANSWER = 256 * 1024 * 1024
Query = Mapping[str, str | float | None]


def request(method: str, parts: tuple[str, ...], query: Query | None, body: Mapping[str, object] | None) -> bytes:
    """METHOD /v1/PARTS?QUERY on a connection that ends with the answer; parameters that are None are left out."""
    target = "/v1/" + "/".join(quote(part, safe="") for part in parts)
    given = {key: value for key, value in (query or {}).items() if value is not None}
    if given:
        target += "?" + urlencode(given)
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Accept: application/json", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def answer(raw: bytes) -> object:
    """An object for JSON, text for anything else; raises the daemon's own error, http.client's for half an answer."""
    response = http.client.HTTPResponse(_Received(raw))  # type: ignore[arg-type]
    response.begin()
    return _decode(response.status, response.headers.get_content_type(), response.read())


def unreachable(error: Exception, path: Path, deadline_s: float) -> QtandemError:
    """The error for a call that got no answer."""
    if isinstance(error, TimeoutError):
        return QtandemError("daemon-unreachable", f"qtandemd did not answer within {deadline_s:g} s at {path}")
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return QtandemError("daemon-unreachable", f"qtandemd cannot be reached at {path}", cause=words)


class _Received:
    """What http.client reads an answer from, in place of a socket."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


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

"""Reads of a vendor's HTTP interface, where the qrmi library drops words, waits, or refuses a field."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call, failed, unanswered, unreadable
from qtandem.core.providers.passing import MOST_BYTES

TIMEOUT_S = 12.0


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would take the credential to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Reader:
    """GETs, and POSTs without content, below one address."""

    def __init__(self, base: str, headers: Mapping[str, str]) -> None:
        if not base.startswith(("http://", "https://")):
            raise QtandemError("bad-config", f"{base!r} is not an address of HTTP")
        self._base = base.rstrip("/")
        self._headers = {"Accept": "application/json", **headers}
        self._opener: OpenerDirector = build_opener(_NoRedirects)

    def get(self, call: Call, path: str) -> Any:
        """The JSON that is there; an answer that is none is `vendor-error`."""
        content = self._send(call, "GET", path)
        try:
            return json.loads(content)
        except ValueError as error:
            raise unreadable(call, content) from error

    def object(self, call: Call, path: str) -> Mapping[str, Any]:
        found = self.get(call, path)
        if not isinstance(found, dict):
            raise unreadable(call, json.dumps(found))
        return found

    def post(self, call: Call, path: str) -> None:
        self._send(call, "POST", path)

    def exchange(
        self, call: Call, method: str, path: str, body: bytes | None = None, kind: str = ""
    ) -> tuple[int, str, Mapping[str, str]]:
        """Status, text and headers of any answer but a redirection; raises for none, and for one that is too long."""
        headers = dict(self.headers()) | ({"Content-Type": kind} if body is not None else {})
        request = Request(self._base + path, data=body, headers=headers, method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return answer.status, _bounded(call, answer.read(MOST_BYTES + 1)), dict(answer.headers)
        except HTTPError as error:
            with error:
                if 300 <= error.code < 400:
                    raise unreadable(call, "a redirection") from error
                return error.code, _bounded(call, error.read(MOST_BYTES + 1)), dict(error.headers)
        except (URLError, HTTPException, OSError) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise unanswered(call, error, timeout=isinstance(why, TimeoutError)) from error

    def headers(self) -> Mapping[str, str]:
        """What goes with every request, the credential among it."""
        return self._headers

    def secrets(self) -> tuple[str, ...]:
        """The credential, as it is sent and, for a user and password, as it is written."""
        sent = self._headers.get("Authorization", "").partition(" ")[2]
        return (sent, _password(sent)) if sent else ()

    def _send(self, call: Call, method: str, path: str) -> bytes:
        body = b"" if method == "POST" else None
        request = Request(self._base + path, data=body, headers=dict(self.headers()), method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            with error:
                raise failed(call, error.code, error.read(), dict(error.headers)) from error
        except (URLError, HTTPException, OSError) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise unanswered(call, error, timeout=isinstance(why, TimeoutError)) from error


def _bounded(call: Call, content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise unreadable(call, "too much")
    return content.decode("utf-8", "replace")


def _password(basic: str) -> str:
    """The password in a credential of the form that HTTP calls basic; empty where it is none."""
    try:
        return base64.b64decode(basic, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""

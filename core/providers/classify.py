"""Whose fault a vendor's failure is: the one place that turns HTTP answers and transport errors into our codes.

| the vendor                                   | code            | class     | tried again |
|----------------------------------------------|-----------------|-----------|-------------|
| 400, 413, 415, 422 to a submission           | bad-payload     | user      | no          |
| 400, 415, 422 to any other call              | internal        | bug       | no          |
| 401                                          | bad-credentials | site      | no          |
| 402, 403                                     | policy          | policy    | no          |
| 404, 410                                     | what the caller says is missing | user | no |
| 405, 501                                     | unsupported     | user      | no          |
| 409                                          | what the caller says conflicts  | policy | no |
| 423, 425, 429                                | not-available   | transient | yes         |
| 408, 504, no answer in time                  | vendor-timeout  | outage    | yes         |
| 5xx, no connection, an answer that is broken | vendor-error    | outage    | yes         |

A vendor's own error code, where it has a meaning of its own, goes before its status (`Meaning`). The vendor's own
words are always the `cause`. `bad-credentials` and `policy` on a poll make the fact `forbidden`, never `offline`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from qtandem.core.errors import QtandemError

WORDS_KEPT = 400
MAX_RETRY_AFTER_S = 3600.0
_LOCKED = 423
_TRANSIENT = {_LOCKED, 425, 429}
_TIMEOUT = {408, 504}
_TAG = re.compile(r"<[^>]*>")
_XML_CODE = re.compile(r"<Code>([^<]*)</Code>")
_XML_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_HTML = re.compile(r"^\s*(<!doctype html|<html)", re.IGNORECASE)


class Class(StrEnum):
    """What kind of failure a code is; only transient failures and outages are tried again."""

    USER = "user"
    SITE = "site"
    POLICY = "policy"
    TRANSIENT = "transient"
    OUTAGE = "outage"
    BUG = "bug"


CLASSES: Mapping[str, Class] = {
    "bad-payload": Class.USER,
    "no-such-run": Class.USER,
    "unsupported": Class.USER,
    "no-lease": Class.USER,
    "bad-credentials": Class.SITE,
    "bad-config": Class.SITE,
    "policy": Class.POLICY,
    "not-available": Class.TRANSIENT,
    "vendor-timeout": Class.OUTAGE,
    "vendor-error": Class.OUTAGE,
    "internal": Class.BUG,
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one of a vendor's own error codes means to us."""

    code: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked when it failed. `what` completes "VENDOR refused to ..." as in `start a task`.

    `submits`: the content of the call is the user's. `missing` and `conflict` are our codes for 404 and 409.
    `meanings` are the vendor's own error codes that say more than the status.
    """

    vendor: str
    what: str
    submits: bool = False
    missing: str = "no-such-run"
    conflict: str = "policy"
    meanings: Mapping[str, Meaning] = field(default_factory=dict)


def failed(
    call: Call,
    status: int,
    body: bytes | str = b"",
    headers: Mapping[str, str] | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> QtandemError:
    """The error for an answer whose status says that the call failed."""
    vendor_code, words = vendor_words(body)
    meaning = call.meanings.get(vendor_code) or Meaning(_code(call, status))
    wait = retry_after(headers or {}, clock) if status in _TRANSIENT or status >= 500 else None
    how = "is reserved by somebody else and did not" if status == _LOCKED else "did not"
    return QtandemError(
        meaning.code,
        f"{call.vendor} {how} {call.what} (HTTP {status})",
        remedy=meaning.remedy,
        cause=words or None,
        retry_after=wait,
    )


def unanswered(call: Call, error: Exception, *, timeout: bool) -> QtandemError:
    """The error for a call whose answer never came; whether it was carried out is not known."""
    why = _clean(str(error)) or type(error).__name__
    if timeout:
        return QtandemError("vendor-timeout", f"{call.vendor} did not answer in time to {call.what}", cause=why)
    return QtandemError("vendor-error", f"{call.vendor} cannot be reached to {call.what}", cause=why)


def unreadable(call: Call, body: bytes | str) -> QtandemError:
    """The error for an answer that is not what the vendor's interface promises."""
    words = _clean(_text(body)) or "an empty answer"
    return QtandemError("vendor-error", f"{call.vendor}'s answer cannot be read ({call.what})", cause=words)


def vendor_words(body: bytes | str) -> tuple[str, str]:
    """The vendor's own error code ("" if it has none) and words, from JSON of several forms, XML, HTML or text."""
    text = _text(body)
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict):
        code, message = _from_json(document)
        return code, _clean(f"{message} [{code}]" if code and message else message or text)
    found = _XML_MESSAGE.search(text)
    if found and not _HTML.match(text):
        named = _XML_CODE.search(text)
        code = named[1] if named else ""
        return code, _clean(f"{found[1]} [{code}]" if code else found[1])
    return "", _clean(text)


def retry_after(headers: Mapping[str, str], clock: Callable[[], float] = time.time) -> float | None:
    """Seconds that the vendor asks to wait (a number or a date), within bounds; None if it does not say.

    A date is compared with the vendor's own `Date`, so that clocks need not agree.
    """
    lower = {key.lower(): value for key, value in headers.items()}
    value = lower.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        until, now = _date(value), _date(lower.get("date", ""))
        if until is None:
            return None
        seconds = until - (clock() if now is None else now)
    if seconds != seconds:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _code(call: Call, status: int) -> str:
    if status in (400, 413, 415, 422):
        return "bad-payload" if call.submits else ("too-large" if status == 413 else "internal")
    if status in _TRANSIENT:
        return "not-available"
    if status in _TIMEOUT:
        return "vendor-timeout"
    fixed = {401: "bad-credentials", 402: "policy", 403: "policy", 405: "unsupported", 501: "unsupported"}
    fixed |= {404: call.missing, 410: call.missing, 409: call.conflict}
    return fixed.get(status, "vendor-error")


def _from_json(document: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message where vendors put them: `errors[0]`, `error`, or the document itself."""
    errors = document.get("errors")
    inner = errors[0] if isinstance(errors, list) and errors else document.get("error", document)
    if isinstance(inner, str):
        inner = {"message": inner, "code": document.get("code")}
    if not isinstance(inner, dict):
        return "", ""
    code = _first(inner, "code", "errorCode", "error_code", "__type")
    message = _first(inner, "message", "errorMessage", "error_description", "detail", "title", "reason")
    solution = _first(inner, "solution")
    return code, f"{message} {solution}".strip()


def _first(row: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError):
        return None


def _text(body: bytes | str) -> str:
    return body.decode(errors="replace") if isinstance(body, bytes) else body


def _clean(text: str) -> str:
    """One line without markup and control characters, of bounded length."""
    plain = " ".join(_TAG.sub(" ", text).split())
    plain = "".join(each for each in plain if each.isprintable())
    return plain if len(plain) <= WORDS_KEPT else plain[: WORDS_KEPT - 1] + "…"

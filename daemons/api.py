"""What all calls of the API have in common: who calls, how bodies are read, how answers and errors are written."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from qtandem.core.errors import QtandemError
from qtandem.core.wire import JSON, MAX_BODY, TEXT, Answer, Call, decode_text, encode_text
from qtandem.daemons.authority import Caller
from qtandem.daemons.context import Context

CONTEXT: web.AppKey[Context] = web.AppKey("context", Context)
CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)

# A body must arrive within this time, so that slow clients do not pile up.
BODY_S = 30.0
MAX_DEPTH_ERRORS = 3

M = TypeVar("M", bound=Call)


async def read(request: web.Request, model: type[M]) -> M:
    """The call in the body, JSON or text; raises `bad-request` with the field, or `too-large`."""
    raw = await _body(request)
    if request.content_type == TEXT:
        values: Any = {key: value for key, value in decode_text(_utf8(raw)).items() if value != ""}
    else:
        try:
            values = json.loads(raw or b"{}")
        except (ValueError, RecursionError):
            raise QtandemError("bad-request", "The body is not JSON", remedy="Send a JSON object.") from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise QtandemError("bad-request", "; ".join(_faults(error)), remedy="See the fields of this call.") from None


def reply(request: web.Request, answer: Answer | Mapping[str, Any], status: int = 200) -> web.Response:
    """The answer in the form that the caller speaks: text for a caller that sent or accepts only text."""
    if wants_text(request):
        values = answer.model_dump() if isinstance(answer, BaseModel) else answer
        return web.Response(text=encode_text(values), content_type=TEXT, status=status)
    body = answer.model_dump_json() if isinstance(answer, BaseModel) else json.dumps(answer)
    return web.Response(body=body.encode(), content_type=JSON, status=status)


def rows(key: str, answers: Iterable[Answer]) -> bytes:
    """A list of answers under one key, as JSON."""
    return b'{"%s":[%s]}' % (key.encode(), b",".join(answer.model_dump_json().encode() for answer in answers))


def raw_json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type=JSON)


def failure(request: web.Request, error: QtandemError) -> web.Response:
    response = reply(request, error.to_wire(), error.kind.http)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


def wants_text(request: web.Request) -> bool:
    accept = request.headers.get("Accept", "*/*")
    if JSON in accept:
        return False
    return accept.startswith(TEXT) or (request.content_type == TEXT and request.body_exists)


def number(request: web.Request, name: str, default: float, most: float) -> float:
    """A query parameter between 0 and `most`; raises `bad-request`."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if math.isnan(value) or value < 0:
        raise QtandemError("bad-request", f"{name}={text[:40]!r} is not a number of seconds")
    return min(value, most)


async def _body(request: web.Request) -> bytes:
    if request.content_length is not None and request.content_length > MAX_BODY:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except TimeoutError:
        raise QtandemError("bad-request", f"The body did not arrive within {BODY_S:.0f} s") from None


def _too_large() -> QtandemError:
    return QtandemError("too-large", f"The body is over {MAX_BODY // 2**20} MiB")


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise QtandemError("bad-request", "The body is not UTF-8") from None


def _faults(error: ValidationError) -> list[str]:
    """The first faults, without the values: these may be somebody's circuit."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details[:MAX_DEPTH_ERRORS]]
    return shown if len(details) <= MAX_DEPTH_ERRORS else [*shown, f"and {len(details) - MAX_DEPTH_ERRORS} more"]

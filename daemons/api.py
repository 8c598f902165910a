"""What all calls of the API have in common: who calls, how bodies are read, how answers and errors are written."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from aiohttp import web
from pydantic import BaseModel, ValidationError

from qtandem.core.errors import QtandemError
from qtandem.core.wire import JSON, TEXT, Answer, Call
from qtandem.core.wiretext import decode_text, encode_text
from qtandem.daemons.authority import Caller
from qtandem.daemons.context import Context

CONTEXT: web.AppKey[Context] = web.AppKey("context", Context)
CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)

# A body must arrive within this time, so that slow clients do not pile up.
BODY_S = 30.0
# All calls but those with a payload are small; a body over this is read and parsed alone among those of its uid.
SMALL_BODY = 64 * 1024
MAX_DEPTH_ERRORS = 3
_large: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()

M = TypeVar("M", bound=Call)


async def read(request: web.Request, model: type[M], most: int = SMALL_BODY) -> M:
    """The call in the body, JSON or text; raises `bad-request` with the field, or `too-large`."""
    if (request.content_length or 0) > most:
        raise _too_large(most)
    if most <= SMALL_BODY or (request.content_length or most) <= SMALL_BODY:
        return _parsed(request, await _body(request, most), model)
    async with _large.setdefault((request[CALLER].uid, request[CALLER].host), asyncio.Lock()):
        raw = await _body(request, most)
        began = perf_counter()
        call = _parsed(request, raw, model)
        # Nothing else runs while a large body is parsed: the others get as long before the next one of this uid.
        await asyncio.sleep(perf_counter() - began)
        return call


def _parsed(request: web.Request, raw: bytes, model: type[M]) -> M:
    try:
        if request.content_type != TEXT:
            return model.model_validate_json(raw or b"{}")
        return model.model_validate({key: value for key, value in decode_text(_utf8(raw)).items() if value != ""})
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
    """An answer that is JSON already."""
    return web.Response(body=body, content_type=JSON)


async def streamed(request: web.Request, pieces: AsyncIterator[bytes], kind: str) -> web.StreamResponse:
    """An answer of unknown length, sent as its caller takes it. Half of it never looks like a whole one."""
    begun = b"".join([await anext(pieces), await anext(pieces, b"")])
    more = await anext(pieces, None)
    if more is None:
        return web.Response(body=begun, content_type=kind)
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    try:
        await response.write(begun)
        await response.write(more)
        async for piece in pieces:
            await response.write(piece)
    except (OSError, UnicodeDecodeError):
        if request.transport is not None:
            request.transport.close()
        raise ConnectionAbortedError("an answer was broken off") from None
    await response.write_eof()
    return response


def failure(request: web.Request, error: QtandemError) -> web.Response:
    """The answer for an error, with its status and `Retry-After`."""
    response = reply(request, error.to_wire(), error.kind.http)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


def wants_text(request: web.Request) -> bool:
    """Whether the caller takes `text/plain`: by Accept, else by the form of its call."""
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


async def _body(request: web.Request, most: int) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            # A body without a length may be longer than it should be.
            pieces, left = [], most
            while piece := await request.content.readany():
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    raise _too_large(most)
            return b"".join(pieces)
    except TimeoutError:
        raise QtandemError("bad-request", f"The body did not arrive within {BODY_S:.0f} s") from None


def _too_large(most: int) -> QtandemError:
    return QtandemError("too-large", f"The body is over {most // 1024} KiB")


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise QtandemError("bad-request", "The body is not UTF-8") from None


def _faults(error: ValidationError) -> list[str]:
    """The first faults, without the values: these may be somebody's circuit."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{'.'.join(map(str, detail['loc'])) or 'the body'}: {detail['msg']}" for detail in details[:MAX_DEPTH_ERRORS]
    ]
    return shown if len(details) <= MAX_DEPTH_ERRORS else [*shown, f"and {len(details) - MAX_DEPTH_ERRORS} more"]

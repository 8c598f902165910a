"""The credential-injecting proxy: programs that speak a vendor's own protocol execute without a vendor's credential.

Their endpoint variables name a port of the loopback interface, their key variable a token of the lease. The token is
good for one lease's resource, on the nodes of its run, until the lease ends. Here calls are authenticated and bounded;
what of a vendor's interface a run may ask for, and the credential, are the provider's (`forward`), in a worker.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.model import Lease
from qtandem.core.resources import Resource
from qtandem.core.runs import RunId
from qtandem.core.wire import MAX_BODY
from qtandem.daemons.authority import Caller, Event
from qtandem.daemons.context import Context
from qtandem.daemons.drive import poll_pause_s
from qtandem.daemons.fronts import FORM_BYTES, FRONTS, dressed
from qtandem.daemons.logs import log
from qtandem.daemons.loopback import NOBODY, PATH, plain

__all__ = ["PATH", "Proxy", "Tokens", "application"]

_TOKEN, _LABEL = "qt-", "proxy token"
AT_ONCE = 8
BODY_S = 30.0
# Waits that a program asks its vendor for are kept here, by looking again.
HOLD_S = 25.0
MOST_QUERIES = 50
_KINDS = ("text/plain", "text/csv", "application/json")


class Tokens:
    """Tokens of leases, sealed by the master key: none is stored, and none can be made up."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def of(self, lease: Lease) -> str:
        sealed = self._cipher.seal(lease.id, _LABEL)
        return _TOKEN + base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def lease(self, token: str) -> str | None:
        """The id of the lease whose token this is; None for anything else."""
        if not token.startswith(_TOKEN) or len(token) > 256:
            return None
        text = token.removeprefix(_TOKEN)
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            return self._cipher.unseal(sealed, _LABEL)
        except (binascii.Error, ValueError, QtandemError):
            return None


class Proxy:
    """Answers for one daemon."""

    def __init__(self, context: Context, cipher: Cipher) -> None:
        self._context, self._tokens = context, Tokens(cipher)
        self._under_way: Counter[str] = Counter()

    def variables(self, resource: Resource, lease: Lease) -> dict[str, str]:
        """What leads a run's programs here, without the resource's name before it; none where that cannot work."""
        address, front = self._context.settings.daemon.proxy, FRONTS.get(resource.type)
        if not address or front is None or resource.credentials == "direct":
            return {}
        base = f"http://{address}/{resource.native}"
        return front.variables(resource, lease, base, self._tokens.of(lease))

    async def handle(self, request: web.Request, caller: Caller) -> web.Response:
        """One call; every refusal has the vendors' own forms, so that their clients show the words."""
        try:
            return await self._answer(request, caller)
        except QtandemError as error:
            log("proxy").info("refused", code=error.code, host=caller.host, method=request.method)
            return _refusal(error)

    async def _answer(self, request: web.Request, caller: Caller) -> web.Response:
        name, tail = request.match_info["name"], request.match_info["tail"]
        _plain(request)
        resource = self._context.catalog.find(name)
        front = FRONTS.get(resource.type) if resource is not None else None
        if resource is None or front is None or resource.native != name or resource.credentials == "direct":
            raise _unknown()
        free = front.public(request.method, tail, self._seen(resource))
        if free is not None:
            return _json(200, free)
        if front.key(request.method, tail, "") is not None:
            # Small, and read before anything is known of who calls: the token is in it.
            key = front.key(request.method, tail, await _body(request, FORM_BYTES))
            self._lease(key or "", resource, caller)
            return _json(200, dressed(key or "", int(self._context.clock())))
        path, token = front.path(tail), front.token(request.headers.get("Authorization", ""))
        lease = self._lease(token, resource, caller)
        if self._under_way[lease.id] >= AT_ONCE:
            raise QtandemError("too-many-calls", f"The lease has {AT_ONCE} calls under way", retry_after=1.0)
        self._under_way[lease.id] += 1
        try:
            # Read only now: a stranger's body costs nothing.
            asked = _asked(request, name, path, await _body(request, MAX_BODY))
            return await self._pass_on(asked, lease, lambda: self._lease(token, resource, caller))
        finally:
            self._under_way[lease.id] -= 1
            if not self._under_way[lease.id]:
                del self._under_way[lease.id]

    async def _pass_on(self, asked: Mapping[str, object], lease: Lease, still: Callable[[], object]) -> web.Response:
        """The vendor's answer, as long as the lease is `still` the token's."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            call = self._context.calls.call
            answer = await call(lease.resource, "forward", lease.token, asked, purpose="execute", uid=lease.uid)
            if not isinstance(answer, dict):
                raise QtandemError("vendor-error", "The provider's answer cannot be read")
            took = loop.time() - began
            left = min(float(answer["hold_s"]), HOLD_S) - took
            if left <= 0:
                break
            await asyncio.sleep(min(left, max(poll_pause_s(took), 0.1)))
            still()
        log("proxy").debug("passed on", lease=lease.id, method=asked["method"], path=asked["path"])
        kind = answer["type"] if answer["type"] in _KINDS else "application/json"
        response = web.Response(status=int(answer["status"]), text=str(answer["body"]) or None, content_type=kind)
        if str(answer["retry_after"]).isdigit():
            response.headers["Retry-After"] = str(answer["retry_after"])
        return response

    def _lease(self, token: str, resource: Resource, caller: Caller) -> Lease:
        """The held lease of a token, on this resource and from a node of its run; the answer never says which fails."""
        context, id = self._context, self._tokens.lease(token)
        known = context.leases.lease(id) if id is not None else None
        if known is None or known.resource != resource.name or known.run is None:
            raise _unknown()
        try:
            lease = context.leases.usable(known.id, known.uid)
            nodes = _nodes(context, known.run)
            owner = Caller(known.uid, caller.host, caller.local)
            context.authority.require(Event.TASK, owner, owner=known.uid, nodes=nodes)
        except QtandemError:
            raise _unknown() from None
        if lease.token is None:
            raise _unknown()
        return lease

    def _seen(self, resource: Resource) -> Availability:
        fact = self._context.observer.facts.get(resource.name)
        return fact.seen_as(self._context.clock()) if fact is not None else Availability.UNKNOWN


def application(context: Context) -> web.Application:
    """What the daemon's own host serves on its loopback port."""
    app = web.Application(client_max_size=MAX_BODY)
    host = socket.gethostname()

    async def handle(request: web.Request) -> web.Response:
        return await context.proxy.handle(request, Caller(NOBODY, host, local=True))

    app.router.add_route("*", "/{name}/{tail:.+}", handle)
    return app


def _plain(request: web.Request) -> None:
    """As a relay has looked at it, on the path below the proxy's own."""
    plain(request, request.raw_path.removeprefix(PATH))
    if len(request.query) > MOST_QUERIES:
        raise QtandemError("bad-request", f"A call has at most {MOST_QUERIES} parameters")


def _asked(request: web.Request, name: str, path: str, body: str) -> dict[str, object]:
    query = {key: request.query.getall(key) for key in request.query}
    kind = request.headers.get("Content-Type", "")
    return {"method": request.method, "path": path, "query": query, "body": body, "type": kind, "name": name}


def _nodes(context: Context, run: RunId) -> tuple[str, ...]:
    found = context.leases.run(run)
    return found.nodes if found else ()


async def _body(request: web.Request, most: int) -> str:
    """The whole body, never more than `most` of it in memory."""
    if (request.content_length or 0) > most:
        raise QtandemError("too-large", f"The body is over {most} bytes")
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.content.iter_any():
                size += len(part)
                if size > most:
                    raise QtandemError("too-large", f"The body is over {most} bytes")
                parts.append(part)
        return b"".join(parts).decode()
    except TimeoutError:
        raise QtandemError("bad-request", f"The body did not arrive within {BODY_S:.0f} s") from None
    except UnicodeDecodeError:
        raise QtandemError("bad-request", "The body is not UTF-8") from None


def _refusal(error: QtandemError) -> web.Response:
    status = 401 if error.code == "not-authorised" else error.kind.http
    words = f"{error.message} {error.remedy or ''}".strip()
    told = {"code": error.code, "message": error.message, "solution": error.remedy}
    body = {"errors": [told], "code": error.code, "error_code": error.code, "message": words, "detail": words}
    response = _json(status, body | {"status": "error", "request_id": "qtandem"})
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


def _json(status: int, body: Mapping[str, Any]) -> web.Response:
    return web.Response(status=status, text=json.dumps(body), content_type="application/json")


def _unknown() -> QtandemError:
    return QtandemError(
        "not-authorised", "The token is none of a lease that is held here", remedy="Run inside the job."
    )

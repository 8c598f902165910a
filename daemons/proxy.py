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
import re
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.model import Lease
from qtandem.core.resources import Resource
from qtandem.core.runs import RunId
from qtandem.core.wire import MAX_BODY
from qtandem.daemons.authority import Caller, Event
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log

# Vendors' types that programs can be led through here, and the prefix of their keys.
PREFIXES: Mapping[str, str] = {
    "ibm-quantum-compute-service": "QRMI_IBM_QCS_",
    "qiskit-runtime-service": "QRMI_IBM_QRS_",
}
# Settings that a program may see as they are.
_OPEN = ("SESSION_MODE", "SESSION_MAX_TTL", "TIMEOUT_SECONDS")
# In place of the site's: libraries want one, and only send it as a header.
CRN = "crn:v1:bluemix:public:quantum-computing:us-east:a/qtandem:qtandem::"
# Nobody in particular: over TCP the kernel does not say who calls, the token does.
NOBODY = 65534
PATH = "/v1/proxy"
_TOKEN, _LABEL = "qt-", "proxy token"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,38}")
_TAIL = re.compile(r"[A-Za-z0-9_\-]{1,100}(/[A-Za-z0-9_\-.]{1,100}){0,4}")
AT_ONCE = 8
BODY_S = 30.0
FORM_BYTES = 4096
TOKEN_LIFE_S = 3600
MOST_QUERIES = 50


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
        address, prefix = self._context.settings.daemon.proxy, PREFIXES.get(resource.type)
        if not address or prefix is None or resource.credentials == "direct" or lease.token is None:
            return {}
        base = f"http://{address}/{resource.native}"
        shown = {prefix + key: resource.settings[prefix + key] for key in _OPEN if prefix + key in resource.settings}
        return shown | {
            f"{prefix}ENDPOINT": f"{base}/v1",
            f"{prefix}IAM_ENDPOINT": base,
            f"{prefix}IAM_APIKEY": self._tokens.of(lease),
            f"{prefix}SERVICE_CRN": CRN,
            # As in direct mode: the program names the session itself.
            "QRMI_JOB_ACQUISITION_TOKEN": lease.token,
        }

    async def handle(self, request: web.Request, caller: Caller) -> web.Response:
        """One call; every refusal has the vendor's own form, so that its client shows the words."""
        try:
            return await self._answer(request, caller)
        except QtandemError as error:
            log("proxy").info("refused", code=error.code, host=caller.host, method=request.method)
            status = 401 if error.code == "not-authorised" else error.kind.http
            return _json(status, {"errors": [{"code": error.code, "message": error.message, "solution": error.remedy}]})

    async def _answer(self, request: web.Request, caller: Caller) -> web.Response:
        name, tail = request.match_info["name"], request.match_info["tail"]
        if "%" in request.rel_url.raw_path or not _NAME.fullmatch(name) or not _TAIL.fullmatch(tail):
            raise QtandemError("bad-request", "The path is none of the vendor's")
        if (request.method, tail) == ("POST", "identity/token"):
            return self._identity(await _body(request, FORM_BYTES), name, caller)
        head, _, path = tail.partition("/")
        if head != "v1" or not path:
            raise QtandemError("not-allowed", "Only version 1 of the vendor's interface is passed on")
        lease = self._lease(_bearer(request), name, caller)
        if self._under_way[lease.id] >= AT_ONCE:
            raise QtandemError("too-many-calls", f"The lease has {AT_ONCE} calls under way", retry_after=1.0)
        self._under_way[lease.id] += 1
        try:
            # Read only now: a stranger's body costs nothing.
            return await self._pass_on(request, lease, path, await _body(request, MAX_BODY))
        finally:
            self._under_way[lease.id] -= 1
            if not self._under_way[lease.id]:
                del self._under_way[lease.id]

    async def _pass_on(self, request: web.Request, lease: Lease, path: str, body: str) -> web.Response:
        if len(request.query) > MOST_QUERIES:
            raise QtandemError("bad-request", f"A call has at most {MOST_QUERIES} parameters")
        query = {key: request.query.getall(key) for key in request.query}
        call = (lease.token, request.method, path, query, body)
        answer = await self._context.calls.call(lease.resource, "forward", *call, purpose="execute", uid=lease.uid)
        if not isinstance(answer, dict):
            raise QtandemError("vendor-error", "The provider's answer cannot be read")
        log("proxy").debug("passed on", lease=lease.id, method=request.method, path=path, status=answer["status"])
        kind = "text/plain" if answer["type"] == "text/plain" else "application/json"
        response = web.Response(status=int(answer["status"]), text=str(answer["body"]) or None, content_type=kind)
        if str(answer["retry_after"]).isdigit():
            response.headers["Retry-After"] = str(answer["retry_after"])
        return response

    def _identity(self, body: str, name: str, caller: Caller) -> web.Response:
        """In place of the vendor's token service: the lease's token, dressed as an access token."""
        try:
            keys = parse_qs(body, max_num_fields=10).get("apikey", [""])
        except ValueError:
            keys = [""]
        self._lease(keys[0], name, caller)
        now = int(self._context.clock())
        claims = {"iat": now, "exp": now + TOKEN_LIFE_S, "qtandem": keys[0]}
        access = ".".join(_b64(part) for part in ({"alg": "none", "typ": "JWT"}, claims, {}))
        answer = {"access_token": access, "refresh_token": "not_supported", "token_type": "Bearer"}
        return _json(
            200, answer | {"expires_in": TOKEN_LIFE_S, "expiration": now + TOKEN_LIFE_S, "scope": "ibm openid"}
        )

    def _lease(self, token: str, name: str, caller: Caller) -> Lease:
        """The held lease of a token, on this resource and from a node of its run; the answer never says which fails."""
        context, id = self._context, self._tokens.lease(token)
        known = context.leases.lease(id) if id is not None else None
        resource = context.catalog.find(name)
        if known is None or resource is None or known.resource != resource.name or resource.type not in PREFIXES:
            raise _unknown()
        if resource.credentials == "direct" or known.run is None:
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


def application(context: Context) -> web.Application:
    """What the daemon's own host serves on its loopback port."""
    app = web.Application(client_max_size=MAX_BODY)
    host = socket.gethostname()

    async def handle(request: web.Request) -> web.Response:
        return await context.proxy.handle(request, Caller(NOBODY, host, local=True))

    app.router.add_route("*", "/{name}/{tail:.+}", handle)
    return app


def loopback(address: str) -> tuple[str, int]:
    """Host and port of a loopback address; raises `bad-config` for any other, which would let others in."""
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not port.isdigit() or not 0 < int(port) < 65536:
        raise QtandemError(
            "bad-config", f"The proxy's address {address!r} is no port of 127.0.0.1", remedy="Write 127.0.0.1:748."
        )
    return "127.0.0.1", int(port)


def _nodes(context: Context, run: RunId) -> tuple[str, ...]:
    found = context.leases.run(run)
    return found.nodes if found else ()


async def _body(request: web.Request, most: int) -> str:
    """The whole body, never more than `most` of it in memory."""
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


def _bearer(request: web.Request) -> str:
    """The lease's token in an access token of ours."""
    kind, _, access = request.headers.get("Authorization", "").partition(" ")
    parts = access.split(".")
    if kind.lower() != "bearer" or len(parts) != 3 or len(access) > 2048:
        return ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return ""
    token = claims.get("qtandem") if isinstance(claims, dict) else None
    return token if isinstance(token, str) else ""


def _b64(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _json(status: int, body: Mapping[str, Any]) -> web.Response:
    return web.Response(status=status, text=json.dumps(body), content_type="application/json")


def _unknown() -> QtandemError:
    return QtandemError(
        "not-authorised", "The token is none of a lease that is held here", remedy="Run inside the job."
    )

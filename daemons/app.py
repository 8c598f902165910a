"""The HTTP application: routes, who calls, errors in the caller's form, and limits on what a caller may cost."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.wire import MAX_BODY
from qtandem.daemons import api_credentials, api_lifecycle, api_plan, api_read, api_tasks, proxy, tls
from qtandem.daemons.api import CALLER, CONTEXT, failure
from qtandem.daemons.authority import ROOT, Caller
from qtandem.daemons.context import Context
from qtandem.daemons.explain import Explainer
from qtandem.daemons.logs import log
from qtandem.daemons.metrics import CONTENT_TYPE
from qtandem.daemons.nodes import Nodes
from qtandem.daemons.sockets import peer_uid
from qtandem.daemons.status import page

# Calls of one uid of one host that may be under way; hooks speak as root or the service user.
CALLS_PER_UID, CONNECTIONS_PER_UID = 128, 512
# Connections of one relay, and of all who are no relay: they enrol, or read the public page.
PER_NODE, STRANGERS = 4096, 256
IDLE_S = 30.0
# Calls that fail alike get a line in the log so often: anybody can make calls that fail, such as reports of no start.
LINE_EACH_S = 1.0
HEADER_BYTES, HEADERS = 8190, 64

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[web.RouteDef, ...] = (
    web.post("/v1/submit", api_lifecycle.submit),
    web.post("/v1/reserve", api_lifecycle.reserve),
    web.post("/v1/start", api_lifecycle.start),
    web.post("/v1/end", api_lifecycle.end),
    web.get("/v1/runs/{run}/environment", api_lifecycle.environment),
    web.get("/v1/resources", api_read.resources),
    web.get("/v1/resources/{name}/target", api_read.target),
    web.get("/v1/resources/{name}/metadata", api_read.metadata),
    web.get("/v1/discovered", api_read.discovered),
    web.get("/v1/facts", api_read.facts),
    web.get("/v1/leases", api_read.leases),
    web.get("/v1/explain/{job}", api_read.explain),
    web.get("/v1/usage", api_read.usage),
    web.get("/v1/healthz", api_read.healthz),
    web.get("/v1/names", api_read.names),
    web.post("/v1/tasks", api_tasks.start),
    web.get("/v1/tasks", api_tasks.listing),
    web.get("/v1/tasks/{id}", api_tasks.show),
    web.get("/v1/tasks/{id}/result", api_tasks.result),
    web.get("/v1/tasks/{id}/logs", api_tasks.logs),
    web.post("/v1/tasks/{id}/stop", api_tasks.stop),
    web.post("/v1/claims", api_tasks.claim),
    web.get("/v1/claims", api_tasks.claims),
    web.delete("/v1/claims/{id}", api_tasks.end_claim),
    web.get("/v1/claims/{id}/environment", api_tasks.claim_env),
    web.get("/v1/plan", api_plan.last),
    web.post("/v1/plan", api_plan.plan),
    web.post("/v1/credentials", api_credentials.add),
    web.get("/v1/credentials", api_credentials.listing),
    web.delete("/v1/credentials/{name}", api_credentials.remove),
)


def build(context: Context, nodes: Nodes | None = None) -> web.Application:
    """The application of the socket and, with `nodes`, of the relays' listener."""
    app = web.Application(middlewares=[_outermost(context), _identity(context, nodes)], client_max_size=MAX_BODY)
    app[CONTEXT] = context
    app[api_read.PAGES] = pages = api_read.Pages(context)
    app[api_read.EXPLAINER] = Explainer(context)
    app[api_read.DESCRIPTIONS] = api_read.Descriptions(context)
    app.add_routes(ROUTES)
    app.router.add_route("*", f"{proxy.PATH}/{{name}}/{{tail:.+}}", _proxied)
    app.cleanup_ctx.append(_forgetting(context, pages))
    return app


def runner(app: web.Application, grace_s: float) -> web.AppRunner:
    """A runner that closes connections which send no whole request in time, and bounds headers."""
    return web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=IDLE_S,
        max_line_size=HEADER_BYTES,
        max_field_size=HEADER_BYTES,
        max_headers=HEADERS,
        shutdown_timeout=grace_s,
    )


def bound_connections(
    server: web.Server, per_uid: int = CONNECTIONS_PER_UID, per_node: int = PER_NODE, strangers: int = STRANGERS
) -> None:
    """Drop connections of a local uid that has `per_uid` open already, root's excepted, so that it starves nobody.

    So too of a node with `per_node`, and of all who show no certificate together: our descriptors are for jobs.
    """
    counts: Counter[object] = Counter()
    owners: dict[object, object] = {}
    made, lost = server.connection_made, server.connection_lost

    def whose(transport: asyncio.Transport) -> tuple[object, int]:
        uid = peer_uid(transport)
        if uid is not None:
            return uid, per_uid
        certificate = tls.shown(transport)
        return ("a stranger", strangers) if certificate is None else (certificate, per_node)

    def connection_made(handler: Any, transport: asyncio.Transport) -> None:
        made(handler, transport)
        owner, most = whose(transport)
        if owner == ROOT:
            return
        owners[handler] = owner
        counts[owner] += 1
        if counts[owner] > most:
            transport.abort()

    def connection_lost(handler: Any, exc: BaseException | None = None) -> None:
        lost(handler, exc)
        owner = owners.pop(handler, None)
        if owner is not None:
            counts[owner] -= 1
            if not counts[owner]:
                del counts[owner]

    # aiohttp's runner makes its server by itself; these two are its only places that know of connections.
    server.connection_made, server.connection_lost = connection_made, connection_lost  # type: ignore[method-assign]


def public(context: Context) -> web.Application:
    """What is served on the metrics port: the status page and the metrics, for anybody who can reach it."""

    pages = api_read.Pages(context)

    async def status(_request: web.Request) -> web.Response:
        body = pages.get("status", lambda context: page(context).encode())
        return web.Response(body=body, content_type="text/html", headers=_SAFE)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await context.metrics.text(context), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/", status), web.get("/metrics", metrics)])
    return app


_SAFE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "X-Frame-Options": "DENY"}


async def _proxied(request: web.Request) -> web.Response:
    return await request.app[CONTEXT].proxy.handle(request, request[CALLER])


def _outermost(context: Context) -> Any:
    """Errors become answers, and every answer is timed."""
    failures = _Failures()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = perf_counter()
        response = await _answered(request, handler, failures)
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        context.metrics.requests.labels(route, str(response.status)).observe(perf_counter() - began)
        return response

    return middleware


class _Failures:
    """Failed calls in the log, by route and code; `more` counts those since the last line that got none."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, request: web.Request, error: QtandemError) -> None:
        resource = request.match_info.route.resource
        key = resource.canonical if resource is not None else "", error.code
        now = perf_counter()
        at, more = self._said.get(key, (now - LINE_EACH_S, 0))
        if now - at < LINE_EACH_S:
            self._said[key] = at, more + 1
            return
        self._said[key] = now, 0
        log("api").warning("failed", path=request.path, code=error.code, why=error.one_line(), more=more)


async def _answered(request: web.Request, handler: Handler, failures: _Failures) -> web.StreamResponse:
    try:
        return await handler(request)
    except QtandemError as error:
        if error.kind.http >= 500:
            failures.note(request, error)
        return failure(request, error)
    except web.HTTPException as error:
        body = QtandemError("bad-request", f"{request.method} {request.path[:120]}: {error.reason}")
        response = failure(request, body)
        response.set_status(error.status)
        return response
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        log("fault").exception("fault", path=request.path)
        return failure(request, QtandemError("internal", f"{request.method} {request.path[:120]} failed"))


def _identity(context: Context, nodes: Nodes | None) -> Any:
    """Who calls, as the kernel or an enrolled node's relay says; and no more calls of one than are fair."""
    host = socket.gethostname()
    under_way: Counter[tuple[int, str]] = Counter()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if tls.is_enrolment(request):
            return await handler(request)
        known = tls.caller(request, nodes, context.clock())
        caller = Caller(known.uid, known.node or host, known.node is None)
        request[CALLER] = caller
        key = caller.uid, caller.host
        if under_way[key] >= CALLS_PER_UID and caller.uid != ROOT and not context.authority.is_service(caller):
            raise QtandemError("too-many-calls", f"uid {caller.uid} has {CALLS_PER_UID} calls open", retry_after=1.0)
        under_way[key] += 1
        try:
            return await handler(request)
        finally:
            under_way[key] -= 1
            if not under_way[key]:
                del under_way[key]

    return middleware


def _forgetting(context: Context, pages: api_read.Pages) -> Callable[[web.Application], Any]:
    """Written pages are made anew after a change of facts or leases."""

    async def context_of_app(_app: web.Application) -> Any:
        async def forget() -> None:
            with context.signals.watch("facts", "leases") as watch:
                while True:
                    await watch.next()
                    pages.forget()

        task = asyncio.create_task(forget(), name="pages")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return context_of_app

"""A daemon's TLS listener with a few calls, nodes enrolled at it, and relays in front of it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.wire import MAX_BODY, UID_HEADER
from qtandem.daemons import enrol, tls
from qtandem.daemons.forward import refusal
from qtandem.daemons.nodes import Nodes
from qtandem.daemons.notify import Notifier
from qtandem.daemons.relay import Options, Relay

CALLER = web.RequestKey("caller", tls.Caller)


@dataclass
class Daemon:
    """What the tests see of the daemon, and its knobs."""

    tls_dir: Path
    port: int = 0
    healthy: bool = True
    health_at: float = 1000.0
    ticks: bool = True
    stuck: bool = False
    names: str = "ibm_fez\tibm_fez\t2\n"
    offset_s: float = 0.0
    seen: list[dict[str, object]] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def fingerprint(self) -> str:
        return enrol.server_fingerprint(self.tls_dir)

    def clock(self) -> float:
        return time.time() + self.offset_s

    async def enrol(self, node: str, tls_dir: Path, **options: object) -> enrol.Enrolled:
        token = enrol.issue_token(self.tls_dir, node, self.clock())
        return await asyncio.to_thread(enrol.enrol, self.server, self.fingerprint, token, node, tls_dir, **options)


def application(daemon: Daemon, nodes: Nodes) -> web.Application:
    """The calls that the tests need, with the daemon's own middleware and enrolment routes."""

    @web.middleware
    async def edge(request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]):
        try:
            if not tls.is_enrolment(request):
                request[CALLER] = tls.caller(request, nodes, daemon.clock())
            return await handler(request)
        except QtandemError as error:
            return refusal(request.headers, error)

    async def echo(request: web.Request) -> web.Response:
        caller = request[CALLER]
        body = await request.read()
        daemon.seen.append({"caller": caller, "headers": request.headers.copy(), "size": len(body)})
        answer = {
            "uid": caller.uid,
            "node": caller.node,
            "method": request.method,
            "path": request.raw_path,
            "vouched": request.headers.getall(UID_HEADER, []),
        }
        if request.content_type == "text/plain":
            return web.Response(text=f"uid={caller.uid}\nbody={body.decode()}\n", headers={"X-Kind": "text"})
        return web.json_response(answer, status=int(request.query.get("status", "200")))

    async def poll(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first\n")
        daemon.waiting.set()
        await daemon.release.wait()
        await response.write(b"second\n")
        return response

    async def long(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(int(request.query["size"]) >> 16):
            await response.write(b"x" * (1 << 16))
        return response

    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        request.transport.abort()
        return response

    async def health(request: web.Request) -> web.Response:
        if daemon.stuck:
            await daemon.release.wait()
        if daemon.ticks:
            daemon.health_at += 1.0
        silent = [] if daemon.healthy else ["slurm"]
        body = {"healthy": daemon.healthy, "version": "0", "at": daemon.health_at, "publishers": {"slurm": ""}}
        return web.json_response({**body, "silent": silent})

    async def names(request: web.Request) -> web.Response:
        return web.Response(text=daemon.names)

    app = web.Application(client_max_size=MAX_BODY + 1, middlewares=[edge])
    authority = enrol.Authority(daemon.tls_dir, nodes, daemon.clock)
    app.add_routes(enrol.routes(authority, nodes, daemon.clock))
    app.add_routes([web.get("/v1/healthz", health), web.get("/v1/names", names), web.get("/v1/poll", poll)])
    app.add_routes(
        [
            web.get("/v1/broken", broken),
            web.get("/v1/long", long),
            web.get("/v1/long/x", long),
            web.route("*", "/{tail:.*}", echo),
        ]
    )
    return app


@asynccontextmanager
async def serving(daemon: Daemon, local: Path | None = None) -> AsyncIterator[None]:
    nodes = Nodes(daemon.tls_dir / tls.REGISTER)
    runner = web.AppRunner(application(daemon, nodes), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", daemon.port, ssl_context=tls.server_context(daemon.tls_dir))
        await site.start()
        daemon.port = runner.addresses[0][1]
        if local:
            await web.UnixSite(runner, str(local)).start()
        yield
    finally:
        await runner.cleanup()
        nodes.close()


@pytest.fixture
def site(tmp_path: Path) -> Daemon:
    """An initialised daemon's host whose daemon does not run yet."""
    enrol.init(tmp_path / "daemon", ["127.0.0.1"], time.time())
    return Daemon(tmp_path / "daemon")


@pytest.fixture
def serve() -> Callable[..., object]:
    return serving


@pytest.fixture
async def daemon(site: Daemon) -> AsyncIterator[Daemon]:
    async with serving(site):
        yield site


@pytest.fixture
async def node(daemon: Daemon, tmp_path: Path) -> Path:
    """The directory of an enrolled node."""
    await daemon.enrol("c1", tmp_path / "node")
    return tmp_path / "node"


@dataclass
class Running:
    relay: Relay
    socket: Path
    runtime_dir: Path
    task: asyncio.Task[None]

    def session(self, **options: object) -> aiohttp.ClientSession:
        return aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(self.socket)), **options)


@pytest.fixture
async def start_relay() -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """Starts relays: `await start_relay(server, tls_dir, **options)`."""
    async with AsyncExitStack() as stack:
        # A short path: that of a test's folder may be longer than a unix socket takes.
        runtime = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qt")))

        async def start(server: str, tls_dir: Path, **options: object) -> Running:
            defaults = {"mirror": False, "heartbeat_s": 0.02, "runtime_dir": runtime}
            chosen = Options(server, runtime / "qtandem.sock", tls_dir=tls_dir, **{**defaults, **options})
            relay = Relay(chosen, Notifier({}))
            task = asyncio.create_task(relay.run())
            stack.push_async_callback(_stop, relay, task)
            async with asyncio.timeout(5):
                while not chosen.socket.exists():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.005)
            return Running(relay, chosen.socket, runtime, task)

        yield start


async def _stop(relay: Relay, task: asyncio.Task[None]) -> None:
    relay.stop.set()
    await task


@pytest.fixture
async def relay(daemon: Daemon, node: Path, start_relay: Callable[..., Awaitable[Running]]) -> Running:
    return await start_relay(daemon.server, node)

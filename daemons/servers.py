"""The daemon's listeners: the local socket, the relays' TLS port, and the public page with the metrics."""

from __future__ import annotations

import asyncio
import socket
import ssl

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.settings import DaemonSettings
from qtandem.daemons import enrol, loopback, proxy, tls
from qtandem.daemons.app import STRANGERS, bound_connections, build, public, runner
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log
from qtandem.daemons.nodes import Nodes
from qtandem.daemons.sockets import listen_unix
from qtandem.daemons.steady import every

DAY_S = 86_400.0


class Servers:
    """`bind` first (so that a second daemon is noticed before it touches anything), `start` when all is ready."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._path = context.settings.daemon.socket
        self._listener: socket.socket | None = None
        self._runners: list[web.AppRunner] = []
        self._nodes: Nodes | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def bind(self) -> None:
        self._listener = listen_unix(self._path)

    async def start(self, grace_s: float) -> None:
        """Take calls. Raises `bad-config` for an address that cannot be had."""
        settings = self._context.settings.daemon
        assert self._listener is not None
        await self._serve(build(self._context), grace_s, listener=self._listener)
        if settings.listen:
            await self._serve_relays(settings, grace_s)
        if settings.proxy:
            await self._serve_proxy(settings.proxy, grace_s)
        if settings.metrics:
            await self._serve(public(self._context), 1.0, address=settings.metrics)

    def refuse(self) -> None:
        """Who comes now must fail at once, instead of hanging in our backlog until we are gone."""
        if self._listener is not None:
            self._path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Answer the calls under way, then close."""
        if self._renewal:
            self._renewal.cancel()
        await asyncio.gather(*(each.cleanup() for each in self._runners))
        if self._listener is not None:
            self._listener.close()
        if self._nodes is not None:
            self._nodes.close()

    async def _serve_relays(self, settings: DaemonSettings, grace_s: float) -> None:
        context = tls.server_context(settings.tls_dir)
        self._nodes = Nodes(settings.tls_dir / tls.REGISTER)
        app = build(self._context, self._nodes)
        issuer = enrol.Authority(settings.tls_dir, self._nodes, self._context.clock)
        app.add_routes(enrol.routes(issuer, self._nodes, self._context.clock))
        await self._serve(app, grace_s, address=settings.listen, security=context)

        async def renew() -> None:
            if enrol.refresh_server(settings.tls_dir, context, self._context.clock()):
                log("daemon").info("server certificate renewed")

        self._renewal = every("certificate", lambda: DAY_S, renew)

    async def _serve_proxy(self, address: str, grace_s: float) -> None:
        loopback.loopback(address)
        serving = web.AppRunner(proxy.application(self._context), shutdown_timeout=grace_s, **loopback.LIMITS)
        await self._listen(serving, address=address, strangers=loopback.CONNECTIONS)

    async def _serve(
        self,
        app: web.Application,
        grace_s: float,
        *,
        listener: socket.socket | None = None,
        address: str = "",
        security: ssl.SSLContext | None = None,
    ) -> None:
        await self._listen(runner(app, grace_s), listener=listener, address=address, security=security)

    async def _listen(
        self,
        serving: web.AppRunner,
        *,
        listener: socket.socket | None = None,
        address: str = "",
        security: ssl.SSLContext | None = None,
        strangers: int = STRANGERS,
    ) -> None:
        await serving.setup()
        self._runners.append(serving)
        if serving.server is not None:
            bound_connections(serving.server, strangers=strangers)
        try:
            if listener is not None:
                await web.SockSite(serving, listener, backlog=1024).start()
            else:
                host, port = enrol.split_address(address)
                await web.TCPSite(serving, host, port, ssl_context=security, reuse_address=True).start()
                log("daemon").info("listening", address=address, port=serving.addresses[0][1])
        except OSError as error:
            cause = error.strerror or str(error)
            raise QtandemError("bad-config", f"Cannot listen on {address or listener}", cause=cause) from error


def make_folders(settings: DaemonSettings) -> None:
    """Directories of our own, where the service manager has not made them."""
    wanted = ((settings.runtime_dir, 0o755), (settings.socket.parent, 0o755), (settings.state_dir, 0o750))
    for folder, mode in wanted:
        try:
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise QtandemError("bad-config", f"{folder} cannot be made", cause=error.strerror) from error

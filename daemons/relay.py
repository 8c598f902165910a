"""`qtandem-relay`: the daemon's socket on every host that is not the daemon's.

It passes each call on with mutual TLS and vouches for the caller's uid, mirrors the names and the heartbeat,
and renews its certificate. It keeps no state: whatever the daemon's absence broke mends itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError

from qtandem.core.config import load
from qtandem.core.errors import QtandemError
from qtandem.core.settings import Settings
from qtandem.core.wire import UID_HEADER, Health
from qtandem.daemons import certificates, enrol, logs, loopback, tls
from qtandem.daemons.forward import BoundedServer, Forwarder, ProxyForwarder
from qtandem.daemons.heartbeat import mirror
from qtandem.daemons.logs import log
from qtandem.daemons.notify import Notifier
from qtandem.daemons.sockets import listen_unix, raise_file_limit
from qtandem.daemons.upstream import Upstream

RENEWAL_CHECK_S = 3600.0
# Calls under way get so long to end after SIGTERM; long polls never would, and every call may be repeated.
GRACE_S = 3.0
MIRROR_CALL_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a relay does; times in seconds. `exempt` are uids without a bound on connections."""

    server: str
    socket: Path
    runtime_dir: Path
    tls_dir: Path
    connect_timeout_s: float = 2.0
    heartbeat_s: float = 5.0
    mirror: bool = True
    per_uid: int = 256
    exempt: frozenset[int] = frozenset({0})
    proxy: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Options:
        """Raises `bad-config` when no server is set."""
        if not settings.relay.server:
            raise QtandemError(
                "bad-config",
                "This host has no relay: relay.server is empty",
                remedy='Set [relay] server = "HOST:7447".',
            )
        return cls(
            server=settings.relay.server,
            socket=settings.daemon.socket,
            runtime_dir=settings.daemon.runtime_dir,
            tls_dir=settings.daemon.tls_dir,
            connect_timeout_s=settings.relay.connect_timeout_s,
            heartbeat_s=settings.timing.heartbeat_s,
            mirror=settings.relay.mirror,
            per_uid=settings.relay.per_uid,
            proxy=settings.daemon.proxy,
        )


class Relay:
    """One relay. `run` serves until `stop` is set."""

    def __init__(self, options: Options, notifier: Notifier, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._notifier = notifier
        self._clock = clock
        self.upstream = Upstream(options.server, options.tls_dir, options.connect_timeout_s)
        self.stop = asyncio.Event()
        self._proxy: web.ServerRunner | None = None

    async def run(self) -> None:
        options = self._options
        listener = listen_unix(options.socket)
        server = BoundedServer(Forwarder(self.upstream), options.per_uid, options.exempt, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=GRACE_S)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            if options.proxy:
                await self._serve_proxy(options.proxy)
            self._notifier.ready(f"Relaying to {options.server}")
            log("relay").info("listening", socket=str(options.socket), server=options.server)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renewals())
                tasks.create_task(self._watchdog())
                if options.mirror:
                    tasks.create_task(self._mirror())
        finally:
            self._notifier.stopping()
            # The path goes first: who comes now must fail at once instead of hanging in our backlog.
            options.socket.unlink(missing_ok=True)
            await runner.cleanup()
            if self._proxy is not None:
                await self._proxy.cleanup()
            await self.upstream.close()
            log("relay").info("stopped")

    async def _serve_proxy(self, address: str) -> None:
        """The port that programs of jobs use; raises `bad-config` where it cannot be had."""
        host, port = loopback.loopback(address)
        handler = ProxyForwarder(self.upstream, loopback.PATH, loopback.NOBODY)
        self._proxy = web.ServerRunner(loopback.Bounded(handler), shutdown_timeout=GRACE_S)
        await self._proxy.setup()
        try:
            await web.TCPSite(self._proxy, host, port, reuse_address=True).start()
        except OSError as error:
            cause = error.strerror or str(error)
            raise QtandemError("bad-config", f"Cannot listen on {address}", cause=cause) from error

    async def renew_certificate(self) -> bool:
        """Get the next certificate over the present one when its last third has begun; raises `QtandemError`."""
        present = enrol.own_certificate(self._options.tls_dir)
        now = self._clock()
        if not certificates.wants_renewal(present, now):
            return False
        node, key = certificates.node_of(present), certificates.new_key()
        call = enrol.RenewCall(csr=certificates.make_csr(key, node).decode())
        body = await self._ask("POST", tls.RENEW_PATH, call.model_dump_json().encode())
        try:
            answer = enrol.EnrolAnswer.model_validate_json(body)
        except ValidationError as error:
            raise QtandemError("daemon-unreachable", "The renewal's answer cannot be read", cause=str(error)) from error
        enrol.store(self._options.tls_dir, key, answer, replace=True)
        self.upstream.renew()
        log("relay").info("certificate renewed", node=node, expires_at=answer.expires_at)
        return True

    async def _mirror(self) -> None:
        options = self._options
        # Connections that hang without an end are given up, so that new calls fail in time and heal.
        await mirror(
            options.runtime_dir,
            self._health,
            self._names,
            options.heartbeat_s,
            self.stop,
            failed=self.upstream.renew,
        )

    async def _health(self) -> Health:
        try:
            return Health.model_validate_json(await self._ask("GET", "/v1/healthz"))
        except ValidationError as error:
            raise QtandemError("daemon-unreachable", "The daemon's health cannot be read", cause=str(error)) from error

    async def _names(self) -> str:
        return (await self._ask("GET", "/v1/names")).decode(errors="replace")

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """A call of the relay itself. Enrolment carries no uid: it is the node that speaks."""
        headers = [("Content-Type", "application/json")]
        if not path.startswith(tls.ENROL_PATH):
            headers.append((UID_HEADER, str(os.geteuid())))
        try:
            async with asyncio.timeout(MIRROR_CALL_S), self.upstream.call(method, path, headers, body) as answer:
                content = await answer.read()
        except TimeoutError:
            raise QtandemError("daemon-unreachable", f"{path} was not answered within {MIRROR_CALL_S:.0f} s") from None
        if answer.status != 200:
            cause = content[:500].decode(errors="replace")
            raise QtandemError("daemon-unreachable", f"{path} was answered with {answer.status}", cause=cause)
        return content

    async def _renewals(self) -> None:
        while not self.stop.is_set():
            try:
                await self.renew_certificate()
            except QtandemError as error:
                log("relay").warning("certificate not renewed", code=error.code, why=error.message, cause=error.cause)
            await self._pause(RENEWAL_CHECK_S)

    async def _watchdog(self) -> None:
        while not self.stop.is_set():
            self._notifier.alive()
            await self._pause(self._notifier.watchdog_s or RENEWAL_CHECK_S)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)


async def serve(options: Options, notifier: Notifier) -> None:
    """Run a relay until SIGTERM or SIGINT; SIGHUP reads the certificate anew."""
    relay = Relay(options, notifier)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, relay.stop.set)
    loop.add_signal_handler(signal.SIGHUP, relay.upstream.renew)
    await relay.run()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="qtandem-relay", description="Pass local calls on to qtandemd.")
    made.add_argument("--config", metavar="FILE", type=Path, help="qtandem.toml; default: the site's")
    return made


def main(argv: list[str] | None = None) -> int:
    """The command `qtandem-relay`; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        settings = load(arguments.config).settings
        logs.setup(settings.daemon.log_level)
        raise_file_limit()
        asyncio.run(serve(Options.of(settings), Notifier()))
    except QtandemError as error:
        return logs.ended("qtandem-relay", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

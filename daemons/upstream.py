"""The relay's connections to the daemon: one pool at a time, replaced without breaking what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from yarl import URL

from qtandem.core.background import Background
from qtandem.core.errors import QtandemError
from qtandem.daemons import certificates, tls
from qtandem.daemons.enrol import split_address

# Longer than any call of the API may take without sending a byte (a vendor call has 30 s); callers have
# shorter deadlines of their own. `?wait=` adds to it.
ANSWER_S = 60.0
WAIT_MAX_S = 3600.0


@dataclass(slots=True)
class _Pool:
    session: aiohttp.ClientSession
    users: int = 0
    retired: bool = False


class Upstream:
    """Calls the daemon at `server` ("HOST:PORT") with this node's certificate.

    Raises `daemon-unreachable` when it is away, or when this node is not enrolled (yet); both mend themselves.
    """

    def __init__(self, server: str, tls_dir: Path, connect_timeout_s: float) -> None:
        host, port = split_address(server)
        self._base = str(URL.build(scheme="https", host=host, port=port))
        self._server = server
        self._tls_dir = tls_dir
        self._connect_timeout_s = connect_timeout_s
        self._pool: _Pool | None = None
        self._closing = Background()

    @asynccontextmanager
    async def call(
        self,
        method: str,
        raw_path: str,
        headers: Sequence[tuple[str, str]],
        body: AsyncIterable[bytes] | bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One call; the answer's body is yet to be read and is left as encoded. `raw_path` with its query."""
        if not raw_path.startswith("/"):
            # A full URL would make us call somebody else, with this node's certificate.
            raise QtandemError("bad-request", f"{raw_path[:80]!r} is not a path")
        url = URL(f"{self._base}{raw_path}", encoded=True)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._connect_timeout_s, sock_read=ANSWER_S + _wait(url)
        )
        async with self._lend() as session:
            try:
                async with session.request(
                    method,
                    url,
                    headers=headers,
                    data=body,
                    timeout=timeout,
                    allow_redirects=False,
                    server_hostname=certificates.SERVER_NAME,
                ) as response:
                    yield response
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._away(error) from error

    @property
    def under_way(self) -> int:
        """Calls on the present connections that have not ended."""
        return self._pool.users if self._pool else 0

    def renew(self) -> None:
        """Use fresh connections, and the certificate that is on disk now; calls under way go on to their end."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.retired = True
            self._discard(pool)

    async def close(self) -> None:
        self.renew()
        await asyncio.gather(*self._closing)

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[aiohttp.ClientSession]:
        pool = self._pool = self._pool or self._open()
        pool.users += 1
        try:
            yield pool.session
        finally:
            pool.users -= 1
            self._discard(pool)

    def _open(self) -> _Pool:
        try:
            context = tls.client_context(self._tls_dir)
        except QtandemError as error:
            raise QtandemError(
                "daemon-unreachable",
                "This node is not enrolled with qtandemd",
                cause=error.message,
                remedy="Admins: qtandem relay enrol",
            ) from error
        connector = aiohttp.TCPConnector(ssl=context, limit=0, keepalive_timeout=30)
        return _Pool(
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        )

    def _discard(self, pool: _Pool) -> None:
        if pool.retired and pool.users == 0:
            self._closing.spawn(pool.session.close())

    def _away(self, error: Exception) -> QtandemError:
        cause = str(error) or f"no answer ({type(error).__name__})"
        return QtandemError(
            "daemon-unreachable", f"qtandemd at {self._server} did not answer", cause=cause, retry_after=5.0
        )


def _wait(url: URL) -> float:
    """How long the caller lets the daemon wait before it answers (`?wait=SECONDS`)."""
    try:
        return min(max(float(url.query.get("wait", "0")), 0.0), WAIT_MAX_S)
    except ValueError:
        return 0.0

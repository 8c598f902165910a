"""A relay's loopback port passes on calls of the proxy and no others, for nobody in particular."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc

import aiohttp
import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.wire import MAX_BODY, UID_HEADER
from qtandem.daemons import loopback
from qtandem.daemons.loopback import NOBODY

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, as soon as the relay listens."""
    async with asyncio.timeout(5.0):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)


async def raw(port: int, head: str) -> bytes:
    reader, writer = await connected(port)
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5.0)
    writer.close()
    return answer


async def test_calls_reach_the_daemons_proxy_as_nobody_with_what_it_needs(start_relay, daemon, node, port):
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    (await connected(port))[1].close()
    headers = {"Authorization": "Bearer x.y.z", "X-Evil": "1", UID_HEADER: "0", "Cookie": "a=b", "Via": "me"}
    url = f"http://127.0.0.1:{port}/fez/v1/jobs?limit=1"
    async with aiohttp.ClientSession() as session, session.post(url, json={"a": 1}, headers=headers) as answer:
        told = await answer.json()
    assert (told["uid"], told["node"], told["method"]) == (NOBODY, "c1", "POST")
    assert told["path"] == "/v1/proxy/fez/v1/jobs?limit=1"
    passed = daemon.seen[-1]["headers"]
    assert passed["Authorization"] == "Bearer x.y.z"
    assert not {"X-Evil", "Cookie", "Via"} & set(passed)


@pytest.mark.parametrize(
    "target",
    [
        "/../tasks",
        "/fez/../../tasks",
        "/fez/./v1",
        "/fez/..%2f..%2ftasks",
        "/fez/%2e%2e/tasks",
        "//fez/v1",
        "/fez//v1",
        "http://evil/fez/v1/jobs",
        "http://127.0.0.1/fez/v1/jobs",
        "/fez/v1?a b",
        "/fez/v1?" + "a" * 4001,
        "/fez",
        "/",
        "*",
    ],
)
async def test_no_call_leaves_the_proxys_own_paths(start_relay, daemon, node, port, target):
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    seen = len(daemon.seen)
    answer = await raw(port, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b" 400 " in answer
    assert len(daemon.seen) == seen


@pytest.mark.parametrize(
    "head",
    [
        "GET /fez/v1 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        "GET /fez/v1 HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n",
        "POST /fez/v1 HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "POST /fez/v1 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "CONNECT fez:443 HTTP/1.1\r\n",
        "TRACE /fez/v1 HTTP/1.1\r\n",
    ],
)
async def test_no_call_that_two_could_read_differently_gets_on(start_relay, daemon, node, port, head):
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    seen = len(daemon.seen)
    assert b" 400 " in await raw(port, f"{head}Host: x\r\n\r\n")
    assert len(daemon.seen) == seen


async def test_connections_have_a_bound_and_end_when_nothing_comes(start_relay, daemon, node, port, monkeypatch):
    monkeypatch.setitem(loopback.LIMITS, "keepalive_timeout", 0.5)
    monkeypatch.setattr(loopback.Bounded.__init__, "__defaults__", (4,))
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    held = [await connected(port) for _ in range(4)]
    for _, writer in held:
        writer.write(b"GET /fez/v1 HT")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await raw(port, "GET /fez/v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
    for reader, writer in held:
        assert await asyncio.wait_for(reader.read(), 5.0) == b""
        writer.close()
    assert b" 200 " in await raw(port, "GET /fez/v1/x HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_a_long_answer_passes_with_little_memory_and_without_the_daemon_s_headers(
    start_relay, daemon, node, port, monkeypatch
):
    monkeypatch.setattr(loopback, "PATH", "/v1")
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    (await connected(port))[1].close()
    size = 0
    tracemalloc.start()
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/long/x?size={32 << 20}") as answer:
                async for part in answer.content.iter_any():
                    size += len(part)
            peak = tracemalloc.get_traced_memory()[1]
            async with session.post(f"http://127.0.0.1:{port}/fez/x", data=b"a", headers=TEXT) as answer:
                assert "X-Kind" not in answer.headers
    finally:
        tracemalloc.stop()
    assert size == 32 << 20
    assert peak < 4 << 20


async def test_a_body_over_the_limit_is_refused(start_relay, daemon, node, port):
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    head = f"POST /fez/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    assert b" 413 " in await raw(port, head)


@pytest.mark.parametrize("address", ["0.0.0.0:7448", "7448", "10.0.0.1:7448", "127.0.0.1:x", "127.0.0.1:0"])
def test_only_the_loopback_interface_is_served(address):
    with pytest.raises(QtandemError):
        loopback.loopback(address)

"""A relay's loopback port passes on calls of the proxy and no others, for nobody in particular."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.wire import MAX_BODY, UID_HEADER
from qtandem.daemons.proxy import NOBODY, loopback


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
    ["/../tasks", "/fez/../../tasks", "/fez/..%2f..%2ftasks", "//fez/v1", "http://evil/fez/v1/jobs", "/fez", "/", "*"],
)
async def test_no_call_leaves_the_proxys_own_paths(start_relay, daemon, node, port, target):
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    seen = len(daemon.seen)
    answer = await raw(port, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b" 400 " in answer
    assert len(daemon.seen) == seen


async def test_a_body_over_the_limit_is_refused(start_relay, daemon, node, port):
    await start_relay(daemon.server, node, proxy=f"127.0.0.1:{port}")
    head = f"POST /fez/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    assert b" 413 " in await raw(port, head)


@pytest.mark.parametrize("address", ["0.0.0.0:7448", "7448", "10.0.0.1:7448", "127.0.0.1:x", "127.0.0.1:0"])
def test_only_the_loopback_interface_is_served(address):
    with pytest.raises(QtandemError):
        loopback(address)

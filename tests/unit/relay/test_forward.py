"""The relay passes calls on as they are, with the caller's uid from the kernel and nothing a caller could forge."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import tracemalloc

import aiohttp
import pytest

from qtandem.core.wire import MAX_BODY, UID_HEADER
from qtandem.core.wiretext import decode_text

LONG = 32 << 20


async def test_passes_method_path_query_and_body(relay, daemon):
    async with relay.session() as session:
        url = "/v1/leases/a%2Fb?uid=1&x=%20y"
        async with session.request("DELETE", aiohttp.client.URL(url, encoded=True), json={"a": 1}) as answer:
            body = await answer.json()
    assert (body["method"], body["path"]) == ("DELETE", url)
    assert body["node"] == "c1"


async def test_vouches_for_the_uid_of_the_kernel_and_drops_a_forged_one(relay, daemon):
    forged = [(UID_HEADER, "0"), (UID_HEADER.lower(), "77"), ("x-qtandem-node", "other")]
    async with relay.session() as session, session.get("/v1/facts", headers=forged) as answer:
        body = await answer.json()
    assert body["vouched"] == [str(os.geteuid())]
    assert "x-qtandem-node" not in daemon.seen[-1]["headers"]


async def test_drops_hop_by_hop_headers_and_those_that_connection_names(relay, daemon):
    headers = {"Connection": "keep-alive, X-Private", "X-Private": "1", "TE": "trailers", "X-Kept": "yes"}
    headers["Proxy-Authorization"] = "Basic abc"
    async with relay.session() as session, session.get("/v1/facts", headers=headers):
        pass
    seen = daemon.seen[-1]["headers"]
    assert seen["X-Kept"] == "yes"
    assert not {"X-Private", "TE", "Proxy-Authorization"} & set(seen)


async def test_connection_header_cannot_remove_the_vouched_uid(relay, daemon):
    async with relay.session() as session, session.get("/v1/facts", headers={"Connection": UID_HEADER}) as answer:
        assert (await answer.json())["vouched"] == [str(os.geteuid())]


async def test_passes_text_as_text(relay):
    text = {"Content-Type": "text/plain"}
    async with relay.session() as session, session.post("/v1/submit", data="a%3D1", headers=text) as answer:
        assert answer.headers["X-Kind"] == "text"
        assert decode_text(await answer.text()) == {"uid": str(os.geteuid()), "body": "a=1"}


@pytest.mark.parametrize("status", [204, 404, 422, 503])
async def test_passes_any_status(relay, status):
    async with relay.session() as session, session.get(f"/v1/facts?status={status}") as answer:
        assert answer.status == status


async def test_streams_what_comes_while_the_answer_is_not_complete(relay, daemon):
    async with relay.session() as session, session.get("/v1/poll?wait=20") as answer:
        assert await answer.content.readline() == b"first\n"
        daemon.release.set()
        assert await answer.content.readline() == b"second\n"


async def test_a_broken_answer_is_not_passed_as_a_whole_one(relay):
    async with relay.session() as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get("/v1/broken") as answer:
                await answer.read()


async def test_200_calls_at_once(daemon, node, start_relay):
    # Both ends of all handshakes are this one process.
    relay = await start_relay(daemon.server, node, connect_timeout_s=30.0)
    connector = aiohttp.UnixConnector(str(relay.socket), limit=0)
    async with aiohttp.ClientSession("http://localhost", connector=connector) as session:

        async def one(number: int) -> str:
            async with session.get(f"/v1/facts?n={number}") as answer:
                return (await answer.json())["path"]

        paths = await asyncio.gather(*(one(number) for number in range(200)))
    assert paths == [f"/v1/facts?n={number}" for number in range(200)]


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_up_to_the_limit_pass_and_longer_ones_do_not(relay, daemon, chunked):
    async def pieces(total: int):
        for start in range(0, total, 1 << 20):
            yield b"x" * min(1 << 20, total - start)

    def body(total: int):
        return pieces(total) if chunked else b"x" * total

    async with relay.session() as session:
        async with session.post("/v1/tasks", data=body(MAX_BODY)) as answer:
            assert answer.status == 200
        assert daemon.seen[-1]["size"] == MAX_BODY
        async with session.post("/v1/tasks", data=body(MAX_BODY + 1)) as answer:
            assert answer.status == 413
            assert (await answer.json())["code"] == "too-large"
    assert len(daemon.seen) == 1


async def test_curl_s_expect_is_answered(relay):
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/v1/facts", "//127.0.0.1:9/v1/facts"])
async def test_a_full_url_never_reaches_another_server(relay, daemon, target):
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert b" 400 " in answer.splitlines()[0] or daemon.seen[-1]["caller"].node == "c1"


async def test_users_cannot_enrol_or_renew_through_a_relay(relay):
    async with relay.session() as session:
        for path in ("/v1/enrol", "/v1/enrol/renew", "/v1/%65nrol/renew", "/v1/x/../enrol/renew"):
            async with session.post(aiohttp.client.URL(path, encoded=True), json={"csr": "x"}) as answer:
                assert answer.status == 403, path
                assert (await answer.json())["code"] == "not-authorised"


async def test_connection_refused_answers_503_at_once_in_the_callers_form(start_relay, node, daemon):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        running = await start_relay(f"127.0.0.1:{closed.getsockname()[1]}", node)
        started = time.monotonic()
        async with running.session() as session:
            async with session.get("/v1/facts") as answer:
                assert answer.status == 503
                body = await answer.json()
            async with session.post("/v1/submit", data="a=1", headers={"Content-Type": "text/plain"}) as answer:
                text = decode_text(await answer.text())
    assert time.monotonic() - started < 1.0
    assert body["code"] == text["code"] == "daemon-unreachable"
    assert body["retryable"] is True
    assert text["retryable"] == "true"


async def test_a_daemon_that_hangs_costs_the_connect_timeout_only(start_relay, node):
    # Accepts, and never says a word of TLS.
    with socket.create_server(("127.0.0.1", 0)) as mute:
        running = await start_relay(f"127.0.0.1:{mute.getsockname()[1]}", node, connect_timeout_s=0.2)
        started = time.monotonic()
        async with running.session() as session, session.get("/v1/facts") as answer:
            assert answer.status == 503
            assert (await answer.json())["code"] == "daemon-unreachable"
        assert time.monotonic() - started < 2.0


async def test_recovers_by_itself_when_the_daemon_comes_back(site, serve, start_relay, tmp_path):
    async with serve(site):
        await site.enrol("c1", tmp_path / "node")
        running = await start_relay(site.server, tmp_path / "node")
        async with running.session() as session, session.get("/v1/facts") as answer:
            assert answer.status == 200
    async with running.session() as session, session.get("/v1/facts") as answer:
        assert answer.status == 503
    async with serve(site), running.session() as session, session.post("/v1/submit", json={}) as answer:
        assert answer.status == 200


async def test_a_relay_starts_before_its_node_is_enrolled(start_relay, daemon, tmp_path):
    running = await start_relay(daemon.server, tmp_path / "later")
    async with running.session() as session:
        async with session.get("/v1/facts") as answer:
            assert answer.status == 503
            assert "not enrolled" in (await answer.json())["message"]
        await daemon.enrol("c2", tmp_path / "later")
        async with session.get("/v1/facts") as answer:
            assert (await answer.json())["node"] == "c2"


async def test_slow_callers_of_one_uid_are_bounded_and_the_place_is_given_back(start_relay, daemon, node):
    running = await start_relay(daemon.server, node, per_uid=3, exempt=frozenset())
    slow = [await asyncio.open_unix_connection(str(running.socket)) for _ in range(3)]
    reader, writer = await asyncio.open_unix_connection(str(running.socket))
    answer = await asyncio.wait_for(reader.read(), 5)
    assert b"429" in answer.splitlines()[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too-many-calls"
    writer.close()
    for _, held in slow:
        held.close()
    async with asyncio.timeout(5), running.session() as session:
        while True:
            try:
                async with session.get("/v1/facts") as good:
                    if good.status == 200:
                        return
            except aiohttp.ClientError:
                pass


async def test_many_slow_callers_do_not_delay_another(relay, daemon):
    slow = [await asyncio.open_unix_connection(str(relay.socket)) for _ in range(100)]
    for _, writer in slow:
        writer.write(b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    started = time.monotonic()
    async with relay.session() as session, session.get("/v1/facts") as answer:
        assert answer.status == 200
    assert time.monotonic() - started < 5.0
    for _, writer in slow:
        writer.close()


async def test_a_caller_that_goes_away_ends_its_call_at_the_daemon(relay, daemon):
    _, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(b"GET /v1/poll HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(daemon.waiting.wait(), 5)
    writer.transport.abort()
    async with asyncio.timeout(5):
        while relay.relay.upstream.under_way:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_the_socket_is_for_everybody_and_gone_after_the_stop(relay):
    assert relay.socket.stat().st_mode & 0o777 == 0o666
    relay.relay.stop.set()
    await relay.task
    assert not relay.socket.exists()


async def test_a_long_answer_passes_with_little_memory(relay, daemon):
    size, last = 0, b""
    tracemalloc.start()
    try:
        async with relay.session() as session, session.get(f"/v1/long?size={LONG}") as answer:
            async for part in answer.content.iter_any():
                size, last = size + len(part), part[-1:]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (size, last) == (LONG, b"x")
    assert peak < 4 << 20

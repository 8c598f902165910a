"""What strangers and hostile programs send to the proxy's port: nothing of it costs much, and nothing of it gets on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant
from qtandem.core.resources import Resource
from qtandem.core.runs import Run, RunId
from qtandem.daemons import fronts, loopback, proxy
from qtandem.daemons.app import bound_connections
from qtandem.daemons.fronts import dressed, undressed
from qtandem.daemons.proxy import Tokens
from tests.fakes.house import House

KINDS = {
    "fez": "ibm-quantum-compute-service",
    "garnet": "iqm-server",
    "cats": "alice-bob-felis",
    "atoms": "pasqal-cloud",
}
SECRET = {"QRMI_PASQAL_CLOUD_CLIENT_SECRET": "s"}


@dataclass
class Site:
    """The daemon's loopback port, with a lease on each kind of resource; `passed` is what got on to a worker."""

    house: House
    port: int
    tokens: dict[str, str]
    passed: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)

    def bearer(self, name: str) -> str:
        """An Authorization header as that vendor's programs send it."""
        token = self.tokens[name]
        if KINDS[name] == "alice-bob-felis":
            return f"Basic {base64.b64encode(f'qtandem:{token}'.encode()).decode()}"
        return f"Bearer {token if name == 'garnet' else dressed(token, 0)['access_token']}"

    async def raw(self, text: str | bytes, *, more: Callable[[], bytes] | None = None) -> tuple[int, bytes]:
        """Status and rest of the first answer, or 0 where the connection was closed without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(text if isinstance(text, bytes) else text.encode("latin-1"))
            async with asyncio.timeout(10.0):
                head = await reader.readuntil(b"\r\n\r\n")
                rest = await reader.read(65536) if b"content-length: 0" not in head.lower() else b""
            return int(head.split(b" ", 2)[1]), head + rest
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""
        finally:
            writer.close()

    async def get(self, target: str, name: str = "fez", method: str = "GET", headers: str = "") -> int:
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: {self.bearer(name)}\r\n{headers}\r\n"
        return (await self.raw(head))[0]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    resources = {name: Resource(name, kind, name, slots=2, poll_s=60, settings=SECRET) for name, kind in KINDS.items()}
    async with House(tmp_path, resources) as house:
        house.context.settings.daemon.__dict__["proxy"] = "127.0.0.1:748"
        await house.observer.first_facts(list(resources), 5.0)
        run = Run(RunId(house.manager.id("1")), 1000, "ann", nodes=("c1",))
        leases = await house.leases.begin(run, [Grant(name) for name in resources])
        tokens = Tokens(house.store.cipher)
        runner = web.AppRunner(proxy.application(house.context), **{**loopback.LIMITS, "keepalive_timeout": 0.5})
        await runner.setup()
        assert runner.server is not None
        bound_connections(runner.server, strangers=8)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made = Site(house, runner.addresses[0][1], {lease.resource: tokens.of(lease) for lease in leases})
        call = house.workers.call

        async def forward(resource, method, *args, **more):
            if method != "forward":
                return await call(resource, method, *args, **more)
            made.passed.append((resource, args[0], args[1]))
            return {
                "status": 200,
                "body": "{}",
                "type": "application/json",
                "retry_after": "",
                "hold_s": 0.0,
            } | made.answer

        house.workers.call = forward  # type: ignore[method-assign]
        house.context.authority.require = lambda *_args, **_more: None  # type: ignore[method-assign]
        yield made
        await runner.cleanup()


async def test_each_vendors_own_form_of_a_token_is_taken(site: Site) -> None:
    calls = {
        "fez": "/fez/v1/backends",
        "garnet": "/garnet/api/v1/quantum-computers/garnet:mock",
        "cats": "/cats/v1/targets/",
        "atoms": "/atoms/core-fast/api/v2/batches/1",
    }
    for name, target in calls.items():
        assert await site.get(target, name) == 200
    assert [(resource, asked["path"]) for resource, _, asked in site.passed] == [
        (
            name,
            target.removeprefix(f"/{name}/").removeprefix("v1/") if name == "fez" else target.removeprefix(f"/{name}/"),
        )
        for name, target in calls.items()
    ]


async def test_a_token_of_one_resource_is_none_of_another(site: Site) -> None:
    for name in KINDS:
        others = [other for other in KINDS if other != name]
        for other in others:
            assert await site.get(f"/{name}/v1/jobs/1", other) == 401
    assert site.passed == []


@pytest.mark.parametrize(
    "target",
    [
        "/fez/v1/../v1/backends",
        "/fez/v1/backends/..",
        "/fez/v1/./backends",
        "/fez/v1/backends/fez/../../../other/status",
        "/fez/v1/%2e%2e/backends",
        "/fez/v1/backends%2f..%2fworkloads",
        "/fez/v1//backends",
        "//fez/v1/backends",
        "/fez/v1/backends;x=1",
        "/fez/v1/back\\ends",
        "/fez/v1/backends#x",
        "/fez/v1/" + "a/" * 9 + "b",
        "/fez/v1/" + "a" * 101,
        "http://127.0.0.1/fez/v1/backends",
        "http://evil.example/fez/v1/backends",
        "/fez/v1/backends?" + "a=1&" * 51,
        "/fez/v1/backends?" + "a" * 4001,
        "*",
    ],
)
async def test_a_path_that_two_could_read_differently_gets_nowhere(site: Site, target: str) -> None:
    assert await site.get(target) in (0, 400, 404)
    assert site.passed == []


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 2\r\nContent-Length: 3\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: -1\r\n",
        "X-A: b\r\n Authorization: Bearer other\r\n",
        "X\x00A: b\r\n",
        "X-A: b\rX-B: c\r\n",
        "Authorization: Bearer other\r\n",
        "Content-Type: text/plain\r\nContent-Type: application/json\r\n",
        "Host: other\r\n",
        "X-A: " + "b" * 9000 + "\r\n",
        "".join(f"X-{number}: 1\r\n" for number in range(40)),
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n",
        "Upgrade: h2c\r\nConnection: upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\n",
    ],
)
async def test_headers_that_two_could_read_differently_get_nowhere(site: Site, headers: str) -> None:
    assert await site.get("/fez/v1/backends", headers=headers) in (0, 400)
    assert site.passed == []


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "OPTIONS", "PROPFIND", "get"])
async def test_only_methods_of_vendors_are_taken(site: Site, method: str) -> None:
    assert await site.get("/fez/v1/backends", method=method) in (0, 400, 404, 405)
    assert site.passed == []


async def test_no_header_of_a_program_gets_on(site: Site) -> None:
    sent = "Cookie: a=b\r\nX-Forwarded-For: 10.0.0.1\r\nService-CRN: theirs\r\nExpect: \r\n"
    assert await site.get("/fez/v1/backends", headers=sent) == 200
    [(_, session, asked)] = site.passed
    assert session.startswith("session") or session
    assert set(asked) == {"method", "path", "query", "body", "type", "name"}


async def test_no_header_of_a_vendor_comes_back(site: Site) -> None:
    site.answer = {"type": "text/html; x", "retry_after": "7\r\nSet-Cookie: a=b", "headers": {"Authorization": "key"}}
    head = f"GET /fez/v1/backends HTTP/1.1\r\nHost: x\r\nAuthorization: {site.bearer('fez')}\r\n\r\n"
    status, said = await site.raw(head)
    names = {line.partition(b":")[0].lower() for line in said.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]}
    assert status == 200
    assert names == {b"content-type", b"content-length", b"date", b"server"}


@pytest.mark.parametrize("form", ["Content-Length: 16777216", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    "target", ["/fez/v1/jobs", "/garnet/api/v1/jobs/garnet:mock/circuit", "/none/v1/jobs", "/fez/identity/token"]
)
async def test_a_stranger_s_body_is_not_read(site: Site, form: str, target: str) -> None:
    """The answer comes while the body has hardly begun."""
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a.b.c\r\n{form}\r\n\r\n".encode()
    begun = b"x" * 8192 if "Length" in form else b"2000\r\n" + b"x" * 8192 + b"\r\n"
    status, _ = await site.raw(head + begun)
    assert status in (401, 413)
    assert site.passed == []


async def test_a_body_without_a_length_has_a_bound_all_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_BODY", 10_000)
    head = f"POST /fez/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {site.bearer('fez')}\r\n"
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    status, _ = await site.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 3)
    assert status == 413
    whole = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk + b"0\r\n\r\n"
    assert (await site.raw(whole))[0] == 200
    assert [len(asked["body"]) for _, _, asked in site.passed] == [4096]


async def test_a_body_that_does_not_come_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "BODY_S", 0.2)
    head = f"POST /fez/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {site.bearer('fez')}\r\nContent-Length: 9\r\n\r\nx"
    status, said = await site.raw(head)
    assert (status, b"did not arrive" in said) == (400, True)


async def test_a_head_that_comes_drop_by_drop_is_not_waited_for(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    async with asyncio.timeout(10.0):
        for letter in b"GET /fez/v1/backends HTTP/1.1\r\n" * 20:
            writer.write(bytes([letter]))
            if reader.at_eof():
                break
            await asyncio.sleep(0.05)
    assert reader.at_eof()
    writer.close()


async def test_connections_have_a_bound(site: Site) -> None:
    held = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(8)]
    assert await site.get("/fez/v1/backends") == 0
    held[0][1].close()
    async with asyncio.timeout(5.0):
        while await site.get("/fez/v1/backends") != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for _, writer in held:
        writer.close()


def _jwt(claims: bytes) -> str:
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.e30"


HOSTILE = [
    b"[" * 1500,
    b'{"a":' * 300 + b"1" + b"}" * 300,
    b'{"qtandem": 1}',
    b'{"qtandem": ["qt-x"]}',
    b'{"qtandem": "qt-\\ud800"}',
    b'{"qtandem": "qt-' + b"A" * 200 + b'"}',
    b"1" * 1500,
    b"NaN",
    b"\xff\xfe",
    b"",
    b"null",
    b'{"qtandem": "' + b"x" * 1000 + b'"}',
]


@pytest.mark.parametrize("claims", HOSTILE)
async def test_hostile_tokens_are_none(site: Site, claims: bytes) -> None:
    head = "GET /fez/v1/backends HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n"
    assert (await site.raw(head.format(_jwt(claims))))[0] == 401
    undressed(_jwt(claims))
    assert site.passed == []


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "bearer a.b",
        "Basic ",
        "Basic ====",
        "Basic é",
        "Basic QQ==",
        "Bearer " + "a.b.c" * 500,
        "Negotiate x",
    ],
)
async def test_hostile_headers_are_none(site: Site, authorization: str) -> None:
    for name in KINDS:
        head = f"GET /{name}/v1/jobs/1 HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n\r\n"
        assert (await site.raw(head))[0] in (400, 401)
    assert site.passed == []


@pytest.mark.parametrize("form", [b"apikey=" + b"%ff" * 100, b"&" * 4000, b"apikey=a&" * 400, b"\xff" * 20, b""])
async def test_hostile_forms_give_no_access_token(site: Site, form: bytes) -> None:
    for target in ("/fez/identity/token", "/atoms/oauth/token"):
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(form)}\r\n\r\n".encode()
        assert (await site.raw(head + form))[0] in (400, 401)


async def test_an_ended_run_s_token_is_none_even_while_a_program_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.answer = {"hold_s": 20.0}
    waiting = asyncio.create_task(site.get("/garnet/api/v1/jobs/1?wait_until_terminal=true", "garnet"))
    async with asyncio.timeout(5.0):
        while len(site.passed) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await site.house.leases.end(site.house.manager.id("1"), None, "over")
        assert await waiting == 401
    for name in KINDS:
        assert await site.get(f"/{name}/v1/jobs/1", name) == 401


async def test_a_wait_ends_with_the_task_and_with_the_time_asked_for(site: Site) -> None:
    site.answer = {"hold_s": 0.3}
    assert await site.get("/garnet/api/v1/jobs/1", "garnet") == 200
    assert 2 <= len(site.passed) <= 4
    site.answer = {"hold_s": 0.0}
    assert await site.get("/garnet/api/v1/jobs/1", "garnet") == 200
    assert len(site.passed) <= 5


async def test_what_is_public_costs_no_call_of_a_vendor(site: Site) -> None:
    head = "GET /atoms/core-fast/api/v1/devices?device_type=FRESNEL HTTP/1.1\r\nHost: x\r\n\r\n"
    status, said = await site.raw(head)
    assert (status, json.loads(said.partition(b"\r\n\r\n")[2])) == (
        200,
        {"data": [{"status": "UP", "availability": "ACTIVE"}]},
    )
    assert site.passed == []


async def test_refusals_have_the_vendors_words_for_it(site: Site) -> None:
    async def refuse(*_args: object, **_more: object) -> object:
        raise QtandemError("not-allowed", "A run may not ask for 'x' with its lease")

    site.house.workers.call = refuse  # type: ignore[method-assign]
    head = f"GET /fez/v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: {site.bearer('fez')}\r\n\r\n"
    status, said = await site.raw(head)
    body = json.loads(said.partition(b"\r\n\r\n")[2])
    assert status == 403
    assert body["errors"][0]["message"] in body["message"] == body["detail"]


def test_a_resource_that_cannot_be_led_gets_no_variables() -> None:
    lease = type("L", (), {"token": None})()
    plain = Resource("r", "pasqal-cloud", "r")
    assert fronts.FRONTS["pasqal-cloud"].variables(plain, lease, "http://127.0.0.1:748/r", "qt-x") == {}
    assert fronts.FRONTS["ibm-quantum-compute-service"].variables(plain, lease, "http://127.0.0.1:748/r", "qt-x") == {}

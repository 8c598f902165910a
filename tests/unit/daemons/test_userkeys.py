"""Users' own keys: for their own runs and tasks, for nobody else, never for polling, and never shown."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from qtandem.core import verdicts
from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease
from qtandem.core.managers import Grant
from qtandem.core.resources import Resource
from qtandem.core.runs import Run, RunId
from qtandem.core.verdicts import Asker
from qtandem.daemons import app, tls
from qtandem.daemons.userkeys import UserKeys
from tests.fakes.house import House

ANN, BOB = 1000, 1001
KEY = "ann's-very-own-key"
QASM = {"kind": "qasm2", "program": "OPENQASM 2.0;", "shots": 10}


def resource(name: str, owner: str, **more: object) -> Resource:
    return Resource(name, "simulator", name, slots=4, poll_s=0.05, owner=owner, user_keys=("api_key",), **more)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    kinds = {"own": "user", "mixed": "either", "sites": "site"}
    async with House(tmp_path, {name: resource(name, owner) for name, owner in kinds.items()}) as built:
        await built.observer.first_facts(kinds, 5.0)
        yield built


async def register(house: House, uid: int = ANN, name: str = "mixed", key: str = KEY) -> None:
    await house.keys.add(uid, house.context.catalog.get(name), {"api_key": key}, 1.0)


async def hold(house: House, uid: int = ANN, name: str = "mixed", job: str = "1") -> Lease:
    [lease] = await house.leases.begin(Run(RunId(house.manager.id(job)), uid, f"u{uid}"), [Grant(name)])
    return lease


def used(house: House, method: str) -> list[str | None]:
    """The key that each call of the method came with, None for the site's."""
    return [None if own is None else own["api_key"] for _, what, own in house.workers.secrets if what == method]


async def ended(house: House, id: str) -> None:
    async with asyncio.timeout(5.0):
        while not (await house.tasks.wait(id, 1.0)).state.final:
            pass


async def test_a_key_is_used_for_its_users_leases_and_tasks_and_nobody_elses(house: House) -> None:
    await register(house)
    for uid, job in ((ANN, "1"), (BOB, "2")):
        lease = await hold(house, uid, job=job)
        task = await house.tasks.start(lease, uid, QASM, "")
        await ended(house, task.id)
        await house.tasks.logs(task.id)
        await house.leases.end(house.manager.id(job), None, "over")
    for method in ("acquire", "task_start", "task_logs", "release"):
        assert used(house, method) == [KEY, None], method
    assert set(used(house, "task_status")) == {KEY, None}
    assert set(used(house, "observe")) == {None}


async def test_where_the_site_says_so_its_own_key_executes_for_all(house: House) -> None:
    with pytest.raises(QtandemError) as caught:
        await register(house, name="sites")
    assert caught.value.code == "not-allowed"
    await hold(house, name="sites")
    assert used(house, "acquire") == [None]


async def test_without_a_key_of_their_own_users_are_told_at_submission_what_to_type(house: House) -> None:
    def ask() -> object:
        asker = Asker(ANN, "ann", registered=house.keys.resources(ANN))
        return verdicts.submit(None, [Grant("own")], asker, house.context.catalog, house.context.situation())

    with pytest.raises(QtandemError, match="own key") as caught:
        ask()
    assert caught.value.remedy == "qtandem credentials add own"
    await register(house, name="own")
    assert ask() is not None


async def test_a_lease_lives_with_the_credential_that_it_began_with(house: House) -> None:
    await hold(house)
    with pytest.raises(QtandemError) as caught:
        await register(house)
    assert caught.value.code == "in-use"
    assert house.keys.find(ANN, "mixed") is None
    await house.leases.end(house.manager.id("1"), None, "over")
    await register(house)
    await hold(house, job="2")
    with pytest.raises(QtandemError) as caught:
        house.keys.remove(ANN, "mixed")
    assert caught.value.code == "in-use"
    await register(house, key="rotated")
    await house.leases.end(house.manager.id("2"), None, "over")
    assert used(house, "release") == [None, "rotated"]
    house.keys.remove(ANN, "mixed")
    assert house.keys.find(ANN, "mixed") is None


async def test_keys_outlive_the_daemon_sealed_and_private(house: House, tmp_path: Path) -> None:
    await register(house)
    [file] = (tmp_path / "credentials").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert KEY.encode() not in file.read_bytes()
    again = UserKeys(tmp_path, house.store.cipher, lambda *_: False)
    again.open()
    assert again.find(ANN, "mixed") == house.keys.find(ANN, "mixed")
    assert KEY not in repr(again.find(ANN, "mixed"))
    file.rename(file.with_name("1001-" + file.name.partition("-")[2]))
    moved = UserKeys(tmp_path, house.store.cipher, lambda *_: False)
    moved.open()
    assert not moved.of(BOB)


@pytest.mark.parametrize(
    "values", [{}, {"api_key": ""}, {"api_key": "a\r\nX-Evil: 1"}, {"endpoint": "http://evil"}, {"api_key": "x" * 9000}]
)
async def test_only_the_keys_that_are_asked_for_are_taken(house: House, values: dict[str, str]) -> None:
    with pytest.raises(QtandemError) as caught:
        await house.keys.add(ANN, house.context.catalog.get("own"), values, 1.0)
    assert caught.value.code == "bad-request"
    assert not list((house.context.settings.daemon.state_dir / "credentials").iterdir())


@pytest.fixture
async def call(house: House, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable]:
    """`await call(uid, method, path, body, node=None)`: status and text of the answer."""
    who: list[tls.Caller] = []
    monkeypatch.setattr(tls, "caller", lambda *_: who[-1])
    runner = app.runner(app.build(house.context), 1.0)
    await runner.setup()
    await web.UnixSite(runner, str(short_path / "q")).start()

    async def ask(uid: int, method: str, path: str, body: object = None, node: str | None = None) -> tuple[int, str]:
        who.append(tls.Caller(uid, node))
        async with session.request(method, f"http://q/v1/{path}", json=body) as answer:
            return answer.status, await answer.text()

    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(short_path / "q"))) as session:
        yield ask
    await runner.cleanup()


async def test_over_the_api_everybody_sees_and_removes_their_own_and_no_key_comes_back(call: Callable) -> None:
    body = {"resource": "own", "values": {"api_key": KEY}}
    status, text = await call(ANN, "POST", "credentials", body)
    assert status == 200
    texts = [text]
    for uid in (ANN, BOB, 0):
        texts.append((await call(uid, "GET", "credentials"))[1])
    assert [len(json.loads(text)["credentials"]) for text in texts[1:]] == [1, 0, 0]
    assert (await call(BOB, "DELETE", "credentials/own"))[0] == 409
    assert (await call(ANN, "DELETE", "credentials/own"))[0] == 200
    status, text = await call(ANN, "POST", "credentials", {"resource": "own", "values": {"api_key": KEY, "x": 1}})
    assert status == 400
    assert KEY not in "".join([*texts, text])


async def test_a_compute_node_cannot_put_a_key_in_a_users_place(call: Callable) -> None:
    body = {"resource": "own", "values": {"api_key": "mallory's"}}
    status, text = await call(ANN, "POST", "credentials", body, node="c1")
    assert status == 403
    assert "login_hosts" in text

"""Writes that come while the disk is waited for go there together, and none undoes another one."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.ledger import Ledger
from qtandem.core.leases.model import Task
from qtandem.core.leases.queries import Filter
from qtandem.core.leases.store import Store
from qtandem.core.signals import Signals


@pytest.fixture
async def ledger(tmp_path):
    commits: list[int] = []
    store = Store(f"sqlite:///{tmp_path / 'q.db'}", Cipher(bytes(32)), committed=lambda: commits.append(1))
    made = Ledger(store, time.time, Signals())
    commits.clear()
    yield made, commits
    made.close()
    store.close()


def task(number: int) -> Task:
    return Task(f"t{number}", "l1", "run 1", "fez", 1001, f"k{number}", "qasm3", 100.0 + number)


async def held_up(ledger: Ledger) -> threading.Event:
    """Let the writer wait, as for a slow disk."""
    go, waits = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(waits.set)
        go.wait(10.0)

    first = asyncio.create_task(ledger.write(block))
    await waits.wait()
    first.add_done_callback(lambda _: None)
    return go


async def test_many_writes_take_one_transaction_and_keep_their_order(ledger):
    made, commits = ledger
    go = await held_up(made)
    writes = [asyncio.create_task(made.write(made.store.add_task, task(number))) for number in range(20)]
    await asyncio.sleep(0)
    go.set()
    written = await asyncio.gather(*writes)
    assert [each.id for each in written] == [f"t{number}" for number in range(20)]
    assert len(commits) == 1
    assert len(await made.read(made.store.tasks, Filter(owner="run 1"))) == 20


async def test_one_that_fails_undoes_nobody_elses(ledger):
    made, commits = ledger
    go = await held_up(made)
    good = [asyncio.create_task(made.write(made.store.add_task, task(number))) for number in range(3)]
    bad = asyncio.create_task(made.write(made.store.update_task, task(99)))
    after = asyncio.create_task(made.write(made.store.add_task, task(3)))
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(QtandemError, match="no task t99"):
        await bad
    assert [each.id for each in await asyncio.gather(*good, after)] == ["t0", "t1", "t2", "t3"]
    assert len(commits) == 4
    assert len(await made.read(made.store.tasks, Filter(owner="run 1"))) == 4


async def test_a_write_is_done_whatever_becomes_of_its_caller(ledger):
    made, _ = ledger
    go = await held_up(made)
    caller = asyncio.create_task(made.write(made.store.add_task, task(1)))
    await asyncio.sleep(0)
    caller.cancel()
    go.set()
    await made.write(lambda: None)
    assert await made.read(made.store.task, "t1") is not None

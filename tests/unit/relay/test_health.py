"""The heartbeat stops when sensors are no longer kept, even while the daemon itself answers."""

from __future__ import annotations

import asyncio

import pytest

from qtandem.core.facts import Availability, Fact
from qtandem.core.managers import Published
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import Timing
from qtandem.core.signals import Signals
from qtandem.daemons.publishers import Publisher, View


class Manager:
    name, cluster = "slurm", "lab"

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

    async def publish(self, values):
        self.called.set()
        return await self.answer

    async def kick(self, natives):
        return None


@pytest.fixture
async def parts():
    now = [100.0]
    manager = Manager()
    catalog = Catalog({"sim": Resource(name="sim", type="simulator", native="sim", slots=1)})
    fact = Fact(resource="sim", at=100.0, ttl_s=1000.0, availability=Availability.ONLINE)
    view = View(catalog, {"sim": fact}, {})
    publisher = Publisher(manager, lambda: view, Timing(), Signals(), clock=lambda: now[0])
    return publisher, manager, now


async def test_a_publication_that_hangs_shows_and_one_that_ends_does_not(parts):
    publisher, manager, now = parts
    task = asyncio.create_task(publisher.publish())
    await manager.called.wait()
    assert not publisher.health.stuck(now[0], 15.0)
    now[0] += 16.0
    assert publisher.health.stuck(now[0], 15.0)
    manager.answer.set_result(Published(frozenset({"sim"})))
    await task
    now[0] += 1000.0
    assert not publisher.health.stuck(now[0], 15.0)


async def test_a_publisher_that_breaks_off_each_time_shows(parts):
    publisher, manager, now = parts
    manager.answer.set_exception(ZeroDivisionError())
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            await publisher.publish()
        now[0] += 5.0
    assert publisher.health.stuck(now[0], 15.0)

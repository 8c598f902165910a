from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from qtandem.core.facts import Availability, Fact
from qtandem.core.managers import SensorValue
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import Timing
from qtandem.core.signals import Signals
from qtandem.daemons import publishers
from qtandem.daemons.publishers import Publisher, View
from tests.fakes.manager import FakeManager


@dataclass
class Site:
    """Facts and leases that a test changes, and publishers that follow them."""

    facts: dict[str, Fact] = field(default_factory=dict)
    foreign: dict[str, int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    signals: Signals = field(default_factory=Signals)
    running: list[Publisher] = field(default_factory=list)
    catalog: Catalog = field(
        default_factory=lambda: Catalog(
            {
                name: Resource(name, "simulator", f"q_{name}", slots=slots)
                for name, slots in {"fez": 2, "torino": 1}.items()
            }
        )
    )

    def start(self, manager: FakeManager, retired: tuple[SensorValue, ...] = (), **timing: float) -> Publisher:
        publisher = Publisher(
            manager,
            lambda: View(self.catalog, self.facts, self.foreign, dict(self.own)),
            Timing(**timing),
            self.signals,
            clock=time.time,
            retired=retired,
        )
        publisher.start()
        self.running.append(publisher)
        return publisher

    def see(self, name: str, kind: Availability = Availability.ONLINE, ttl_s: float = 60.0, **fields: object) -> None:
        self.facts[name] = Fact(resource=name, at=time.time(), ttl_s=ttl_s, availability=kind, **fields)
        self.signals.send("facts", name)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(publishers, "RETRY_FIRST_S", 0.02)
    made = Site()
    yield made
    await asyncio.gather(*(publisher.close() for publisher in made.running))


@pytest.fixture
def manager() -> FakeManager:
    return FakeManager(natives={"fez": "q_fez", "torino": "q_torino"})


async def test_all_is_closed_until_it_was_seen(site: Site, manager: FakeManager, eventually: Callable) -> None:
    site.start(manager)
    await eventually(lambda: set(manager.values) == {"q_fez", "q_torino"})
    assert {value.open for value in manager.values.values()} == {0}


async def test_a_resource_that_opens_is_shown_and_its_jobs_are_kicked(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    site.start(manager)
    await eventually(lambda: manager.publications)
    site.see("fez")
    await eventually(lambda: manager.kicks)
    assert manager.values["q_fez"].open == 2
    assert manager.kicks == [frozenset({"q_fez"})]
    assert [value.native for value in manager.publications[-1]] == ["q_fez"]
    site.see("fez", Availability.PAUSED)
    await eventually(lambda: manager.values["q_fez"].open == 0)
    assert len(manager.kicks) == 1


async def test_jobs_are_kicked_when_a_job_gave_its_slot_back(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    site.see("fez")
    site.start(manager)
    await eventually(lambda: len(manager.kicks) == 1)
    for slots, kicks in ((2, 1), (1, 2), (0, 3)):
        site.own["fez"] = slots
        site.signals.send("leases", "fez")
        await eventually(lambda kicks=kicks: len(manager.kicks) == kicks)
        await asyncio.sleep(0.02)
    assert manager.kicks[1:] == [frozenset({"q_fez"})] * 2
    site.own["fez"] = 1
    site.see("fez", Availability.OFFLINE)
    await eventually(lambda: manager.values["q_fez"].open == 0)
    site.own["fez"] = 0
    site.signals.send("leases", "fez")
    await asyncio.sleep(0.05)
    assert len(manager.kicks) == 3, "a closed resource has nothing to give"


async def test_changes_that_come_together_are_written_together(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    site.start(manager)
    await eventually(lambda: manager.publications)
    for name in ("fez", "torino"):
        site.see(name)
    await eventually(lambda: manager.values["q_torino"].open)
    assert len(manager.publications) == 2


async def test_a_fact_that_goes_stale_closes_without_any_news(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    site.see("fez", ttl_s=0.15)
    site.start(manager)
    await eventually(lambda: manager.values.get("q_fez", SensorValue("", 0, 0)).open == 2)
    await eventually(lambda: manager.values["q_fez"].open == 0)


async def test_what_does_not_read_back_is_tried_again(site: Site, manager: FakeManager, eventually: Callable) -> None:
    manager.lost = {"q_fez"}
    publisher = site.start(manager)
    await eventually(lambda: publisher.health.failures >= 3)
    assert "q_fez: reads back otherwise" in publisher.health.word()
    assert manager.values["q_torino"]
    tried = [[value.native for value in values] for values in manager.publications]
    assert tried[1] == tried[2] == ["q_fez"]
    manager.lost = set()
    await eventually(lambda: publisher.health.word() == "ok")
    assert "q_fez" in manager.values


async def test_an_unreachable_manager_is_retried_and_blocks_no_other(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    other = FakeManager("other")
    manager.unreachable = True
    broken, good = site.start(manager), site.start(other)
    await eventually(lambda: broken.health.failures >= 3)
    site.see("fez")
    await eventually(lambda: other.values["q_fez"].open == 2)
    assert good.health.word() == "ok"
    assert "does not answer" in broken.health.word()
    manager.unreachable = False
    await eventually(lambda: manager.values and manager.values["q_fez"].open == 2)
    assert broken.health.word() == "ok"


async def test_a_manager_that_hangs_blocks_no_other(site: Site, manager: FakeManager, eventually: Callable) -> None:
    manager.gate, other = asyncio.Event(), FakeManager("other")
    site.start(manager)
    site.start(other)
    site.see("fez")
    await eventually(lambda: other.values and other.values["q_fez"].open == 2)
    for _ in range(5):
        site.see("fez", Availability.PAUSED)
        site.see("fez")
    await asyncio.sleep(0.03)
    assert manager.most_at_once == 1
    manager.gate.set()
    await eventually(lambda: manager.values and manager.values["q_fez"].open == 2)
    assert manager.most_at_once == 1


async def test_sensors_are_asserted_again_though_nothing_changed(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    site.see("fez")
    site.start(manager, reassert_s=0.05)
    await eventually(lambda: len(manager.publications) >= 3)
    manager.values.clear()  # somebody restored an old database
    await eventually(lambda: manager.values.get("q_fez") == SensorValue("q_fez", 2, 0))
    assert all(len(values) == 2 for values in manager.publications)


async def test_a_claim_is_kept_from_the_managers_jobs_and_given_back(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    site.see("fez")
    site.start(manager)
    await eventually(lambda: manager.values and manager.values["q_fez"].open == 2)
    site.foreign["fez"] = 1
    site.signals.send("leases", "fez")
    await eventually(lambda: manager.values["q_fez"].open == 1)
    count = len(manager.publications)
    site.signals.send("leases", "fez")  # a job of the manager's own ended beside it
    await eventually(lambda: len(manager.publications) > count)
    site.foreign.clear()
    site.signals.send("leases", "fez")
    await eventually(lambda: manager.values["q_fez"].open == 2)
    assert manager.kicks[-1] == {"q_fez"}


async def test_the_sensor_of_a_resource_that_was_removed_is_closed(
    site: Site, manager: FakeManager, eventually: Callable
) -> None:
    manager.values["q_old"] = SensorValue("q_old", 2, 0)
    site.start(manager, retired=(SensorValue("q_old", 2, 0),))
    await eventually(lambda: manager.values["q_old"].open == 0)


async def test_without_resources_it_is_quiet_and_well(site: Site, manager: FakeManager, eventually: Callable) -> None:
    site.catalog = Catalog()
    publisher = site.start(manager)
    await eventually(lambda: publisher.health.word() == "ok")
    assert manager.publications == []


async def test_a_fault_in_a_manager_is_not_the_end(site: Site, manager: FakeManager, eventually: Callable) -> None:
    good, manager.publish = manager.publish, None  # type: ignore[method-assign]
    publisher = site.start(manager)
    await asyncio.sleep(0.02)
    manager.publish = good  # type: ignore[method-assign]
    await eventually(lambda: publisher.health.word() == "ok")

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.resources import Resource
from qtandem.daemons import observer
from tests.fakes.house import House


def slow(name: str = "fez", **fields: object) -> Resource:
    return Resource(name, "simulator", name, **{"poll_s": 60.0, **fields})  # type: ignore[arg-type]


async def test_every_resource_is_seen_soon_after_the_start(house: House) -> None:
    assert await house.observer.first_facts(["fez", "torino"], 5.0)
    assert house.observer.facts["fez"].availability is Availability.ONLINE


async def test_a_change_is_told_and_the_same_again_is_not(house: House, eventually: Callable) -> None:
    await house.observer.first_facts(["fez", "torino"], 5.0)
    with house.signals.watch("facts") as watch:
        polls = house.workers.polls["fez"]
        await eventually(lambda: house.workers.polls["fez"] > polls + 2)
        assert await watch.next(0.01) == frozenset()
        house.workers.seen["fez"] = Observation(availability=Availability.PAUSED, reason="calibrating")
        assert await watch.next(5.0) == {"fez"}
    assert house.observer.facts["fez"].reason == "calibrating"


async def test_a_refused_credential_is_forbidden_and_an_outage_unknown(tmp_path: Path, eventually: Callable) -> None:
    async with House(tmp_path, {"fez": 2, "torino": 1}, fact_ttl_periods=3.0) as house:
        await house.observer.first_facts(["fez", "torino"], 5.0)
        house.workers.seen["fez"] = QtandemError("bad-credentials", "401")
        house.workers.seen["torino"] = QtandemError("vendor-timeout", "no answer")
        facts = house.observer.facts
        await eventually(lambda: facts["fez"].availability is Availability.FORBIDDEN)
        await eventually(lambda: facts["torino"].availability is Availability.UNKNOWN)
        assert facts["torino"].reason == "no answer"


async def test_a_resource_is_never_polled_twice_at_once_and_none_delays_another(
    house: House, eventually: Callable
) -> None:
    await house.observer.first_facts(["fez", "torino"], 5.0)
    house.workers.hang = asyncio.Event()
    await eventually(lambda: house.workers.polling["fez"] == house.workers.polling["torino"] == 1)
    house.observer.nudge(["fez", "torino"])
    await asyncio.sleep(0.05)
    assert house.workers.most_polling == 1
    house.workers.hang.set()


async def test_a_job_that_begins_to_wait_has_the_resource_polled_at_once(tmp_path: Path, eventually: Callable) -> None:
    async with House(tmp_path, {"fez": slow()}) as house:
        await house.observer.first_facts(["fez"], 5.0)
        assert house.workers.polls["fez"] == 1
        house.pending.note(["fez"])
        await eventually(lambda: house.workers.polls["fez"] == 2)


async def test_a_resource_that_is_waited_for_is_polled_at_the_waiting_period(
    tmp_path: Path, eventually: Callable
) -> None:
    async with House(tmp_path, {"fez": slow(), "torino": slow("torino")}, poll_waiting_s=0.02) as house:
        house.manager.add("1", grants=house.manager.read_native("fez@q:1"))
        house.pending.configure([house.manager], house.context.settings.timing)
        await eventually(lambda: house.workers.polls["fez"] > 5)
        assert house.workers.polls["torino"] == 1
        assert house.pending.waiting("fez") == 1


async def test_many_who_ask_cost_the_vendor_one_poll(
    tmp_path: Path, eventually: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "NUDGED_S", 0.2)
    began = time.monotonic()
    async with House(tmp_path, {"fez": slow()}) as house:
        await house.observer.first_facts(["fez"], 5.0)
        for _ in range(10):
            house.observer.nudge(["fez"])
            await asyncio.sleep(0.01)
        assert house.workers.polls["fez"] <= 1 + (time.monotonic() - began) / observer.NUDGED_S
        await eventually(lambda: house.workers.polls["fez"] >= 2)


async def test_a_reload_keeps_what_is_unchanged_and_forgets_what_is_gone(tmp_path: Path, eventually: Callable) -> None:
    async with House(tmp_path, {"fez": slow(), "torino": slow("torino")}) as house:
        await house.observer.first_facts(["fez", "torino"], 5.0)
        house.observer.configure([slow()], house.context.settings.timing)
        assert set(house.observer.facts) == {"fez"}
        await asyncio.sleep(0.02)
        assert house.workers.polls["fez"] == 1
        house.observer.configure([slow(slots=2)], house.context.settings.timing)
        await eventually(lambda: house.workers.polls["fez"] == 2)


async def test_a_fault_of_a_provider_port_does_not_end_the_watch(house: House, eventually: Callable) -> None:
    house.workers.seen["fez"] = Observation(availability=Availability.PAUSED)
    house.workers.errors["observe"] = [QtandemError("internal", "odd")]
    await eventually(lambda: "fez" in house.observer.facts)
    await eventually(lambda: house.observer.facts["fez"].availability is Availability.PAUSED)

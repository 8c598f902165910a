import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.facts import Availability, Observation
from qtandem.core.managers import Grant, JobState
from qtandem.core.resources import Access, Resource
from qtandem.core.runs import JobId, Run
from qtandem.daemons.tending import Tending
from tests.fakes.house import House

A, B, C = Grant("fez"), Grant("torino"), Grant("garnet")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    mine = Resource("garnet", "simulator", "garnet", slots=2, poll_s=0.05, access=Access(frozenset({"u7"})))
    async with House(tmp_path, {"fez": 1, "torino": 1, "garnet": mine}, fact_ttl_periods=400) as built:
        yield built


async def shut(house: House, *names: str) -> None:
    """Have these closed and the others open, and seen so."""
    for name in ("fez", "torino", "garnet"):
        house.workers.seen[name] = Observation(
            availability=Availability.OFFLINE if name in names else Availability.ONLINE
        )
    wanted = {name: house.workers.seen[name].availability for name in house.workers.seen}
    with house.signals.watch("facts") as news:
        while {name: fact.availability for name, fact in house.observer.facts.items()} != wanted:
            await news.next(0.05)


def waiting(house: House, job: str, *grants: Grant, **fields: Any) -> JobId:
    return house.manager.add(job, grants=grants, **fields).id


def choosing(house: House, job: str, request: str = "fez/torino", *grants: Grant, **fields: Any) -> JobId:
    grants = grants or (A,)
    return waiting(house, job, *grants, request=request, pinned=grants, **fields)


def grants(house: House, job: JobId) -> tuple[Grant, ...]:
    return house.manager.known[job].grants


async def test_a_choice_moves_to_what_opens_earlier(house: House) -> None:
    await shut(house, "fez", "torino")
    job = choosing(house, "1")
    await Tending(house.context).look(())
    assert grants(house, job) == (A,)
    await shut(house, "fez")
    await Tending(house.context).look(())
    assert grants(house, job) == (B,)
    await shut(house, "torino")
    await Tending(house.context).look(())
    assert grants(house, job) == (A,), "a moved job moves again, also by a daemon that has started anew"


async def test_what_its_owner_chose_since_is_kept(house: House) -> None:
    await shut(house, "fez", "garnet")
    changed = waiting(house, "1", A, request="fez/torino", pinned=(C,))
    plain = waiting(house, "2", A)
    await Tending(house.context).look(())
    assert (grants(house, changed), grants(house, plain)) == ((A,), (A,))


async def test_a_forged_request_gives_no_right(house: House) -> None:
    await shut(house, "fez", "torino")
    forged = choosing(house, "1", "garnet/fez", uid=8)
    broken = choosing(house, "2", "::;'\x00", uid=8)
    own = choosing(house, "3", "garnet/fez", uid=7)
    await Tending(house.context).look(())
    assert [grants(house, job) for job in (forged, broken, own)] == [(A,), (A,), (C,)]


async def test_no_more_jobs_move_than_there_are_slots(house: House) -> None:
    await shut(house, "fez", "garnet")
    waiting(house, "0", B)
    first = [choosing(house, str(number)) for number in (1, 2)]
    await Tending(house.context).look(())
    assert [grants(house, job) for job in first] == [(A,), (A,)], "the slot is for the job that waits for it already"
    house.manager.become(JobId("fake", "c", "0"), JobState.ENDED)
    await Tending(house.context).look(())
    assert sorted(grants(house, job)[0].resource for job in first) == ["fez", "torino"]


async def test_the_pause_after_a_requeue_ends_when_the_resource_is_open(house: House) -> None:
    later = time.time() + 100
    await shut(house, "torino")
    requeued = waiting(house, "1", A, eligible_at=later, pausing=True)
    begins_tomorrow = waiting(house, "2", A, eligible_at=later)
    closed = waiting(house, "3", B, eligible_at=later, pausing=True)
    soon = waiting(house, "4", A, eligible_at=time.time() + 1, pausing=True)
    on_its_node = waiting(house, "5", A, eligible_at=later, pausing=True, nodes=("c1",))
    await Tending(house.context).look(())
    assert house.manager.delays == {requeued: 0.0}
    assert not {begins_tomorrow, closed, soon, on_its_node} & house.manager.delays.keys()


async def test_our_own_back_off_ends_only_when_the_resource_has_opened_since(house: House) -> None:
    await shut(house)
    job = waiting(house, "1", A, eligible_at=time.time() + 100, pausing=True)
    await house.context.records.refuse(str(job), time.time(), 100.0, 600.0, "vendor-error")
    await Tending(house.context).look(("torino",))
    assert house.manager.delays == {}
    await Tending(house.context).look(("fez",))
    assert house.manager.delays == {job: 0.0}


async def test_a_manager_that_does_not_answer_is_asked_again_later(house: House) -> None:
    await shut(house, "fez")
    job = choosing(house, "1")
    house.manager.unreachable = True
    await Tending(house.context).look(())
    house.manager.unreachable = False
    await Tending(house.context).look(())
    assert grants(house, job) == (B,)


async def test_moves_of_jobs_that_wait_no_more_are_forgotten(house: House) -> None:
    await shut(house, "fez")
    job = choosing(house, "1")
    await Tending(house.context).look(())
    assert set(await house.context.records.pins()) == {str(job)}
    house.manager.become(job, JobState.RUNNING)
    choosing(house, "2", "torino/fez", B)
    await Tending(house.context).look(())
    assert set(await house.context.records.pins()) == set()


async def test_a_slot_that_comes_free_ends_no_back_off(house: House) -> None:
    await shut(house)
    tending = Tending(house.context)
    tending._opened()
    run = Run(JobId("fake", "c", "9").run(0), 1000, "ann")
    await house.leases.begin(run, [A])
    none, fez = frozenset[str](), frozenset({"fez"})
    assert tending._opened() == (none, none, fez), "who waits for it may be better off elsewhere"
    await house.leases.end(run.id.job, 0, "over")
    with house.signals.watch("leases") as watch:
        while house.leases.leased("fez"):
            await watch.next(5.0)
    assert tending._opened() == (none, fez, none)
    await shut(house, "fez")
    tending._opened()
    await shut(house)
    assert tending._opened() == (fez, fez, none)


async def test_a_choice_moves_on_when_its_slot_is_taken_and_another_is_free(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elements of an array that ask for either come one by one to both."""
    moved, move = asyncio.Event(), house.manager.move

    async def noted(job: JobId, wanted: Sequence[Grant]) -> None:
        await move(job, wanted)
        moved.set()

    monkeypatch.setattr(house.manager, "move", noted)
    await shut(house, "fez", "garnet")
    house.workers.seen["torino"] = Observation(availability=Availability.ONLINE)
    job = choosing(house, "1", "torino/garnet", B, uid=7)
    tending = asyncio.create_task(Tending(house.context).forever())
    try:
        house.context.pending.note(["torino"])
        await asyncio.sleep(0.5)
        assert grants(house, job) == (B,)
        await shut(house, "fez")
        await house.leases.begin(Run(JobId("fake", "c", "9").run(0), 1000, "ann"), [B])
        await asyncio.wait_for(moved.wait(), 5)
        assert grants(house, job) == (C,)
    finally:
        tending.cancel()

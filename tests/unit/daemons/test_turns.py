"""Whose task is next on a QPU that takes fewer tasks than its leases have slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease, LeaseState, Task
from qtandem.core.managers import Grant
from qtandem.core.resources import Resource
from qtandem.core.runs import Run, RunId
from qtandem.daemons.drive import Live
from qtandem.daemons.turns import HALF_LIFE_S, Rules, Turns
from tests.fakes.house import House

QASM = {"kind": "qasm2", "program": "OPENQASM 2.0;", "shots": 10}


class Desk:
    """`Turns` on leases in memory; `take` ends the oldest running task after some seconds and tells whose is next."""

    def __init__(self, rules: Rules, **people: str) -> None:
        self.now, self.begun, self.made = 0.0, list[Live](), 0
        self.people = people
        self.leases = {
            name: Lease(name, f"run l:c:{name}.0", "qpu", 2, LeaseState.HELD, uid, 0.0, 0.0)
            for uid, name in enumerate(people)
        }
        self.turns = Turns(
            self.begun.append,
            self.leases.get,
            lambda id: (self.people[id], f"{id}s"),
            lambda _: rules,
            lambda: self.now,
        )

    def add(self, *leases: str) -> None:
        for lease in leases:
            self.made += 1
            held = self.leases[lease]
            task = Task(f"{lease}{self.made}", lease, held.owner, "qpu", held.uid, "", "qasm2", self.now)
            self.turns.add(Live(task))

    def finish(self, seconds: float = 10.0, index: int = 0) -> None:
        self.now += seconds
        live = [live for live in self.begun if live.task.finished_at is None][index]
        live.task = replace(live.task, finished_at=self.now)
        self.turns.ended(live)

    def order(self) -> str:
        """Whose tasks began, in their order."""
        return "".join(live.task.lease for live in self.begun)

    def run_dry(self, seconds: float = 10.0) -> str:
        while any(live.task.finished_at is None for live in self.begun):
            self.finish(seconds)
        return self.order()


def test_no_more_than_the_limit_is_under_way_and_all_get_their_turn() -> None:
    desk = Desk(Rules(at_once=2), a="ann", b="bob", c="cy")
    desk.add(*"aaabbbccc")
    assert len(desk.begun) == 2
    assert sorted(desk.run_dry()) == sorted("aaabbbccc")


def test_fair_gives_each_user_the_same_however_many_leases_and_tasks_one_has() -> None:
    desk = Desk(Rules(at_once=1), a="ann", b="bob", c="ann")
    desk.leases["c"] = replace(desk.leases["c"], uid=desk.leases["a"].uid)
    desk.add(*"aaaaaaaa", *"cccccccc", *"bbbb")
    first = desk.run_dry()[:8]
    assert first.count("b") == 4
    assert (first.count("a"), first.count("c")) == (2, 2)


def test_fair_counts_time_and_not_tasks() -> None:
    desk = Desk(Rules(at_once=1), a="ann", b="bob")
    desk.add(*"aaaa", *"bbbbbbbbbbbb")
    while len(desk.begun) < 9:
        desk.finish(30.0 if desk.begun[-1].task.lease == "a" else 10.0)
    assert desk.order().count("b") >= 2 * desk.order().count("a")


def test_fair_forgets_what_was_long_ago() -> None:
    desk = Desk(Rules(at_once=1), a="ann", b="bob")
    desk.add(*"aa")
    desk.run_dry(100.0)
    desk.now += 20 * HALF_LIFE_S
    desk.add("a", *"ab")
    desk.add(*"ab")
    assert desk.run_dry()[2:6] in ("abab", "abba")


def test_priority_goes_by_user_or_account_and_is_fair_among_equals() -> None:
    desk = Desk(Rules(at_once=1, order="priority", priority={"bob": 5, "cs": 9}), a="ann", b="bob", c="cy", d="dan")
    desk.add("a", *"addbbcc")
    assert desk.run_dry() == "accbbdad"


def test_arrival_is_the_order_in_which_they_came() -> None:
    desk = Desk(Rules(at_once=1, order="arrival"), a="ann", b="bob")
    desk.add(*"aaabab")
    assert desk.run_dry() == "aaabab"


def test_a_lease_never_has_more_than_its_slots_under_way() -> None:
    desk = Desk(Rules(at_once=3), a="ann", b="bob")
    desk.add(*"aaaa")
    assert desk.order() == "aa"
    desk.add("b")
    assert desk.order() == "aab"


def test_without_a_limit_leases_do_not_wait_for_each_other() -> None:
    desk = Desk(Rules(), a="ann", b="bob")
    desk.add(*"aaabbb")
    assert desk.order() == "aabb"
    desk.finish()
    assert desk.order() == "aabba"


def test_what_is_stopped_or_lost_its_lease_waits_for_nothing() -> None:
    desk = Desk(Rules(at_once=1), a="ann", b="bob")
    desk.add(*"aab")
    waiting = next(iter(desk.turns._lines["qpu"].queues["a"].waiting))[1]
    desk.turns.hurry(waiting)
    assert desk.order() == "aa"
    del desk.leases["b"]
    desk.finish()
    assert desk.order() == "aab"


@asynccontextmanager
async def limited(tmp_path: Path, **rules: object) -> AsyncIterator[House]:
    resource = Resource("fez", "simulator", "fez", slots=8, poll_s=0.05, **rules)
    async with House(tmp_path, {"fez": resource}) as house:
        house.workers.instant = False
        yield house


async def hold(house: House, job: str, uid: int) -> Lease:
    [lease] = await house.leases.begin(Run(RunId(house.manager.id(job)), uid, f"u{uid}"), [Grant("fez", 2)])
    return lease


async def test_the_daemons_tasks_take_turns(tmp_path: Path, eventually: Callable) -> None:
    async with limited(tmp_path, max_tasks=1) as house:
        ann, bob = await hold(house, "1", 1000), await hold(house, "2", 1001)
        made = [await house.tasks.start(lease, lease.uid, QASM, "") for lease in (ann, ann, ann, bob)]
        await eventually(lambda: house.workers.at_work())
        for number in range(4):
            await asyncio.sleep(0.02)
            assert len(house.workers.at_work()) == 1
            house.workers.finish(house.workers.at_work()[0])
            await eventually(lambda number=number: len(house.workers.started) > min(number + 1, 3))
        assert house.workers.started[1] == made[3].id
        for task in made:
            await house.tasks.wait(task.id, 5.0)


async def test_a_lease_with_all_its_tasks_under_way_is_told_to_wait(tmp_path: Path, eventually: Callable) -> None:
    async with limited(tmp_path, max_tasks_lease=2) as house:
        ann, bob = await hold(house, "1", 1000), await hold(house, "2", 1001)
        first = await house.tasks.start(ann, 1000, QASM, "")
        await house.tasks.start(ann, 1000, QASM, "")
        with pytest.raises(QtandemError) as caught:
            await house.tasks.start(ann, 1000, QASM, "")
        assert (caught.value.code, caught.value.retryable) == ("too-many-tasks", True)
        await house.tasks.start(bob, 1001, QASM, "")
        await eventually(lambda: first.id in house.workers.started)
        house.workers.finish(first.id)
        while not (await house.tasks.wait(first.id, 5.0)).state.final:
            pass
        await house.tasks.start(ann, 1000, QASM, "")

"""Jobs that run on a QPU's slots without a lease, since the manager asked no hook of ours."""

from __future__ import annotations

import pytest

from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities
from qtandem.core.runs import Run
from qtandem.daemons.strays import COMMENT, Strays
from tests.fakes.house import House

FEZ = (Grant("fez"),)


class Watched:
    """A clock that the test turns, and the strays under it."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self.house, self.now = house, 1000.0
        self.strays = Strays(house.context, grace_s=60.0)
        monkeypatch.setattr(house.context, "clock", lambda: self.now)

        async def running() -> list[Job]:
            house.manager._reach()
            return [job for job in house.manager.known.values() if job.state is JobState.RUNNING]

        monkeypatch.setattr(type(house.manager), "running", lambda _self: running(), raising=False)

    async def after(self, seconds: float) -> dict[str, str]:
        """Who is held after a look so many seconds later."""
        self.now += seconds
        await self.strays.look()
        return {id.job: comment for id, comment in self.house.manager.held.items()}


@pytest.fixture
def watched(house: House, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(house, monkeypatch)


async def test_a_run_that_nobody_reported_is_held_after_the_grace(watched: Watched) -> None:
    watched.house.manager.add("1", JobState.RUNNING, grants=FEZ)
    watched.house.manager.add("2", JobState.RUNNING)
    watched.house.manager.add("3", JobState.PENDING, grants=FEZ)
    assert await watched.after(0) == {}
    assert await watched.after(59) == {}
    assert await watched.after(2) == {"1": COMMENT}
    watched.house.manager.held.clear()
    assert await watched.after(60) == {}, "once a run"
    watched.house.manager.become(watched.house.manager.id("1"), JobState.RUNNING, attempt=1)
    assert await watched.after(0) == {}, "another run has a grace of its own"
    assert await watched.after(61) == {"1": COMMENT}


async def test_a_run_with_a_lease_is_none_nor_is_one_whose_lease_was_ended(watched: Watched) -> None:
    job = watched.house.manager.add("1", JobState.RUNNING, grants=FEZ)
    run = Run(job.id.run(0), uid=1000, user="u1000", account=None, partition=None, nodes=(), time_limit_s=None)
    await watched.house.context.leases.begin(run, FEZ)
    assert [await watched.after(61) for _ in range(2)] == [{}, {}]
    await watched.house.context.leases.end(job.id, None, "by hand")
    assert [await watched.after(61) for _ in range(2)] == [{}, {}]


async def test_where_attempts_are_not_counted_any_run_of_the_job_will_do(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon counts there, so the manager's own number tells nothing."""
    monkeypatch.setattr(type(watched.house.manager), "capabilities", ManagerCapabilities(attempts=False))
    job = watched.house.manager.add("1", JobState.RUNNING, grants=FEZ)
    watched.house.manager.add("2", JobState.RUNNING, grants=FEZ)
    run = Run(job.id.run(3), uid=1000, user="u1000", account=None, partition=None, nodes=(), time_limit_s=None)
    await watched.house.context.leases.begin(run, FEZ)
    assert [await watched.after(61) for _ in range(2)] == [{}, {"2": COMMENT}]


async def test_a_manager_that_does_not_answer_changes_nothing(watched: Watched) -> None:
    watched.house.manager.add("1", JobState.RUNNING, grants=FEZ)
    await watched.after(0)
    watched.house.manager.unreachable = True
    assert await watched.after(30) == {}
    watched.house.manager.unreachable = False
    assert await watched.after(31) == {"1": COMMENT}


async def test_a_hold_that_fails_is_tried_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, hold = watched.house.manager, type(watched.house.manager).hold
    manager.add("1", JobState.RUNNING, grants=FEZ)
    await watched.after(0)

    async def refuse(_self: object, *_: object) -> None:
        manager.unreachable = True
        manager._reach()

    monkeypatch.setattr(type(manager), "hold", refuse)
    assert await watched.after(61) == {}
    monkeypatch.setattr(type(manager), "hold", hold)
    manager.unreachable = False
    assert await watched.after(300) == {}, "a try may cost the manager much time"
    assert await watched.after(301) == {"1": COMMENT}

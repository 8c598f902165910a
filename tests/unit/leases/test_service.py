"""What begin, end and sweep promise, one by one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import structlog

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import LeaseState, OwnerState
from qtandem.core.leases.queries import Filter
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId

REFUSED = QtandemError("policy", "the plan has no sessions")
TIMED_OUT = QtandemError("vendor-timeout", "no answer")


async def test_a_run_holds_what_it_asked_for_until_its_end(site, run):
    leases = await site.begin(run(), ("fez", 1), ("garnet", 3))
    assert [(lease.resource, lease.slots, lease.state) for lease in leases] == [
        ("fez", 1, "held"),
        ("garnet", 3, "held"),
    ]
    assert (site.service.leased("fez"), site.service.leased("garnet")) == (1, 3)
    assert site.service.held(run().id) == leases
    assert {(entry.key, entry.token) for entry in site.vendor.sessions()} == {(x.id, x.token) for x in leases}

    assert await site.end() == 1
    assert site.service.leases() == []
    assert site.service.leased("fez") == 0
    assert site.vendor.sessions() == []


async def test_a_repeated_begin_returns_the_same_leases(site, run):
    first = await site.begin(run())
    assert await site.begin(run()) == first


async def test_concurrent_begins_of_one_run_acquire_once(site, run):
    answers = await asyncio.gather(*(site.begin(run()) for _ in range(8)))
    assert len(set(answers)) == 1
    assert site.vendor.calls == [("acquire", "fez")]


async def test_a_caller_that_leaves_does_not_stop_the_start(site, run):
    pause = site.vendor.pause("acquire")
    first = asyncio.create_task(site.begin(run()))
    await pause.arrived.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    pause.go.set()
    assert [lease.state for lease in await site.begin(run())] == ["held"]
    assert len(site.vendor.log) == 1


async def test_ending_twice_is_one_release(site, run):
    await site.begin(run())
    assert await asyncio.gather(site.end(), site.end()) == [1, 0]
    assert await site.end() == 0
    assert [entry.event for entry in site.vendor.log] == ["acquire", "release"]


async def test_the_end_of_an_unknown_run_is_nothing(site):
    assert await site.end("404") == 0
    assert site.vendor.calls == []


async def test_busy_slots_refuse_without_touching_disk_or_vendor(site, run):
    await site.begin(run("1"))
    with pytest.raises(QtandemError, match="1 of 1 slots of fez") as caught:
        await site.begin(run("2"), ("garnet", 1), ("fez", 1))
    assert caught.value.code == "slots-busy"
    assert site.service.leased("garnet") == 0
    assert len(site.store.runs(Filter())) == 1


async def test_grants_on_one_resource_are_one_lease(site, run):
    (lease,) = await site.begin(run(), ("torino", 1), ("torino", 1))
    assert lease.slots == 2


async def test_all_or_nothing(site, run):
    site.vendor.fail("acquire", REFUSED, resource="torino")
    with pytest.raises(QtandemError, match="no sessions"):
        await site.begin(run(), ("fez", 1), ("torino", 1), ("garnet", 1))
    await site.service.settled()
    assert site.vendor.sessions() == []
    assert site.service.leases() == []
    assert {lease.resource: lease.state for lease in site.store.leases(Filter())} == {
        "fez": LeaseState.RELEASED,
        "torino": LeaseState.FAILED,
        "garnet": LeaseState.RELEASED,
    }
    assert [record.state for record in site.store.runs(Filter())] == [OwnerState.REFUSED]
    assert [lease.state for lease in await site.begin(run(), ("fez", 1))] == ["held"]


async def test_a_provider_that_raises_anything_is_undone_too(site, run):
    site.vendor.fail("acquire", ZeroDivisionError("division by zero"))
    with pytest.raises(QtandemError, match="The provider failed") as caught:
        await site.begin(run())
    assert caught.value.code == "internal"
    await site.later(10)
    assert site.service.leases() == []


@pytest.mark.parametrize("after", [False, True])
async def test_an_acquisition_whose_answer_was_lost_is_found_and_closed(site, run, after):
    site.vendor.fail("acquire", TIMED_OUT, after=after)
    with pytest.raises(QtandemError, match="no answer"):
        await site.begin(run())
    await site.later(10)
    assert site.vendor.sessions() == []
    assert site.service.leases() == []


async def test_an_acquisition_that_arrives_late_is_found_and_closed(site, run):
    site.vendor.fail("acquire", TIMED_OUT)
    with pytest.raises(QtandemError, match="no answer"):
        await site.begin(run())
    await site.service.settled()
    (lease,) = site.service.leases()
    assert lease.state == "releasing"
    await site.vendor.acquire("fez", lease.id, 1)
    await site.later(10)
    assert site.vendor.sessions() == []
    assert site.service.leases() == []


async def test_a_failing_release_keeps_the_slot_and_is_tried_again_with_backoff(site, run):
    await site.begin(run("1"))
    site.vendor.fail("release", times=4)
    assert await site.end("1") == 1
    tried = []
    for second in range(1, 40):
        assert site.states() == ["releasing"]
        with pytest.raises(QtandemError, match="slots of fez"):
            await site.begin(run("2"))
        before = len(site.vendor.calls)
        await site.later(1)
        if len(site.vendor.calls) > before:
            tried.append(second)
        if not site.service.leases():
            break
    assert tried == [1, 3, 7, 15]
    assert site.vendor.sessions() == []
    assert [lease.state for lease in await site.begin(run("2"))] == ["held"]


async def test_a_reload_changes_how_long_a_failing_release_waits(site, run):
    await site.begin(run())
    site.vendor.fail("release", times=4)
    await site.end()
    site.timing = replace(site.timing, backoff_max_s=1.0)
    for _ in range(4):
        await site.later(1)
    assert site.service.leases() == []


async def test_a_failing_release_says_why(site, run):
    await site.begin(run())
    site.vendor.fail("release", QtandemError("vendor-error", "502 Bad Gateway"), times=2)
    await site.end()
    assert "502 Bad Gateway" in site.service.leases()[0].reason


async def test_an_end_while_the_vendor_is_asked_undoes_the_acquisition(site, run):
    pause = site.vendor.pause("acquire")
    begin = asyncio.create_task(site.begin(run()))
    await pause.arrived.wait()
    with site.signals.watch("leases") as watch:
        end = asyncio.create_task(site.end())
        await watch.next(5)
    for _ in range(8):
        await site.service.write(lambda: None)
    assert site.states() == ["releasing"]
    assert site.vendor.calls == [("acquire", "fez")], "the vendor is not looked at before it has answered"
    pause.go.set()
    assert await end == 1
    with pytest.raises(QtandemError, match="ended before") as caught:
        await begin
    assert caught.value.code == "run-ended"
    assert site.vendor.sessions() == []
    assert site.service.leases() == []


async def test_an_end_without_waiting_returns_before_the_vendor_answers(site, run):
    await site.begin(run())
    pause = site.vendor.pause("release")
    assert await site.service.end(JobId("slurm", "c", "1"), 0, "ended", wait=False) == 1
    assert site.states() == ["releasing"]
    pause.go.set()
    await site.service.settled()
    assert site.service.leases() == []


@pytest.mark.parametrize("attempt", [0, 1, None])
async def test_a_begin_that_comes_after_its_own_end_gets_nothing(site, run, attempt):
    assert await site.end(attempt=attempt) == 0
    await site.restart()
    with pytest.raises(QtandemError, match="reported before") as caught:
        await site.begin(run())
    assert caught.value.code == "run-ended"
    assert caught.value.retry_after == 12
    assert site.service.leases() == []
    assert site.vendor.calls == []


async def test_a_begin_repeated_after_the_run_was_ended_gets_nothing(site, run):
    await site.begin(run())
    await site.end()
    with pytest.raises(QtandemError, match="reported before"):
        await site.begin(run())
    await site.later(13)
    assert await site.begin(run()), "a manager that counts no attempts runs the job again"


async def test_an_early_end_does_not_stop_the_next_attempt(site, run):
    await site.end(attempt=0)
    assert await site.begin(run(attempt=1))


async def test_a_repeated_end_does_not_stop_a_rerun(site, run):
    await site.begin(run())
    await site.end()
    assert await site.end(attempt=None) == 0
    assert await site.begin(run(attempt=1))


async def test_an_end_that_meets_its_begin_before_the_reservation_wins(site, run):
    await site.begin(run(attempt=0))
    pause = site.vendor.pause("release")
    begin = asyncio.create_task(site.begin(run(attempt=1)))
    await pause.arrived.wait()
    assert await site.end(attempt=1) == 1
    pause.go.set()
    with pytest.raises(QtandemError) as caught:
        await begin
    assert caught.value.code == "run-ended"
    with pytest.raises(QtandemError, match="reported before"):
        await site.begin(run(attempt=1))
    assert site.vendor.sessions() == []


async def test_the_next_attempt_ends_the_earlier_one_first(site, run):
    (first,) = await site.begin(run(attempt=0))
    (second,) = await site.begin(run(attempt=1))
    assert [(entry.event, entry.key) for entry in site.vendor.log] == [
        ("acquire", first.id),
        ("release", first.id),
        ("acquire", second.id),
    ]
    with pytest.raises(QtandemError) as caught:
        await site.begin(run(attempt=0))
    assert caught.value.code == "run-ended"


async def test_a_late_end_of_an_earlier_attempt_leaves_the_later_one(site, run):
    await site.begin(run(attempt=0))
    (lease,) = await site.begin(run(attempt=1))
    assert await site.end(attempt=0) == 0
    assert site.service.held(run(attempt=1).id) == (lease,)
    assert await site.end(attempt=None) == 1


async def test_the_end_of_a_later_attempt_ends_what_an_earlier_one_left(site, run):
    await site.begin(run(attempt=0))
    assert await site.end(attempt=1) == 1
    assert await site.begin(run(attempt=1))


async def test_array_elements_are_jobs_of_their_own(site, run):
    await site.begin(run(index=1), ("garnet", 1))
    await site.begin(run(index=2), ("garnet", 1))
    assert await site.service.end(JobId("slurm", "c", "1", 1), None, "ended") == 1
    assert [str(lease.run) for lease in site.service.leases()] == ["slurm:c:1_2.0"]


async def test_held_leases_do_not_expire(site, run):
    await site.begin(run())
    await site.later(10**7)
    assert site.states() == ["held"]


async def test_an_acquisition_without_an_answer_expires(site, run):
    pause = site.vendor.pause("acquire")
    begin = asyncio.create_task(site.begin(run()))
    await pause.arrived.wait()
    assert site.service.next_sweep() == site.clock.now + 120
    await site.later(121)
    with pytest.raises(QtandemError) as caught:
        await begin
    assert caught.value.code == "vendor-timeout"
    await site.later(6)
    assert site.service.leases() == []
    assert [lease.state for lease in site.store.leases(Filter())] == [LeaseState.EXPIRED]


async def test_a_disk_that_fails_leaks_nothing(site, run, monkeypatch):
    save = site.store.save

    def fail(*_args):
        raise QtandemError("internal", "disk full")

    monkeypatch.setattr(site.store, "save", fail)
    with pytest.raises(QtandemError, match="disk full"):
        await site.begin(run())
    await site.service.settled()
    assert site.service.leased("fez") == 1
    monkeypatch.setattr(site.store, "save", save)
    await site.later(10)
    assert site.service.leases() == []
    assert site.store.leases(Filter(open=True)) == []
    assert site.vendor.sessions() == []


async def test_a_disk_that_fails_after_the_vendor_answered_leaks_nothing(site, run, monkeypatch):
    pause = site.vendor.pause("acquire", after=True)
    begin = asyncio.create_task(site.begin(run()))
    await pause.arrived.wait()

    def fail(*_args):
        raise QtandemError("internal", "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "save", fail)
        pause.go.set()
        with pytest.raises(QtandemError, match="disk full"):
            await begin
        await site.service.settled()
    await site.later(10)
    assert site.service.leases() == []
    assert site.store.leases(Filter(open=True)) == []
    assert site.vendor.sessions() == []


async def test_no_session_is_closed_before_the_disk_knows(site, run, monkeypatch):
    await site.begin(run())

    def fail(*_args):
        raise QtandemError("internal", "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "save", fail)
        with pytest.raises(QtandemError, match="disk full"):
            await site.end()
        await site.service.settled()
    assert len(site.vendor.sessions()) == 1
    pause = site.vendor.pause("release")
    again = asyncio.create_task(site.later(10))
    await pause.arrived.wait()
    assert [lease.state for lease in site.store.leases(Filter())] == [LeaseState.RELEASING]
    assert [record.state for record in site.store.runs(Filter())] == [OwnerState.ENDED]
    pause.go.set()
    await again
    assert site.service.leases() == []


async def test_no_token_is_logged_or_shown(site, run):
    with structlog.testing.capture_logs() as logs:
        leases = await site.begin(run())
        site.vendor.fail("release")
        await site.end()
    assert {entry["event"] for entry in logs} == {"lease", "release"}
    assert leases[0].token not in f"{logs} {leases} {site.service.leases()}"


async def test_every_change_of_a_lease_wakes_who_waits(site, run):
    with site.signals.watch("leases") as watch:
        await site.begin(run(), ("garnet", 1))
        assert await watch.next(1) == {"garnet"}
        assert await watch.next(0.01) == frozenset()


async def test_queries_of_open_runs(site, run):
    await site.begin(run("1", uid=1), ("garnet", 1))
    await site.begin(run("2", uid=2), ("garnet", 1))
    assert [r.uid for r in site.service.open_runs()] == [1, 2]
    assert site.service.run(run("1").id) == run("1", uid=1)
    (lease,) = site.service.leases_of("run slurm:c:2.0")
    assert site.service.usable(lease.id, 2) == lease
    with pytest.raises(QtandemError) as caught:
        site.service.usable(lease.id, 1)
    assert caught.value.code == "not-yours"
    await site.end("1")
    assert site.service.run(run("1").id) is None


async def test_a_reservation_takes_slots_and_asks_no_vendor(site, run):
    reserved = await site.service.reserve(run(), [Grant("fez", 1)])
    assert [lease.state for lease in reserved] == ["reserved"]
    assert (site.vendor.calls, site.service.leased("fez"), site.service.held(run().id)) == ([], 1, ())
    assert await site.service.reserve(run(), [Grant("fez", 1)]) == reserved
    with pytest.raises(QtandemError, match="slots"):
        await site.begin(run("2"))


async def test_a_start_goes_on_from_its_reservation(site, run):
    reserved = await site.service.reserve(run().on(()), [Grant("fez", 1)])
    leases = await site.begin(run())
    assert [(lease.id, lease.state) for lease in leases] == [(reserved[0].id, "held")]
    assert site.service.open_runs() == [run()]
    [record] = site.store.runs(Filter())
    assert record.run.nodes == ("n1", "n2")


async def test_a_start_that_meets_its_own_reservation_under_way_is_held(site, run):
    answers = await asyncio.gather(site.service.reserve(run(), [Grant("fez", 1)]), site.begin(run()))
    assert [lease.state for lease in answers[1]] == ["held"]
    assert site.vendor.calls == [("acquire", "fez")]


async def test_a_reservation_runs_out(site, run):
    await site.service.reserve(run(), [Grant("fez", 1)])
    await site.later(121.0)
    assert (site.service.leases(), site.vendor.calls) == ([], [])
    assert [lease.state for lease in await site.begin(run())] == ["held"]


async def test_a_reservation_does_not_outlive_the_daemon(site, run):
    await site.service.reserve(run(), [Grant("fez", 1)])
    await site.restart()
    await site.service.settled()
    assert (site.service.leases(), site.vendor.calls) == ([], [])


async def test_a_job_that_changed_after_its_reservation_starts_anew(site, run):
    await site.service.reserve(run(), [Grant("fez", 1)])
    with pytest.raises(QtandemError, match="asks for now"):
        await site.begin(run(), ("garnet", 1))
    await site.service.settled()
    assert [lease.resource for lease in await site.begin(run(), ("garnet", 1))] == ["garnet"]

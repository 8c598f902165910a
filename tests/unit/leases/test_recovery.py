"""What a restart makes of leases in each state."""

from __future__ import annotations

import asyncio

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.runs import JobId


async def kill_in(site, method, after, call):
    """Start `call`, and kill the service when it has asked the vendor (`after`: who has done it)."""
    pause = site.vendor.pause(method, after=after)
    task = asyncio.create_task(call)
    await pause.arrived.wait()
    await site.stop()
    await asyncio.gather(task, return_exceptions=True)
    site.vendor.resume()


async def test_held_leases_stay(site, run):
    leases = await site.begin(run(), ("fez", 1), ("torino", 2))
    await site.restart()
    await site.service.settled()
    assert site.service.held(run().id) == leases
    assert site.service.run(run().id) == run()
    assert site.service.leased("torino") == 2
    assert await site.begin(run()) == leases
    assert len(site.vendor.log) == 2


async def test_an_acquisition_that_the_vendor_did_is_taken_over(site, run):
    await kill_in(site, "acquire", True, site.begin(run()))
    await site.start()
    (lease,) = await site.begin(run())
    assert lease.state == "held"
    assert lease.token == site.vendor.sessions()[0].token
    assert len(site.vendor.log) == 1


async def test_a_begin_waits_for_the_recovery_of_its_run(site, run):
    await kill_in(site, "acquire", True, site.begin(run()))
    pause = site.vendor.pause("find_session")
    await site.start()
    await pause.arrived.wait()
    begin = asyncio.create_task(site.begin(run()))
    for _ in range(8):
        await site.service.write(lambda: None)
    assert not begin.done()
    pause.go.set()
    assert [lease.state for lease in await begin] == ["held"]
    assert len(site.vendor.log) == 1


async def test_an_acquisition_that_the_vendor_never_saw_is_undone(site, run):
    await kill_in(site, "acquire", False, site.begin(run()))
    await site.start()
    await site.service.settled()
    await site.later(10)
    assert site.service.leases() == []
    assert site.vendor.log == []
    assert [lease.state for lease in await site.begin(run())] == ["held"]


async def test_an_acquisition_that_arrives_after_the_restart_is_closed(site, run):
    await kill_in(site, "acquire", False, site.begin(run()))
    await site.start()
    await site.service.settled()
    (lease,) = site.service.leases()
    await site.vendor.acquire("fez", lease.id, 1)
    await site.later(10)
    assert site.service.leases() == []
    assert site.vendor.sessions() == []


async def test_a_half_done_start_is_undone_as_a_whole(site, run):
    pause = site.vendor.pause("acquire", "torino")
    task = asyncio.create_task(site.begin(run(), ("fez", 1), ("torino", 1)))
    await pause.arrived.wait()
    with site.signals.watch("leases") as watch:
        while not site.vendor.log:
            await watch.next(1)
    task.cancel()
    await site.restart()
    site.vendor.resume()
    await site.service.settled()
    await site.later(10)
    assert site.vendor.sessions() == []
    assert site.service.leases() == []


@pytest.mark.parametrize("after", [False, True])
async def test_a_release_under_way_is_finished(site, run, after):
    await site.begin(run())
    await kill_in(site, "release", after, site.end())
    await site.start()
    await site.service.settled()
    assert site.vendor.sessions() == []
    assert site.service.leases() == []
    assert await site.end() == 0


async def test_a_release_that_failed_is_tried_at_once_after_a_restart(site, run):
    await site.begin(run())
    site.vendor.fail("release")
    await site.end()
    await site.restart()
    await site.service.settled()
    assert site.service.leases() == []


async def test_an_end_while_a_restart_recovers(site, run):
    await kill_in(site, "acquire", True, site.begin(run()))
    pause = site.vendor.pause("find_session")
    await site.start()
    await pause.arrived.wait()
    with site.signals.watch("leases") as watch:
        end = asyncio.create_task(site.service.end(JobId("slurm", "c", "1"), None, "cancelled"))
        await watch.next(1)
    pause.go.set()
    assert await end == 1
    await site.service.settled()
    assert site.vendor.sessions() == []
    assert site.service.leases() == []


async def test_a_vendor_that_fails_during_recovery_keeps_the_slot(site, run):
    await kill_in(site, "acquire", True, site.begin(run()))
    site.vendor.fail("find_session", times=3)
    await site.start()
    await site.service.settled()
    assert site.states() == ["releasing"]
    with pytest.raises(QtandemError) as caught:
        await site.begin(run())
    assert caught.value.code == "slots-busy"
    for _ in range(4):
        await site.later(10)
    assert site.service.leases() == []
    assert site.vendor.sessions() == []

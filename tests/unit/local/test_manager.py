import asyncio
import stat

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, JobState, SensorValue
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.local.manager import LocalManager
from qtandem.local.store import State


def test_native_text_both_ways(machine):
    grants = (Grant("fez", 2), Grant("ibm-x", 1))
    assert machine.manager.native_request(grants) == {"qpus": "fez:2,ibm_x:1"}
    assert machine.manager.read_native("fez:2,ibm_x:1") == grants
    assert machine.manager.read_native("fez,matlab:3,$(x)") == (Grant("fez", 1),)
    assert machine.manager.read_native("") == ()


async def test_publish_keeps_the_others_and_reads_back(machine):
    first = await machine.manager.publish([SensorValue("fez", 2, 0), SensorValue("ibm_x", 1, 1)])
    second = await machine.manager.publish([SensorValue("ibm_x", 1, 0)])
    assert (first.confirmed, second.confirmed) == ({"fez", "ibm_x"}, {"ibm_x"})
    assert await machine.manager.sensors() == {"fez": 2, "ibm_x": 1}


async def test_concurrent_publications_lose_nothing(machine):
    values = [SensorValue(f"q{number}", 1, 0) for number in range(20)]
    await asyncio.gather(*(machine.manager.publish([value]) for value in values))
    assert len(await machine.manager.sensors()) == 22


async def test_sensors_subtract_what_runs(machine):
    await machine.run()
    await machine.open(total=2)
    await machine.in_state(await machine.submit("import time; time.sleep(60)"), State.RUNNING)
    assert (await machine.manager.sensors())["fez"] == 1


async def test_a_broken_sensor_file_closes_and_is_healed_by_the_next_publication(machine):
    (machine.folder / "sensors.json").write_text("{")
    with pytest.raises(QtandemError) as caught:
        await machine.manager.sensors()
    assert caught.value.code == "manager-unreachable"
    await machine.open()
    assert (await machine.manager.sensors())["fez"] == 1


async def test_jobs_and_pending(machine):
    plain = await machine.submit("pass", "")
    waiting = await machine.submit("pass", "fez:1", time_limit_s=60)
    ids = [machine.queue.full_id(job) for job in (plain, waiting)]
    unknown = [JobId("local", "local", "99"), JobId("local", "other", "1"), JobId("local", "local", "1", 3)]
    jobs = await machine.manager.jobs([*ids, *unknown])
    assert [jobs[job] for job in unknown] == [None] * 3
    assert jobs[ids[1]].grants == (Grant("fez", 1),)
    assert jobs[ids[1]].time_limit_s == 60
    assert [job.id for job in await machine.manager.pending()] == [ids[1]]
    machine.queue.cancel(waiting)
    assert (await machine.manager.jobs(ids))[ids[1]].state is JobState.ENDED


async def test_delay(machine):
    job = machine.queue.full_id(await machine.submit("pass"))
    await machine.manager.delay(job, 100)
    assert (await machine.manager.jobs([job]))[job].eligible_at is not None
    await machine.manager.delay(job, 0)
    assert (await machine.manager.jobs([job]))[job].eligible_at is None
    with pytest.raises(QtandemError):
        await machine.manager.delay(JobId("local", "local", "99"), 1)


def test_the_folder_is_private(tmp_path):
    folder = tmp_path / "q"
    LocalManager(ManagerSettings(options={"state_dir": str(folder)}), {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

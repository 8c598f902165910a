import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, JobState, SensorValue
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.slurm.jobs import ELEMENTS
from qtandem.slurm.manager import SlurmManager
from tests.fakes.slurm.cluster import FakeSlurm


def job(number: str, index: int | None = None) -> JobId:
    return JobId("slurm", "lab", number, index)


async def test_missing_licences_are_made_with_their_first_value(manager: SlurmManager, fake: FakeSlurm) -> None:
    outcome = await manager.publish([SensorValue("fez", 2, 2), SensorValue("ibm_x", 2, 0)])
    assert outcome.confirmed == {"fez", "ibm_x"}
    assert await manager.sensors() == {"fez": 0, "ibm_x": 2}
    assert all("lastconsumed" in " ".join(call) for call in fake.calls_of("sacctmgr"))


async def test_changed_slots_are_adjusted(manager: SlurmManager) -> None:
    await manager.publish([SensorValue("fez", 2, 0)])
    assert (await manager.publish([SensorValue("fez", 5, 0)])).confirmed == {"fez"}
    assert await manager.sensors() == {"fez": 5}


async def test_a_hundred_flips_are_two_writes(settings: ManagerSettings, fake: FakeSlurm) -> None:
    names = [f"q{number}" for number in range(100)]
    manager = SlurmManager(settings, {name: name for name in names})
    await manager.publish([SensorValue(name, 1, 0) for name in names])
    before = len(fake.calls_of("sacctmgr")), len(fake.calls_of("scontrol"))
    await manager.publish([SensorValue(name, 1, number % 2) for number, name in enumerate(names)])
    await manager.publish([SensorValue(name, 1, (number + 1) % 2) for number, name in enumerate(names)])
    writes = fake.calls_of("sacctmgr")[before[0] :]
    assert len(writes) == 3
    assert len(fake.calls_of("scontrol")) - before[1] == 4
    assert all("server=qtandem" in call and any(word.startswith("name=") for word in call) for call in writes)


async def test_nothing_is_written_that_holds(manager: SlurmManager, fake: FakeSlurm) -> None:
    values = [SensorValue("fez", 2, 2), SensorValue("many", 4, 1)]
    await manager.publish(values)
    before = len(fake.calls_of("sacctmgr"))
    assert (await manager.publish(values)).confirmed == {"fez", "many"}
    assert len(fake.calls_of("sacctmgr")) == before


async def test_a_sensor_closed_under_a_running_job_stays_closed_when_it_ends(
    manager: SlurmManager, fake: FakeSlurm
) -> None:
    await manager.publish([SensorValue("fez", 1, 0)])
    fake.submit(1, "fez@qtandem:1")
    assert fake.start(1)
    await manager.publish([SensorValue("fez", 1, 1)])
    fake.become(1, "COMPLETED")
    assert fake.free("fez@qtandem") == 0
    await manager.publish([SensorValue("fez", 1, 0)])
    assert fake.free("fez@qtandem") == 1


async def test_a_partly_closed_sensor_counts_slurms_own_jobs_once(manager: SlurmManager, fake: FakeSlurm) -> None:
    await manager.publish([SensorValue("many", 4, 0)])
    fake.submit(1, "many@qtandem:2")
    assert fake.start(1)
    assert (await manager.publish([SensorValue("many", 4, 1)])).confirmed == {"many"}
    assert fake.free("many@qtandem") == 1
    fake.become(1, "COMPLETED")
    assert fake.free("many@qtandem") == 3


async def test_a_value_that_somebody_else_wrote_is_mended(manager: SlurmManager, fake: FakeSlurm) -> None:
    await manager.publish([SensorValue("fez", 2, 2)])
    with fake.state() as state:
        state["resources"]["fez@qtandem"].update(consumed=0, deficit=0)
    assert (await manager.publish([SensorValue("fez", 2, 2)])).confirmed == {"fez"}
    assert fake.free("fez@qtandem") == 0


async def test_without_slurmdbd_what_failed_is_told(manager: SlurmManager, fake: FakeSlurm) -> None:
    await manager.publish([SensorValue("fez", 1, 0)])
    fake.down("slurmdbd")
    outcome = await manager.publish([SensorValue("fez", 1, 1)])
    assert outcome.confirmed == frozenset()
    assert "Connection refused" in outcome.failed["fez"]
    fake.down()
    assert (await manager.publish([SensorValue("fez", 1, 1)])).confirmed == {"fez"}


async def test_an_operator_is_told_who_can_make_licences(manager: SlurmManager, fake: FakeSlurm) -> None:
    await manager.publish([SensorValue("fez", 1, 0)])
    with fake.state() as state:
        state["operator"] = True
    outcome = await manager.publish([SensorValue("fez", 2, 2), SensorValue("many", 2, 2)])
    assert outcome.confirmed == {"fez"}
    assert "qtandem install slurm --apply" in outcome.failed["many"]


async def test_without_slurmctld_the_manager_is_unreachable(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.down("slurmctld")
    for call in (manager.publish([SensorValue("fez", 1, 1)]), manager.jobs([job("1")]), manager.pending()):
        with pytest.raises(QtandemError) as caught:
            await call
        assert caught.value.code == "manager-unreachable"


async def test_without_its_commands_the_manager_is_unreachable(tmp_path: object) -> None:
    manager = SlurmManager(ManagerSettings(cluster="lab", bin_dir=str(tmp_path)), {"fez": "fez"})
    with pytest.raises(QtandemError) as caught:
        await manager.sensors()
    assert caught.value.code == "manager-unreachable"


async def test_a_kick_touches_the_best_few_and_changes_nothing(manager: SlurmManager, fake: FakeSlurm) -> None:
    comment = 'mine = "a|b", it\'s\n100%'
    for number in range(1, 6):
        fake.submit(number, "fez@qtandem:1", priority=number, comment=comment)
    fake.submit(6, "fez@qtandem:1", state_reason="BeginTime", priority=99)
    fake.submit(7, "fez@qtandem:1", state_reason="JobHeldUser", priority=0)
    fake.submit(8, "matlab:1", priority=99)
    await manager.kick(["fez", "unheard_of"])
    assert sorted(fake.kicks) == ["4", "5"]
    assert fake.job(5)["comment"] == comment


async def test_a_kick_of_an_array_leaves_its_running_elements(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.submit(10, "fez@qtandem:1", array_job_id=10, array_task_string="3-6%5", comment="all")
    fake.submit(11, "fez@qtandem:1", array_job_id=10, array_task_id=1, comment="my own")
    fake.become(11, "RUNNING")
    await manager.kick(["fez"])
    assert fake.kicks == ["10_[3-6%5]"]
    assert fake.job(11)["comment"] == "my own"


async def test_a_kick_without_waiting_jobs_is_one_look(manager: SlurmManager, fake: FakeSlurm) -> None:
    await manager.kick(["fez"])
    await manager.kick([])
    assert (len(fake.calls_of("squeue")), fake.calls_of("scontrol")) == (1, [])


async def test_array_elements_and_unknown_jobs(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.submit(10, "fez@qtandem:1", array_job_id=10, array_task_string="3-6")
    fake.submit(11, "fez@qtandem:1", array_job_id=10, array_task_id=1, restart_cnt=2)
    fake.become(11, "RUNNING", nodes="c[1-2]")
    wanted = [job("10", 1), job("10", 4), job("10", 9), job("11"), job("77"), JobId("slurm", "other", "11")]
    found = await manager.jobs(wanted)
    running = found[job("10", 1)]
    assert running is not None
    assert (running.state, running.attempt, running.nodes) == (JobState.RUNNING, 2, ("c1", "c2"))
    assert found[job("10", 4)].state is JobState.PENDING
    assert found[job("11")].id == job("10", 1)
    assert [found[id] for id in (wanted[2], wanted[4], wanted[5])] == [None, None, None]


async def test_holding_a_running_job_requeues_it_with_a_comment(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.submit(1, "fez@qtandem:1", comment="the user's")
    fake.become(1, "RUNNING")
    await manager.hold(job("1"), "qtandem: refused\n5 times [x]")
    record = fake.job(1)
    assert (record["job_state"], record["state_reason"]) == (["PENDING"], "job_requeued_in_held_state")
    assert record["comment"] == "the user's | qtandem: refused 5 times [x]"
    await manager.hold(job("1"), "refused again")
    assert fake.job(1)["comment"] == "the user's | qtandem: refused again"


async def test_holding_a_pending_job_lets_its_owner_release_it(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.submit(1, "fez@qtandem:1")
    await manager.hold(job("1"), "refused")
    assert (fake.job(1)["state_reason"], fake.job(1)["comment"]) == ("JobHeldUser", "qtandem: refused")
    await manager.hold(job("2"), "it went away")


async def test_delaying(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.submit(1, "fez@qtandem:1")
    await manager.delay(job("1"), 15.2)
    assert fake.job(1)["state_reason"] == "BeginTime"
    await manager.delay(job("1"), 0)
    starts = [word for call in fake.calls_of("scontrol") for word in call if word.startswith("starttime")]
    assert starts == ["starttime=now+15", "starttime=now"]
    fake.become(1, "RUNNING")
    with pytest.raises(QtandemError) as caught:
        await manager.delay(job("1"), 15)
    assert caught.value.code == "command-failed"


def test_licences_for_a_job(manager: SlurmManager) -> None:
    native = manager.native_request([Grant("fez", 2), Grant("ibm-x")])
    assert native == {"licenses": "fez@qtandem:2,ibm_x@qtandem:1"}


def test_the_cluster_must_be_named() -> None:
    with pytest.raises(QtandemError) as caught:
        SlurmManager(ManagerSettings(), {})
    assert caught.value.code == "bad-config"


async def test_moving_a_pending_job_keeps_its_other_licences(manager: SlurmManager, fake: FakeSlurm) -> None:
    fake.submit(1, "matlab:2,fez@qtandem:1")
    fake.submit(10, "fez@qtandem:1", array_job_id=10, array_task_string="3-6%5")
    await manager.move(job("1"), [Grant("ibm-x", 1)])
    await manager.move(job("10"), [Grant("ibm-x", 1)])
    assert (fake.job(1)["licenses"], fake.job(10)["licenses"]) == ("matlab:2,ibm_x@qtandem:1", "ibm_x@qtandem:1")
    fake.become(1, "RUNNING")
    await manager.move(job("1"), [Grant("fez", 1)])
    assert fake.job(1)["licenses"] == "matlab:2,ibm_x@qtandem:1"


async def test_elements_of_an_array_that_has_a_choice_are_jobs_by_themselves(
    manager: SlurmManager, fake: FakeSlurm
) -> None:
    note = "qtandem:choices=fez%2Fibm-x;pinned=fez@qtandem:1"
    fake.submit(10, "fez@qtandem:1", array_job_id=10, array_task_string="3-49%5", admin_comment=note)
    fake.submit(20, "fez@qtandem:1", array_job_id=20, array_task_string="0-9")
    listed = [each.id for each in await manager.pending()]
    assert listed == [*(job("10", index) for index in range(3, 3 + ELEMENTS)), job("20")]
    await manager.move(job("10", 4), [Grant("ibm-x", 1)])
    moved = (await manager.jobs([job("10", 4)]))[job("10", 4)]
    rest = (await manager.jobs([job("10", 5)]))[job("10", 5)]
    assert moved is not None
    assert rest is not None
    assert (moved.grants, rest.grants) == ((Grant("ibm-x", 1),), (Grant("fez", 1),))
    assert job("10", 4) in [each.id for each in await manager.pending()]

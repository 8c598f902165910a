"""What the contract leaves open: one job as Grid Engine shows it, holds with an end, and who is asked how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, JobState, SensorValue
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.gridengine import complexes, records
from qtandem.gridengine.manager import GridEngineManager
from tests.unit.gridengine.conftest import NATIVES


def _id(number: str, index: int | None = None) -> JobId:
    return JobId("gridengine", "lab", number, index)


async def test_a_running_job_has_its_host_queue_and_owner(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=2,h_rt=0:2:0,arch=lx*")
    cell.become(number, "r")
    job = (await manager.jobs([_id(number)]))[_id(number)]
    assert job is not None
    assert (job.state, job.nodes, job.partition, job.user) == (JobState.RUNNING, ("c1",), "main", "alice")
    assert (job.grants, job.time_limit_s, job.account) == ((Grant("fez", 2),), 120, "physics")
    assert job.can_requeue


async def test_an_interactive_job_cannot_be_put_back(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=1", kind=0x8)
    job = (await manager.jobs([_id(number)]))[_id(number)]
    assert job is not None
    assert not job.can_requeue


async def test_an_opening_costs_no_look_before_and_one_kick(manager: GridEngineManager, cell: Any) -> None:
    await manager.publish([SensorValue("fez", 2, 2)])
    before = len(cell.said("qconf"))
    await manager.publish([SensorValue("fez", 2, 0)])
    await manager.kick(["fez"])
    made = cell.said("qconf")[before:]
    assert made[0] == ["-mattr", "exechost", "complex_values", "qpu_fez=2", "global"]
    assert sorted(made[1:]) == [["-se", "global"], ["-tsm"]]
    await manager.kick(["fez"])
    assert cell.said("qconf")[-1] == ["-tsm"]


async def test_a_capacity_that_somebody_changed_is_repaired(manager: GridEngineManager, cell: Any) -> None:
    await manager.publish([SensorValue("fez", 2, 0)])
    cell.write({**cell.read(), "global": {"qpu_fez": "7"}})
    assert (await manager.publish([SensorValue("fez", 2, 0)])).confirmed == {"fez"}
    assert cell.read()["global"] == {"qpu_fez": "2"}


async def test_a_back_off_is_a_hold_with_an_end(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=1")
    await manager.delay(_id(number), 0.2)
    job = cell.read()["jobs"][number]
    assert (job["state"], job["holds"]) == ("hqw", ["s"])
    assert float(job["context"]["qtandem_until"]) > 0

    def let_go() -> bool:
        job = cell.read()["jobs"][number]
        return job["state"] == "qw" and "qtandem_until" not in job["context"]

    async with asyncio.timeout(30):
        while not let_go():  # noqa: ASYNC110 - the fake is another process
            await asyncio.sleep(0.05)


async def test_a_back_off_outlives_the_daemon(cell: Any, settings: ManagerSettings) -> None:
    now = 1000.0
    number = cell.submit("qpu_fez=1")
    before = GridEngineManager(settings, NATIVES, clock=lambda: now)
    await before.delay(_id(number), 600)
    after = GridEngineManager(settings, NATIVES, clock=lambda: now)
    [job] = await after.pending()
    assert job.eligible_at == 1600
    assert cell.read()["jobs"][number]["state"] == "hqw"
    now = 1601.0
    await after.pending()
    assert cell.read()["jobs"][number]["state"] == "qw"


async def test_what_an_owner_writes_into_the_context_lifts_no_hold(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=1")
    await manager.delay(_id(number), 600)
    state = cell.read()
    state["jobs"][number]["context"]["qtandem_until"] = "1"
    cell.write(state)
    [job] = await manager.pending()
    assert job.eligible_at is not None
    assert cell.read()["jobs"][number]["holds"] == ["s"]


async def test_the_end_of_a_back_off_leaves_an_operators_hold_alone(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=1")
    await manager.delay(_id(number), 600)
    state = cell.read()
    state["jobs"][number]["holds"].append("o")
    cell.write(state)
    await manager.delay(_id(number), 0)
    job = cell.read()["jobs"][number]
    assert (job["state"], job["holds"]) == ("hqw", ["o"])


async def test_an_array_by_its_own_id_is_told_from_its_elements(manager: GridEngineManager, cell: Any) -> None:
    number, plain = cell.submit("qpu_fez=1", kind=records.ARRAY), cell.submit("qpu_fez=1")
    found = await manager.jobs([_id(number), _id(plain)])
    assert [job.whole for job in found.values() if job] == [True, False]


async def test_elements_of_an_array_have_a_back_off_each(cell: Any, settings: ManagerSettings) -> None:
    now = 1000.0
    number = cell.submit("qpu_fez=1", kind=records.ARRAY)
    manager = GridEngineManager(settings, NATIVES, clock=lambda: now)
    await manager.delay(_id(number, 3), 600)
    await manager.pending()
    now = 1601.0
    again = GridEngineManager(settings, NATIVES, clock=lambda: now)
    await again.pending()
    assert [call[-1] for call in cell.said("qalter")] == [f"{number}.3"] * 2


async def test_a_hold_for_good_is_not_let_go(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=1")
    cell.become(number, "r")
    await manager.delay(_id(number), 600)
    await manager.hold(_id(number), "qtandem: no, never")
    await manager.pending()
    job = cell.read()["jobs"][number]
    assert (job["state"], job["holds"], job["context"]) == ("hRq", ["o"], {"qtandem": "qtandem: no; never"})
    found = (await manager.jobs([_id(number)]))[_id(number)]
    assert found is not None
    assert found.comment == "qtandem: no, never"


async def test_the_roll_names_those_that_run_with_a_qpu(manager: GridEngineManager, cell: Any) -> None:
    assert await manager.running() == []
    numbers = [cell.submit(asked) for asked in ("qpu_fez=1", "qpu_ibm_x=1", "arch=lx*")]
    for number in numbers[1:]:
        cell.become(number, "r")
    assert [job.id for job in await manager.running()] == [_id(numbers[1])]


async def test_the_context_of_a_job_tells_its_leases(manager: GridEngineManager, cell: Any) -> None:
    number = cell.submit("qpu_fez=1,qpu_ibm_x=1")
    await manager.mark(_id(number), ["l1", "l2"])
    await manager.mark(_id(number, 2), ["l3"])
    assert cell.read()["jobs"][number]["context"] == {"qtandem_lease": "l1+l2"}


async def test_a_job_that_went_meanwhile_needs_no_release(manager: GridEngineManager) -> None:
    await manager.delay(_id("77"), 0)
    await manager.hold(_id("77"), "x")


def test_a_cluster_needs_a_name() -> None:
    with pytest.raises(QtandemError):
        GridEngineManager(ManagerSettings(), {})


def test_names_with_two_meanings_are_found() -> None:
    assert complexes.taken_twice(["x", "queue_x"]) == {"qpu_queue_x"}
    assert complexes.taken_twice(["slots"]) == {"qpu_slots"}
    assert not complexes.taken_twice(["x", "queue_y"])


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        (["qw"], JobState.PENDING), (["hRq"], JobState.PENDING), (["Eqw"], JobState.PENDING),
        (["dr"], JobState.RUNNING), (["t"], JobState.RUNNING), (["Rr"], JobState.RUNNING), (["hr"], JobState.RUNNING),
        (["s"], JobState.SUSPENDED), (["T"], JobState.SUSPENDED), (["qw", "r"], JobState.RUNNING), ([], JobState.ENDED),
    ],
)  # fmt: skip
def test_state_letters(flags: list[str], state: JobState) -> None:
    assert records.state_of(flags) is state


def test_tasks_of_an_array() -> None:
    assert records.tasks("2,4-8:2,11") == {2, 4, 6, 8, 11}
    assert records.tasks("") == {0}
    assert records.tasks("1-999999999999:1") == {0}


def test_a_job_name_that_is_no_xml_hides_nobody() -> None:
    job = "<job_list><JB_job_number>1</JB_job_number><JB_name>\x01</JB_name></job_list>"
    assert [row.job for row in records.rows(f"<job_info>{job}</job_info>")] == ["1"]


def test_tasks_that_qmaster_has_read_from_its_disk() -> None:
    """Recorded from 8.1.9 after a restart of qmaster."""
    task = "<JATASK:       1.>\n<JAT_status>128</JAT_status><JAT_task_number>1</JAT_task_number>\n</JATASK:       1.>"
    job = f"<element><JB_job_number>7</JB_job_number><JB_ja_tasks>\n{task}</JB_ja_tasks></element>"
    found = records.records(f"<detailed_job_info><djob_info>{job}</djob_info></detailed_job_info>")
    assert found["7"].tasks == {1: 128}

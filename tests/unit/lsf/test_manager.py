"""LSF as the daemon sees it, by its commands."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, JobState, SensorValue
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.lsf.manager import LAG_S, LsfManager
from tests.fakes.lsf.cluster import FakeLsf

NATIVES = {"fez": "fez", "ibm-x": "ibm_x"}
OPEN = [SensorValue("fez", 2, 0), SensorValue("ibm_x", 1, 0)]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["json", "text"])
def lsf(request: pytest.FixtureRequest, tmp_path: Path) -> FakeLsf:
    return FakeLsf(tmp_path / "lsf", request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def manager(lsf: FakeLsf, clock: Clock) -> LsfManager:
    return LsfManager(lsf.settings(), NATIVES, clock=clock)


ROW = {
    "JOBINDEX": "0", "STAT": "PEND", "QUEUE": "normal", "EXEC_HOST": "-", "PROJ_NAME": "p", "RUNTIMELIMIT": "-",
    "RESREQ": "rusage[qpu_fez=1]", "COMBINED_RESREQ": "-", "EFFECTIVE_RESREQ": "-", "PEND_REASON": "-",
}  # fmt: skip


def job_id(number: str, index: int | None = None) -> JobId:
    return JobId("lsf", "lab", number, index)


def test_a_cluster_needs_a_name() -> None:
    with pytest.raises(QtandemError, match="no cluster name"):
        LsfManager(ManagerSettings(), NATIVES)


# ---- sensors
async def test_a_value_that_is_on_its_way_is_no_failure_for_a_while(
    lsf: FakeLsf, manager: LsfManager, clock: Clock
) -> None:
    lsf.write(stuck={"qpu_fez": 0, "qpu_ibm_x": 1})
    assert (await manager.publish(OPEN)).confirmed == {"fez", "ibm_x"}
    clock.now += LAG_S + 1
    outcome = await manager.publish(OPEN)
    assert outcome.confirmed == {"ibm_x"}
    assert outcome.failed == {"fez": "qpu_fez is 0: does elim.qpu run?"}
    lsf.write(stuck={})
    assert (await manager.publish(OPEN)).confirmed == {"fez", "ibm_x"}


async def test_a_new_value_gets_its_own_time(lsf: FakeLsf, manager: LsfManager, clock: Clock) -> None:
    lsf.write(stuck={"qpu_fez": 5})
    await manager.publish([SensorValue("fez", 2, 0)])
    clock.now += LAG_S + 1
    assert (await manager.publish([SensorValue("fez", 2, 2)])).confirmed == {"fez"}


async def test_the_file_is_there_before_lsf_is_asked(lsf: FakeLsf, manager: LsfManager) -> None:
    lsf.cut()
    with pytest.raises(QtandemError, match="lsload"):
        await manager.publish(OPEN)
    assert lsf.sensors.read_text() == "fez 2\nibm_x 1\n"
    assert manager.open_slots == {"fez": 2, "ibm_x": 1}
    assert lsf.sensors.stat().st_mode & 0o777 == 0o644


async def test_a_file_that_was_lost_is_written_again(lsf: FakeLsf, manager: LsfManager) -> None:
    await manager.publish(OPEN)
    lsf.sensors.unlink()
    await manager.publish(OPEN)
    assert lsf.sensors.exists()


async def test_a_file_that_cannot_be_written_is_told(lsf: FakeLsf) -> None:
    manager = LsfManager(lsf.settings(sensors="/proc/nowhere/sensors.lsf"), NATIVES)
    with pytest.raises(QtandemError) as caught:
        await manager.publish(OPEN)
    assert caught.value.code == "manager-unreachable"


async def test_sensors_are_less_what_jobs_hold(lsf: FakeLsf, manager: LsfManager) -> None:
    await manager.publish(OPEN)
    number = lsf.submit("qpu_fez=1")
    lsf.become(number, "RUN")
    assert await manager.sensors() == {"fez": 1, "ibm_x": 1}


# ---- jobs
async def test_a_running_job_is_told_as_lsf_knows_it(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=2", host="2*c1:c2")
    lsf.become(number, "RUN")
    jobs = lsf.read()["jobs"]
    jobs[0]["host"] = "2*c1:c2"
    lsf.write(jobs=jobs)
    job = (await manager.jobs([job_id(number)]))[job_id(number)]
    assert job is not None
    assert (job.state, job.nodes, job.partition, job.account) == (JobState.RUNNING, ("c1", "c2"), "normal", "physics")
    assert (job.uid, job.user, job.grants) == (os.geteuid(), getpass.getuser(), (Grant("fez", 2),))


@pytest.mark.parametrize(
    ("stat", "state"),
    [
        ("PEND", JobState.PENDING), ("PSUSP", JobState.PENDING), ("RUN", JobState.RUNNING), ("UNKWN", JobState.RUNNING),
        ("USUSP", JobState.SUSPENDED), ("SSUSP", JobState.SUSPENDED), ("DONE", JobState.ENDED),
        ("EXIT", JobState.ENDED), ("ZOMBI", JobState.ENDED),
    ],
)  # fmt: skip
async def test_states(lsf: FakeLsf, manager: LsfManager, stat: str, state: JobState) -> None:
    number = lsf.submit("qpu_fez=1", stat=stat, host="" if stat.startswith("P") else "c1")
    job = (await manager.jobs([job_id(number)]))[job_id(number)]
    assert job is not None
    assert job.state is state


async def test_elements_of_an_array_are_jobs_of_their_own(lsf: FakeLsf, manager: LsfManager) -> None:
    for index in (1, 2, 3):
        lsf.submit("qpu_fez=1", number="9", index=index)
    lsf.become("9", "RUN", 2)
    found = await manager.jobs([job_id("9", 2), job_id("9", 3), job_id("9", 4), job_id("9")])
    states = {id.index: job.state if job else None for id, job in found.items()}
    assert states == {2: JobState.RUNNING, 3: JobState.PENDING, 4: None, None: JobState.RUNNING}
    assert sorted(job.id.index or 0 for job in await manager.pending()) == [1, 3]


async def test_a_job_has_one_id_alone(lsf: FakeLsf, manager: LsfManager) -> None:
    """By a second one its owner could have a second lease."""
    number = lsf.submit("qpu_fez=1")
    lsf.submit("qpu_fez=1", number="9", index=1)
    found = await manager.jobs([job_id(number), job_id(number, 0), job_id(number, 1), job_id("9"), job_id("9", 1)])
    assert {(id.job, id.index): job and job.whole for id, job in found.items()} == {
        (number, None): False, (number, 0): None, (number, 1): None, ("9", None): True, ("9", 1): False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "requirement",
    ["select[qpu_fez>=1]", "rusage[qpu_fez=1:duration=1]", "{rusage[qpu_fez=1]} || {select[qpu_fez>=1]}"],
)
async def test_what_lsf_does_not_keep_for_a_job_is_no_grant(
    lsf: FakeLsf, manager: LsfManager, requirement: str
) -> None:
    number = lsf.submit("qpu_fez=1", requirement=requirement)
    lsf.become(number, "RUN")
    job = (await manager.jobs([job_id(number)]))[job_id(number)]
    assert job is not None
    assert job.grants == ()


async def test_an_answer_on_one_job_tells_of_no_other(lsf: FakeLsf, manager: LsfManager) -> None:
    if lsf.read()["form"] != "json":
        pytest.skip("no JSON")
    other, mine = lsf.submit("qpu_fez=1"), lsf.submit("qpu_fez=1", user="mallory")
    row = json.dumps({**ROW, "JOBID": mine, "USER": "mallory"})[1:-1]
    # An LSF that escapes nothing, and a project that ends its own text.
    forged = json.dumps({**ROW, "JOBID": other, "USER": "root"})[:-1]
    text = f'{{"RECORDS": [{{{row}}}, {forged}}}]}}'
    answers = f"*' {other}') exec {lsf.bin}/real \"$@\" ;; *' {mine}') printf '%s' '{text}' ;; *) echo '{{' ;;"
    (lsf.bin / "bjobs").write_text(f'#!/bin/sh\ncase "$*" in {answers} esac\n')
    (lsf.bin / "real").write_text(lsf.script("bjobs"))
    (lsf.bin / "real").chmod(0o755)
    found = await manager.jobs([job_id(mine), job_id(other)])
    assert found[job_id(other)].user == getpass.getuser()  # type: ignore[union-attr]
    assert found[job_id(mine)].user == "mallory"  # type: ignore[union-attr]


async def test_a_reason_is_lsfs_own_word(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=1", reason="Job requirements for reserving resource (qpu_fez) not satisfied: 2 hosts")
    job = (await manager.jobs([job_id(number)]))[job_id(number)]
    assert job is not None
    assert job.reason == "Job requirements for reserving resource (qpu_fez) not satisfied: 2 hosts"


async def test_a_user_that_is_unknown_here_has_a_uid_of_nobody(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=1", user="nosuchuser")
    job = (await manager.jobs([job_id(number)]))[job_id(number)]
    assert job is not None
    assert job.uid == 2**32 - 2


async def test_two_thousand_jobs_are_asked_for_in_parts(lsf: FakeLsf, manager: LsfManager) -> None:
    ids = [job_id(str(number)) for number in range(1, 501)]
    assert set((await manager.jobs(ids)).values()) == {None}
    assert max(len(call) for call in lsf.said("bjobs")) < 210


# ---- what users word
HOSTILE = [
    'x>, User <root>, Project <admin>, Status <RUN>, Queue <q>, Command <', "a[7]", "x [2]",
    f"x>, User <{getpass.getuser()}>, Project <admin>, Status <PEND>, Queue <normal>, Command <",
    "a\nJob <1>, User <root>, Status <RUN>",
    "a\fb", "\u2028 1 root", "\r", '"', "\\", '","USER":"root"', "$(id)", "x" * 3000,
    "a\n1       root    RUN   normal     ctl         c1          x",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_name_makes_nobody_somebody_else(lsf: FakeLsf, manager: LsfManager, name: str) -> None:
    other = lsf.submit("qpu_fez=1")
    mine = lsf.submit("qpu_fez=1", name=name, project="p")
    found = await manager.jobs([job_id(mine), job_id(other)])
    for job in found.values():
        assert job is not None
        assert (job.user, job.state) == (getpass.getuser(), JobState.PENDING)
        assert job.account in ("physics", "p", None)
    assert found[job_id(mine)].account != "admin"  # type: ignore[union-attr]


async def test_a_requirement_that_breaks_the_json_hides_its_own_job_alone(lsf: FakeLsf, manager: LsfManager) -> None:
    if lsf.read()["form"] != "json":
        pytest.skip("no JSON")
    good, bad = lsf.submit("qpu_fez=1"), lsf.submit("qpu_fez=1")
    program = lsf.bin / "bjobs"
    # An LSF that escapes nothing: the answer with that job is no JSON.
    program.write_text(
        program.read_text().replace("exec ", "")
        + f'case "$*" in *json*) case "$* " in *" {bad} "*|*pend_reason" ") echo \'"\' ;; esac ;; esac\n'
    )
    found = await manager.jobs([job_id(good), job_id(bad)])
    assert found[job_id(good)] is not None
    assert found[job_id(bad)] is None
    assert [job.id for job in await manager.pending()] == [job_id(good)]
    more = [lsf.submit("qpu_fez=1") for _ in range(30)]
    before = len(lsf.said("bjobs"))
    assert len(await manager.pending()) == 1 + len(more)
    assert len(lsf.said("bjobs")) - before <= 14, "it costs few questions more, not one for each job of others"


# ---- hold and delay
async def test_a_delay_stops_the_job(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=1")
    await manager.delay(job_id(number), 60.0)
    assert lsf.job(number)["stat"] == "PSUSP"
    [job] = await manager.pending()
    assert (job.state, job.eligible_at) == (JobState.PENDING, 1060.0)
    await manager.delay(job_id(number), 0.0)


async def test_a_delay_lets_the_job_go_by_itself(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=1")
    await manager.delay(job_id(number), 0.1)
    async with asyncio.timeout(20):
        while lsf.job(number)["stat"] != "PEND":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    [job] = await manager.pending()
    assert job.eligible_at is None


async def test_a_delay_outlives_the_daemon(lsf: FakeLsf, manager: LsfManager, clock: Clock) -> None:
    number = lsf.submit("qpu_fez=1")
    await manager.delay(job_id(number), 60.0)
    again = LsfManager(lsf.settings(), NATIVES, clock=clock)
    [job] = await again.pending()
    assert job.eligible_at == 1060.0
    assert lsf.job(number)["stat"] == "PSUSP"
    clock.now += 61
    await again.pending()
    assert lsf.job(number)["stat"] == "PEND"


async def test_a_job_that_another_stopped_is_left_stopped(lsf: FakeLsf, manager: LsfManager, clock: Clock) -> None:
    number = lsf.submit("qpu_fez=1", stat="PSUSP")
    clock.now += 10_000
    await manager.pending()
    assert lsf.job(number)["stat"] == "PSUSP"


async def test_a_held_job_stays_with_a_comment(lsf: FakeLsf, manager: LsfManager, clock: Clock) -> None:
    number = lsf.submit("qpu_fez=1")
    await manager.delay(job_id(number), 5.0)
    await manager.hold(job_id(number), "qtandem: fez is\nclosed (refused 5 times)")
    clock.now += 10_000
    [job] = await LsfManager(lsf.settings(), NATIVES, clock=clock).pending()
    assert (job.comment, job.eligible_at) == ("qtandem: fez is\nclosed (refused 5 times)", None)
    assert lsf.job(number)["stat"] == "PSUSP"
    assert lsf.read()["posted"] == {number: "qtandem: fez is closed (refused 5 times)"}


async def test_a_job_that_was_resumed_is_paused_no_more(lsf: FakeLsf, manager: LsfManager) -> None:
    """By an administrator; on OpenLava also by its owner."""
    number = lsf.submit("qpu_fez=1")
    await manager.hold(job_id(number), "no")
    lsf.become(number, "PEND")
    [job] = await manager.pending()
    assert (job.comment, job.eligible_at) == ("", None)


async def test_a_job_that_has_started_again_is_held_when_it_waits(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=1")
    lsf.become(number, "RUN")
    with pytest.raises(QtandemError, match="when it waits") as caught:
        await manager.hold(job_id(number), "no")
    assert caught.value.retryable
    assert (lsf.said("bstop"), lsf.job(number)["stat"]) == ([], "RUN")
    lsf.become(number, "PEND")
    await manager.hold(job_id(number), "no")
    assert lsf.job(number)["stat"] == "PSUSP"


async def test_what_lsf_carries_out_later_is_asked_for_once_and_looked_after(
    lsf: FakeLsf, manager: LsfManager, clock: Clock
) -> None:
    """Said again and again, it would undo what an administrator says meanwhile."""
    number = lsf.submit("qpu_fez=1")
    lsf.write(under_way=True)
    await manager.hold(job_id(number), "no")
    await manager.delay(job_id(number), 60.0)
    assert lsf.said("bstop") == [[number]] * 2
    lsf.become(number, "PSUSP")
    clock.now += 61
    other = lsf.submit("qpu_fez=1")
    for _ in range(2):
        assert {job.id for job in await manager.pending()} == {job_id(number), job_id(other)}
        manager._forget_timer(job_id(number))
    assert lsf.job(number)["stat"] == "PSUSP"
    lsf.write(under_way=False)
    await manager.pending()
    assert lsf.job(number)["stat"] == "PEND"


async def test_an_element_of_an_array_is_stopped_alone(lsf: FakeLsf, manager: LsfManager) -> None:
    lsf.submit("qpu_fez=1", number="9", index=1)
    lsf.submit("qpu_fez=1", number="9", index=2)
    await manager.delay(job_id("9", 2), 60.0)
    assert [lsf.job("9", index)["stat"] for index in (1, 2)] == ["PEND", "PSUSP"]
    await manager.delay(job_id("9", 2), 0.0)
    assert lsf.job("9", 2)["stat"] == "PEND"


async def test_a_job_that_is_gone_is_let_go_without_a_word(lsf: FakeLsf, manager: LsfManager) -> None:
    number = lsf.submit("qpu_fez=1")
    await manager.delay(job_id(number), 60.0)
    lsf.become(number, "")
    await manager.delay(job_id(number), 0.0)
    await manager.hold(job_id(number), "no")
    assert await manager.pending() == []


async def test_pauses_of_jobs_that_are_gone_are_forgotten(lsf: FakeLsf, manager: LsfManager, clock: Clock) -> None:
    number = lsf.submit("qpu_fez=1")
    await manager.hold(job_id(number), "no")
    lsf.become(number, "")
    await manager.pending()
    assert json.loads(lsf.state_file.read_text()) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"lsf:lab:1": ["a", ""]}', "\0"])
async def test_a_file_of_pauses_that_cannot_be_read_is_none(lsf: FakeLsf, text: str) -> None:
    lsf.state_file.write_text(text)
    number = lsf.submit("qpu_fez=1")
    manager = LsfManager(lsf.settings(), NATIVES)
    [job] = await manager.pending()
    assert job.eligible_at is None
    await manager.delay(job_id(number), 60.0)
    assert lsf.state_file.stat().st_mode & 0o777 == 0o600


# ---- no answer
@pytest.mark.parametrize(
    "said",
    [
        "lsload: lim is down; try later", "Batch daemon: Batch system daemon not responding ... still trying",
        "Failed in LSF library call: Communication time out", "Cannot open lsf.conf file",
    ],
)  # fmt: skip
async def test_what_lsf_says_when_it_gives_no_answer(lsf: FakeLsf, manager: LsfManager, said: str) -> None:
    for program in ("bjobs", "lsload", "bhosts", "bstop"):
        (lsf.bin / program).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    calls: list[Any] = [manager.sensors(), manager.jobs([job_id("1")]), manager.pending(), manager.publish(OPEN)]
    for call in calls:
        with pytest.raises(QtandemError) as caught:
            await call
        assert caught.value.code == "manager-unreachable"

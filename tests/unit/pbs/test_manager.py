"""PBS's side of the daemon, over its commands and over libpbs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, JobState, SensorValue
from qtandem.core.processes import Process, start_child
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.pbs import child, records, rights
from qtandem.pbs.apart import Apart
from qtandem.pbs.manager import PbsManager, access
from qtandem.pbs.records import Record
from tests.fakes.pbs.complex import FakePbsComplex
from tests.fakes.pbs.driven import driven
from tests.fakes.pbs.standin import libpbs

NATIVES = {"fez": "fez", "ibm-x": "ibm_x"}


@pytest.fixture
def fake(tmp_path: Path) -> FakePbsComplex:
    made = FakePbsComplex(tmp_path / "pbs")
    with made.state() as state:
        state["resources"] |= {"qpu_fez": ["long", "qm"], "qpu_ibm_x": ["long", "qm"]}
    return made


@pytest.fixture
def manager(fake: FakePbsComplex) -> PbsManager:
    return PbsManager(ManagerSettings(cluster="lab", bin_dir=str(fake.bin)), NATIVES)


async def test_the_folder_that_somebody_stands_in_is_no_place_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken over')\n")
    monkeypatch.chdir(tmp_path)
    apart = Apart(child.COMMANDS, str(tmp_path), timeout_s=20.0)
    with pytest.raises(QtandemError, match=r"qstat .* cannot be started"):
        await apart.server()
    await apart.close()


def id_of(job: str, index: int | None = None) -> JobId:
    return JobId("pbs", "lab", job, index)


async def test_a_job_as_qstat_tells_it(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit(
        "7", "qpu_fez=2,matlab=1,walltime=01:00:10", Account_Name="physics", run_version=2, job_state="R",
        exec_host="c1/0*2+c2/1", interactive="True", Variable_List={"D": 1e5},
    )  # fmt: skip
    job = (await manager.jobs([id_of("7")]))[id_of("7")]
    assert job is not None
    assert (job.state, job.attempt, job.grants, job.nodes) == (JobState.RUNNING, 2, (Grant("fez", 2),), ("c1", "c2"))
    assert (job.uid, job.user, job.account, job.partition) == (0, "root", "physics", "workq")
    assert (job.time_limit_s, job.can_requeue) == (3610, False)


async def test_arrays_and_their_elements(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit("34[]", "qpu_fez=1", job_state="B")
    fake.submit("34[2]", "qpu_fez=1", job_state="R", run_version=1, exec_host="c1/0")
    found = await manager.jobs([id_of("34"), id_of("34", 2), id_of("34", 9), id_of("35")])
    assert {str(id): job.state if job else None for id, job in found.items()} == {
        "pbs:lab:34": JobState.RUNNING, "pbs:lab:34_2": JobState.RUNNING, "pbs:lab:34_9": None, "pbs:lab:35": None,
    }  # fmt: skip
    assert [job.whole for job in found.values() if job] == [True, False]


async def test_grants_are_in_the_order_of_the_request(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit("7", "qpu_fez=1,qpu_ibm_x=2,qpu=ibm-x:2+fez")
    job = (await manager.jobs([id_of("7")]))[id_of("7")]
    assert job is not None
    assert job.grants == (Grant("ibm-x", 2), Grant("fez", 1))


async def test_what_runs_on_our_resources(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit("7", "qpu_fez=1")
    fake.submit("8", "matlab=1", job_state="R")
    fake.submit("34[]", "qpu_fez=1", job_state="B")
    fake.submit("34[2]", "qpu_ibm_x=1", job_state="R", run_version=1, exec_host="c1/0")
    assert [str(job.id) for job in await manager.running()] == ["pbs:lab:34_2"]
    fake.run("7")
    assert {(str(job.id), job.attempt) for job in await manager.running()} == {("pbs:lab:34_2", 1), ("pbs:lab:7", 1)}


async def test_what_belongs_to_others_is_not_asked_for(manager: PbsManager, fake: FakePbsComplex) -> None:
    other = JobId("slurm", "lab", "7")
    assert await manager.jobs([other]) == {other: None}
    assert fake.calls == []


async def test_a_user_that_this_host_does_not_know(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit("7", "qpu_fez=1", Job_Owner="no-such-user-here@login")
    job = (await manager.jobs([id_of("7")]))[id_of("7")]
    assert job is not None
    assert job.uid == records.NO_UID


async def test_a_hold_says_why_and_requeues_what_runs(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit("7", "qpu_fez=1")
    fake.run("7")
    await manager.hold(id_of("7"), 'qtandem: fez is closed, "calibrating";\nthe job is held')
    job = fake.job("7")
    assert (job["job_state"], job["Hold_Types"]) == ("H", "s")
    assert job["comment"] == "qtandem: fez is closed, 'calibrating'; the job is held"
    await manager.hold(id_of("99"), "gone")


@pytest.mark.parametrize("text", ["\x1b[2Jcleared\x00", "zero\u200bwidth", "half \ud800 a pair", "long " * 999])
def test_no_words_of_a_vendor_keep_a_job_from_being_held(text: str) -> None:
    assert child.CALLS["comment"]["text"](records.comment(text))


async def test_a_comment_that_pbs_refuses_does_not_leave_the_job_running(
    manager: PbsManager, fake: FakePbsComplex
) -> None:
    fake.submit("7", "qpu_fez=1")
    fake.run("7")
    (fake.bin / "qalter").write_text("#!/bin/sh\necho 'qalter: no' >&2; exit 1\n")
    with pytest.raises(QtandemError, match="qalter"):
        await manager.hold(id_of("7"), "why")
    assert (fake.job("7")["job_state"], fake.job("7")["Hold_Types"]) == ("H", "s")


async def test_a_delay_is_the_jobs_own_execution_time(manager: PbsManager, fake: FakePbsComplex) -> None:
    fake.submit("7", "qpu_fez=1")
    await manager.delay(id_of("7"), 60.0)
    job = (await manager.jobs([id_of("7")]))[id_of("7")]
    assert fake.job("7")["job_state"] == "W"
    assert job is not None
    assert job.eligible_at is not None
    assert 59 <= job.eligible_at - time.time() <= 62
    await manager.delay(id_of("7", 3), 60.0)
    # Its hook had put it off for as long: a clock of PBS that ran out later would find it where it may be by then.
    for seconds, moved in ((59.0, 0), (30.0, 0), (0.0, 0), (90.0, 30)):
        await manager.delay(id_of("7"), seconds)
        later = (await manager.jobs([id_of("7")]))[id_of("7")]
        assert later is not None
        assert later.eligible_at is not None
        assert abs(later.eligible_at - job.eligible_at - moved) <= 2, seconds


async def test_a_kick_respects_a_site_that_stopped_scheduling(manager: PbsManager, fake: FakePbsComplex) -> None:
    await manager.kick(["fez"])
    with fake.state() as state:
        assert len(state["kicks"]) == 1
        state["scheduling"] = "False"
    await manager.kick(["fez"])
    with fake.state() as state:
        assert (len(state["kicks"]), state["scheduling"]) == (1, "False")


async def test_pbs_counts_its_own_jobs(manager: PbsManager, fake: FakePbsComplex) -> None:
    await manager.publish([SensorValue("fez", 2, 0)])
    fake.submit("7", "qpu_fez=1")
    fake.run("7")
    assert await manager.sensors() == {"fez": 1}
    await manager.publish([SensorValue("fez", 2, 2)])
    assert await manager.sensors() == {"fez": 0}


async def test_a_new_resource_among_known_ones_is_made(fake: FakePbsComplex) -> None:
    settings = ManagerSettings(cluster="lab", bin_dir=str(fake.bin))
    manager = PbsManager(settings, NATIVES | {"new": "new"})
    values = [SensorValue("fez", 2, 0), SensorValue("new", 1, 0)]
    assert (await manager.publish(values)).confirmed == {"fez", "new"}
    with fake.state() as state:
        assert state["resources"]["qpu_new"] == ["long", "qm"]


async def test_a_resource_that_was_taken_away_with_its_qpu_is_not_made_again(
    manager: PbsManager, fake: FakePbsComplex
) -> None:
    values = [SensorValue("fez", 2, 0), SensorValue("old", 1, 1)]
    assert (await manager.publish(values)).confirmed == {"fez", "old"}
    with fake.state() as state:
        assert "qpu_old" not in state["resources"]
        state["resources"]["qpu_old"] = ["long", "qm"]
        state["available"]["qpu_old"] = 1
    assert (await manager.publish(values)).confirmed == {"fez", "old"}
    with fake.state() as state:
        assert state["available"]["qpu_old"] == 0


async def test_with_scripts_nothing_is_written(fake: FakePbsComplex) -> None:
    settings = ManagerSettings(cluster="lab", bin_dir=str(fake.bin), options={"sensor": "script"})
    manager = PbsManager(settings, NATIVES)
    assert (await manager.publish([SensorValue("fez", 2, 0)])).confirmed == {"fez"}
    assert fake.calls == []


def test_a_cluster_without_a_name_is_refused() -> None:
    with pytest.raises(QtandemError, match="no cluster name"):
        PbsManager(ManagerSettings(cluster="a b"), {})


def test_odd_texts_of_pbs() -> None:
    assert records.moment("Tue Apr  7 10:00:00 2026") == time.mktime((2026, 4, 7, 10, 0, 0, 0, 97, -1))
    assert (records.moment("0"), records.moment("soon"), records.seconds("x"), records.seconds("90")) == (
        None, None, None, 90,
    )  # fmt: skip
    assert records.job(Record("nonsense!", {}), "lab", {}, {}) is None
    assert records.job_id("12[].a.b", "lab") == id_of("12")
    assert records.read_request("qpu_fez=0,qpu_fez=2,xqpu_fez=1,qpu_fez=,qpu_fez=1", {}) == (Grant("fez", 3),)


# ---- in a process apart
@pytest.fixture
async def library() -> AsyncIterator[Apart]:
    made = Apart(child.LIBRARY, str(libpbs()), timeout_s=10.0)
    yield made
    await made.close()


def test_libpbs_is_taken_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libpbs.so.0").touch()
    options = {"exec": str(tmp_path)}
    assert isinstance(access(ManagerSettings(options=options)), Apart)
    assert not isinstance(access(ManagerSettings(options={**options, "access": "commands"})), Apart)


async def test_a_child_that_dies_is_replaced(library: Apart) -> None:
    await library.server()
    assert library._child is not None
    os.kill(library._child.pid, signal.SIGKILL)
    # It may be seen to be gone before the next call, or by it.
    with contextlib.suppress(QtandemError):
        await library.server()
    assert (await library.server()).name == "pbs"


async def test_one_that_is_closed_starts_no_process_any_more(library: Apart) -> None:
    await library.server()
    child = library._child
    assert child is not None
    await library.close()
    assert child.returncode is not None
    with pytest.raises(QtandemError) as caught:
        await library.server()
    assert (caught.value.code, library._child) == ("manager-unreachable", None)


async def test_a_server_that_hangs_costs_a_child_and_the_deadline(library: Apart) -> None:
    await library.server()
    first, library._timeout_s = library._child, 0.3
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    with pytest.raises(QtandemError) as caught:
        await library.server()
    assert (caught.value.code, first.returncode) == ("manager-unreachable", -signal.SIGKILL)
    library._timeout_s = 10.0
    assert (await library.server()).name == "pbs"


async def test_a_refusal_has_pbs_own_words(library: Apart) -> None:
    with pytest.raises(QtandemError) as caught:
        await library.hold("999")
    assert caught.value.code == "command-failed"
    assert "Unknown Job Id" in caught.value.message
    assert "15001" in (caught.value.cause or "")


async def test_a_library_that_cannot_be_loaded_means_no_answer(tmp_path: Path) -> None:
    (tmp_path / "libpbs.so.0").write_text("not a library")
    broken = Apart(child.LIBRARY, str(tmp_path / "libpbs.so.0"), timeout_s=10.0)
    with pytest.raises(QtandemError) as caught:
        await broken.server()
    assert caught.value.code == "manager-unreachable"


async def test_an_answer_of_any_length_arrives() -> None:
    port = driven()
    try:
        for _ in range(40):
            pairs = [["Resource_List", "qpu_fez", "1"], ["comment", "", "x" * 40_000]]
            await port.call("submit", attributes=pairs)
        assert len(await port.asking(["qpu_fez"], "Q")) == 40
    finally:
        await port.close()


async def test_the_launcher_starts_what_roots_file_names(fake: FakePbsComplex) -> None:
    """Commands too go by the process apart then: it checks what the daemon wants, and no pattern of arguments could."""
    started: list[list[str]] = []

    async def launch(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> Process:
        started.append(list(argv))
        assert (argv[0], dict(env)) == ("qtandem-pbs", {})
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ["PATH"]}
        return await start_child([sys.executable, *argv[2:]], path, cwd)

    settings = ManagerSettings(cluster="lab", bin_dir=str(fake.bin))
    manager = PbsManager(settings, NATIVES, start=launch)
    try:
        assert (await manager.publish([SensorValue("fez", 2, 0)])).confirmed == {"fez"}
        fake.submit("7", "qpu_fez=1")
        assert [job.id for job in await manager.pending()] == [id_of("7")]
        fake.down()
        with pytest.raises(QtandemError) as caught:
            await manager.pending()
        assert caught.value.code == "manager-unreachable"
    finally:
        await manager.close()
    [argv] = started
    assert argv in [["qtandem-pbs", *line] for line in rights.commands(settings).allow["qtandem-pbs"]]


@pytest.mark.parametrize(
    "call",
    [
        None, [], {}, {"call": "server"}, {"call": "server", "with": {"x": 1}}, {"call": "close", "with": {}},
        {"call": "_connected", "with": {}}, {"call": "submit", "with": {}}, {"call": ["server"], "with": {}},
        {"call": "hold", "with": {"id": "7; qterm"}}, {"call": "hold", "with": {"id": ""}},
        {"call": "hold", "with": {"id": "-h"}}, {"call": "jobs", "with": {"ids": "7"}},
        {"call": "available", "with": {"values": {"qpu_a = 1, managers += eve@*\nset server x": 1}, "missing": []}},
        {"call": "available", "with": {"values": {"qpu_a": "1, managers = eve@*"}, "missing": []}},
        {"call": "available", "with": {"values": {"qpu_a": True}, "missing": []}},
        {"call": "available", "with": {"values": {"ncpus": 1}, "missing": []}},
        {"call": "available", "with": {"values": {}, "missing": ["qpu_a type=long\ndelete hook x"]}},
        {"call": "comment", "with": {"id": "7", "text": "a\nset server x"}},
        {"call": "eligible", "with": {"id": "7", "at": "now"}},
        {"call": "asking", "with": {"resources": ["ncpus"], "states": "Q", "elements": False}},
    ],
)  # fmt: skip
async def test_the_process_does_no_more_than_the_daemon_needs(call: Any) -> None:
    answer = await child.answer(Refusing(), call)
    assert answer["code"] == "bad-request"


class Refusing:
    """A port that must not be reached."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")

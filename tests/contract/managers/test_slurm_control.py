"""Nodes, jobs, hold and release of Slurm: the same by its commands and by pyslurm."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.settings import ManagerSettings
from qtandem.slurm import control as chosen
from qtandem.slurm.commands import Client
from qtandem.slurm.control import ByBindings, ByCommands, Control, NodeView, Preferring, choose
from tests.fakes.slurm.cluster import FakeSlurm

# pyslurm as far as we call it, over the fake's state.
MODULE = """
import os
from types import SimpleNamespace
from tests.fakes.slurm import program
from tests.fakes.slurm.cluster import FakeSlurm

__version__ = {version!r}
if {broken!r}:
    raise RuntimeError("Slurm version mismatch: requires Slurm 25.11, found 24.11")
fake = FakeSlurm.at({folder!r})

class RPCError(RuntimeError):
    pass

def answering():
    if {crash!r}:
        os.abort()
    with fake.state() as state:
        if "slurmctld" in state["down"]:
            raise RPCError("Unable to contact slurm controller (connect failure)")

class Job:
    def __init__(self, number):
        self.number = number
    def release(self):
        self._set("release")
    def _set(self, action):
        answering()
        with fake.state() as state:
            found = [job for job in state["jobs"] if job["job_id"] == self.number]
            if not found:
                raise RPCError("Invalid job id specified")
            program.control(found[0], action)

def nodes():
    answering()
    with fake.state() as state:
        return {{
            node["name"]: SimpleNamespace(
                state="+".join(node["state"]), available_features=node["features"], partitions=node["partitions"]
            )
            for node in state["nodes"]
        }}

def jobs():
    answering()
    with fake.state() as state:
        return {{
            job["job_id"]: SimpleNamespace(
                state=job["job_state"][0],
                user_id=job["user_id"],
                licenses=[part for part in job["licenses"].split(",") if part],
                priority=program.value_of(job["priority"]),
            )
            for job in state["jobs"]
        }}

if not {old!r}:
    Nodes, Jobs = SimpleNamespace(load=nodes), SimpleNamespace(load=jobs)
"""
ROOT = Path(__file__).parents[3]


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture
def settings(fake: FakeSlurm) -> ManagerSettings:
    return ManagerSettings(cluster="lab", bin_dir=str(fake.bin))


@pytest.fixture
def pyslurm(fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyslurm that fits, as the processes of the bindings import it."""
    place = tmp_path / "modules"
    place.mkdir()
    for entry in (str(ROOT), str(place)):
        monkeypatch.syspath_prepend(entry)
    _write(place, fake)
    return place


def _write(place: Path, fake: FakeSlurm, version: str = "24.11.0", **what: bool) -> None:
    flags = {name: what.get(name, False) for name in ("broken", "crash", "old")}
    (place / "pyslurm.py").write_text(MODULE.format(version=version, folder=str(fake.folder), **flags))
    # Two versions of one second and size would pass for one.
    shutil.rmtree(place / "__pycache__", ignore_errors=True)
    importlib.invalidate_caches()


@pytest.fixture(params=["commands", "pyslurm's form"])
def control(request: pytest.FixtureRequest, settings: ManagerSettings, pyslurm: Path) -> Control:
    return ByCommands(Client(settings)) if request.param == "commands" else ByBindings(settings)


async def test_the_folder_that_somebody_stands_in_is_no_place_for_modules(
    settings: ManagerSettings, pyslurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin runs the doctor as root, be it in /tmp."""
    (tmp_path / "json.py").write_text("raise SystemExit('taken over')\n")
    monkeypatch.chdir(tmp_path)
    assert await ByBindings(settings).fits("24.11") == ""


async def test_nodes(control: Control) -> None:
    assert await control.nodes() == {
        "c1": NodeView("c1", frozenset({"IDLE"}), frozenset({"qpu", "fast"}), frozenset({"main"})),
        "c2": NodeView("c2", frozenset({"MIXED", "DRAIN"}), frozenset(), frozenset({"main", "big"})),
    }


async def test_jobs_hold_and_release(control: Control, fake: FakeSlurm) -> None:
    fake.submit(1, "fez@qtandem:1,matlab:2")
    fake.submit(2)
    seen = await control.jobs()
    assert sorted(seen) == [1, 2]
    assert (seen[1].state, seen[1].user_id, seen[1].licences) == ("PENDING", 1000, "fez@qtandem:1,matlab:2")
    await control.hold(1)
    assert [(await control.jobs())[number].held for number in (1, 2)] == [True, False]
    await control.release(1)
    assert not (await control.jobs())[1].held


async def test_failures_are_told_apart(control: Control, fake: FakeSlurm) -> None:
    with pytest.raises(QtandemError) as caught:
        await control.hold(99)
    assert caught.value.code == "command-failed"
    fake.down("slurmctld")
    for call in (control.nodes, control.jobs):
        with pytest.raises(QtandemError) as caught:
            await call()
        assert caught.value.code == "manager-unreachable"


async def test_pyslurm_is_used_only_where_its_version_fits(
    settings: ManagerSettings, fake: FakeSlurm, pyslurm: Path
) -> None:
    assert isinstance((await choose(settings))[0], Preferring)
    for what, words in (
        ({"version": "25.11.2"}, "25.11.2 is not for Slurm 24.11"),
        ({"old": True}, "old form"),
        ({"broken": True}, "version mismatch"),
    ):
        _write(pyslurm, fake, **what)  # type: ignore[arg-type]
        control, reason = await choose(settings)
        assert isinstance(control, ByCommands)
        assert words in reason


async def test_a_host_without_it_says_so(settings: ManagerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "installed", lambda: False)
    control, reason = await choose(settings)
    assert isinstance(control, ByCommands)
    assert reason == "pyslurm is not installed"


async def test_the_commands_do_it_where_pyslurm_crashes(
    settings: ManagerSettings, fake: FakeSlurm, pyslurm: Path
) -> None:
    control, lack = await choose(settings)
    assert lack == ""
    before = len(fake.calls_of("scontrol"))
    assert len(await control.nodes()) == 2
    assert len(fake.calls_of("scontrol")) == before
    _write(pyslurm, fake, crash=True)
    fake.submit(7)
    assert (len(await control.nodes()), list(await control.jobs())) == (2, [7])
    await control.hold(7)
    await control.release(7)
    assert [call[0] for call in fake.calls_of("scontrol")[before:]] == ["show", "show", "uhold", "release"]


async def test_the_real_pyslurm_shows_and_does_what_the_commands_do() -> None:
    """On a host of a cluster; QTANDEM_PYSLURM_JOB names a pending job that may be held and released."""
    settings = ManagerSettings(cluster="any")
    try:
        used, lack = await choose(settings)
    except QtandemError as error:
        used, lack = None, error.message
    if lack:
        pytest.skip(f"no pyslurm that fits: {lack}")
    assert isinstance(used, Preferring)
    ours, theirs = ByCommands(Client(settings)), ByBindings(settings)
    assert await theirs.nodes() == await ours.nodes()
    assert await theirs.jobs() == await ours.jobs()
    job = int(os.environ.get("QTANDEM_PYSLURM_JOB") or 0)
    if job:
        for first, second in ((theirs, ours), (ours, theirs)):
            await first.hold(job)
            assert [(await each.jobs())[job].held for each in (ours, theirs)] == [True, True]
            await second.release(job)
            assert [(await each.jobs())[job].held for each in (ours, theirs)] == [False, False]

"""Nodes, jobs, hold and release of Slurm: the same by its commands and by pyslurm."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.settings import ManagerSettings
from qtandem.slurm.control import ByBindings, ByCommands, Control, NodeView, bindings, choose
from tests.fakes.slurm import program
from tests.fakes.slurm.cluster import FakeSlurm


def _module(fake: FakeSlurm) -> Any:
    """pyslurm 25.11.2 as far as we call it, over the fake's state."""

    class RPCError(RuntimeError):
        pass

    def answering() -> None:
        with fake.state() as state:
            if "slurmctld" in state["down"]:
                raise RPCError("Unable to contact slurm controller (connect failure)")

    class Job:
        def __init__(self, number: int) -> None:
            self.number = number

        def hold(self, mode: str | None = None) -> None:
            self._set({"user": "uhold"}[mode or "admin"])

        def release(self) -> None:
            self._set("release")

        def _set(self, action: str) -> None:
            answering()
            with fake.state() as state:
                found = [job for job in state["jobs"] if job["job_id"] == self.number]
                if not found:
                    raise RPCError("Invalid job id specified")
                program.control(found[0], action)

    def nodes() -> dict[str, Any]:
        answering()
        with fake.state() as state:
            return {
                node["name"]: SimpleNamespace(
                    state="+".join(node["state"]), available_features=node["features"], partitions=node["partitions"]
                )
                for node in state["nodes"]
            }

    def jobs() -> dict[int, Any]:
        answering()
        with fake.state() as state:
            return {
                job["job_id"]: SimpleNamespace(
                    state=job["job_state"][0],
                    user_id=job["user_id"],
                    licenses=[part for part in job["licenses"].split(",") if part],
                    priority=program.value_of(job["priority"]),
                )
                for job in state["jobs"]
            }

    loads = {name: SimpleNamespace(load=load) for name, load in (("Nodes", nodes), ("Jobs", jobs))}
    return SimpleNamespace(**loads, Job=Job, RPCError=RPCError, __version__="24.11.0")


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture
def settings(fake: FakeSlurm) -> ManagerSettings:
    return ManagerSettings(cluster="lab", bin_dir=str(fake.bin))


@pytest.fixture(params=["commands", "pyslurm's form"])
def control(request: pytest.FixtureRequest, fake: FakeSlurm, settings: ManagerSettings) -> Control:
    return ByCommands(settings) if request.param == "commands" else ByBindings(_module(fake))


def test_nodes(control: Control) -> None:
    assert control.nodes() == {
        "c1": NodeView("c1", frozenset({"IDLE"}), frozenset({"qpu", "fast"}), frozenset({"main"})),
        "c2": NodeView("c2", frozenset({"MIXED", "DRAIN"}), frozenset(), frozenset({"main", "big"})),
    }


def test_jobs_hold_and_release(control: Control, fake: FakeSlurm) -> None:
    fake.submit(1, "fez@qtandem:1,matlab:2")
    fake.submit(2)
    seen = control.jobs()
    assert sorted(seen) == [1, 2]
    assert (seen[1].state, seen[1].user_id, seen[1].licences) == ("PENDING", 1000, "fez@qtandem:1,matlab:2")
    control.hold(1)
    assert (control.jobs()[1].held, control.jobs()[2].held) == (True, False)
    control.release(1)
    assert not control.jobs()[1].held


def test_failures_are_told_apart(control: Control, fake: FakeSlurm) -> None:
    with pytest.raises(QtandemError) as caught:
        control.hold(99)
    assert caught.value.code == "command-failed"
    fake.down("slurmctld")
    for call in (control.nodes, control.jobs):
        with pytest.raises(QtandemError) as caught:
            call()
        assert caught.value.code == "manager-unreachable"


def test_pyslurm_is_used_only_where_its_version_fits(
    settings: ManagerSettings, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module(fake)
    monkeypatch.setattr(importlib, "import_module", lambda _: module)
    assert isinstance(choose(settings)[0], ByBindings)
    module.__version__ = "25.11.2"
    control, reason = choose(settings)
    assert isinstance(control, ByCommands)
    assert "25.11.2 is not for Slurm 24.11" in reason
    del module.Nodes
    assert "old form" in choose(settings)[1]

    def mismatch(_: str) -> None:
        raise RuntimeError("Slurm version mismatch: requires Slurm 25.11, found 24.11")

    monkeypatch.setattr(importlib, "import_module", mismatch)
    assert "version mismatch" in choose(settings)[1]


def test_the_real_pyslurm_shows_what_the_commands_show() -> None:
    settings = ManagerSettings(cluster="any")
    try:
        module, lack = bindings(settings)
    except QtandemError as error:
        module, lack = None, error.message
    if module is None:
        pytest.skip(f"no pyslurm that fits: {lack}")
    ours, theirs = ByCommands(settings), ByBindings(module)
    assert theirs.nodes() == ours.nodes()
    assert theirs.jobs() == ours.jobs()

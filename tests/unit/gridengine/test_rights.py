"""What the daemon may have the launcher start of Grid Engine's commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import SensorValue
from qtandem.core.processes import Process, start_child
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.daemons.launchplan import Program
from qtandem.gridengine import define, rights
from qtandem.gridengine.manager import GridEngineManager
from tests.unit.gridengine.conftest import NATIVES


@pytest.fixture
def programs(settings: ManagerSettings) -> dict[str, Program]:
    found = rights.commands(settings)
    return {name: Program(Path(path), tuple(map(tuple, found.allow[name]))) for name, path in found.paths.items()}


class Launch:
    """Starts what the launcher would, and keeps what was typed."""

    def __init__(self) -> None:
        self.typed: list[list[str]] = []

    async def __call__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> Process:
        self.typed.append(list(argv))
        if Path(argv[0]).name != define.PROGRAM:
            return await start_child(argv, env, cwd)
        # The source tree is no installed package.
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return await start_child([sys.executable, *argv[2:]], {**env, **path}, cwd)


async def test_each_command_of_the_manager_is_permitted(
    cell: Any, settings: ManagerSettings, programs: dict[str, Program]
) -> None:
    launch = Launch()
    manager = GridEngineManager(settings, NATIVES, start=launch)
    number, other = cell.submit("qpu_fez=1"), cell.submit("qpu_ibm_x=1")
    cell.become(other, "r")
    waits, runs = (JobId("gridengine", "lab", one) for one in (number, other))
    calls: dict[str, list[tuple[object, ...]]] = {
        "publish": [([SensorValue("fez", 2, 0), SensorValue("ibm_x", 1, 0)],), ([SensorValue("fez", 0, 2)],)],
        "sensors": [()],
        "kick": [(["fez"],)],
        "pending": [()],
        "running": [()],
        "jobs": [([waits, runs],)],
        "delay": [(waits, 30), (waits, 0)],
        "hold": [(waits, "it's the fault of\nnobody, really"), (runs, "x")],
        "mark": [(runs, ["l1", "l2"])],
    }
    methods = {name for name, method in vars(GridEngineManager).items() if iscoroutinefunction(method)}
    assert calls.keys() == {name for name in methods if not name.startswith("_")}
    for name, each in calls.items():
        for arguments in each:
            await getattr(manager, name)(*arguments)
    assert {Path(argv[0]).name for argv in launch.typed} == programs.keys()
    for argv in launch.typed:
        assert programs[Path(argv[0]).name].permits(argv[1:]), argv
    assert {"qpu", "qpu_slots", "qpu_fez", "qpu_queue_ibm_x"} <= set(cell.read()["complexes"])


@pytest.mark.parametrize(
    "bad",
    [
        ["qconf", "-kej"],
        ["qconf", "-Mc", "/run/qtandem/complexes.x"],
        ["qconf", "-mattr", "exechost", "complex_values", "slots=0", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_fez=0,slots=0", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_fez=0 slots=0", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_fez=0\nslots=0", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_fez=1\n", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_fez=-1", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_fez=1", "c1"],
        ["qmod", "-rj", "*"],
        ["qmod", "-rj", "1,2"],
        ["qmod", "-rj", "all.q"],
        ["qalter", "-h", "o", "-ac", "qtandem=x", "*"],
        ["qalter", "-h", "O", "-ac", "qtandem=x", "1"],
        ["qalter", "-h", "s", "-ac", "qtandem_until=1", "-clear"],
        ["qtandem-complexes", "-c", "print()"],
        ["qtandem-complexes", "-I", "-m", "qtandem.gridengine.manager", "", "fez"],
        ["qtandem-complexes", "-I", "-m", "qtandem.gridengine.define", "/tmp", "fez"],
        ["qtandem-complexes", "-I", "-m", "qtandem.gridengine.define", "", "fez INT <= YES NO 0 0\nslots"],
    ],
    ids=" ".join,
)
def test_nothing_else_is(programs: dict[str, Program], bad: list[str]) -> None:
    assert not programs[bad[0]].permits(bad[1:])


def test_complexes_are_added_and_all_others_left_as_they_are(cell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = cell.read()["complexes"]
    assert define.main([str(cell.bin_dir), "fez,x"]) == 0
    after = cell.read()["complexes"]
    assert after[: len(before)] == before
    assert after[len(before) :] == [
        "qpu", "qpu_slots", "qpu_fez", "qpu_queue_fez", "qpu_wait_fez", "qpu_x", "qpu_queue_x", "qpu_wait_x",
    ]  # fmt: skip
    assert define.main([str(cell.bin_dir), "fez,x"]) == 0
    assert len(cell.said("qconf")) == 3, "nothing to add, nothing written"
    assert define.main([str(cell.bin_dir), "fez,slots INT"]) == 2
    cell.write({**cell.read(), "down": True})
    assert define.main([str(cell.bin_dir), "late"]) == 1
    assert "qmaster" in capsys.readouterr().err


async def test_a_qmaster_that_is_down_is_told_from_a_refusal(cell: Any, settings: ManagerSettings) -> None:
    manager = GridEngineManager(settings, NATIVES, start=Launch())
    cell.write({**cell.read(), "down": True})
    with pytest.raises(QtandemError) as caught:
        await manager._define(["fez"])
    assert caught.value.code == "manager-unreachable"


def test_a_folder_of_commands_that_is_not_the_systems_is_in_the_path(
    monkeypatch: pytest.MonkeyPatch, cell: Any
) -> None:
    monkeypatch.setenv("PATH", f"{cell.bin_dir}:/usr/bin:/bin")
    found = rights.commands(ManagerSettings(cluster="lab"))
    assert found.environment["PATH"] == f"{cell.bin_dir}:/usr/bin:/bin"
    assert found.paths["qconf"] == f"{cell.bin_dir}/qconf"

"""The launcher permits each command that the manager types, and root's file says so as the launcher reads it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from qtandem.core import accounts
from qtandem.core.installing import ChangeState, HostFiles, run_steps
from qtandem.core.managers import Grant, SensorValue
from qtandem.core.processes import Process, start_child
from qtandem.core.runs import JobId
from qtandem.core.settings import DaemonSettings, ManagerSettings
from qtandem.daemons.launchplan import Program
from qtandem.slurm import rights
from qtandem.slurm.manager import SlurmManager
from tests.fakes.slurm.cluster import FakeSlurm


@pytest.fixture
def settings(tmp_path):
    fake = FakeSlurm(tmp_path / "slurm")
    for number in (1, 2):
        fake.submit(number, "fez@qtandem:1")
    return ManagerSettings(cluster="lab", bin_dir=str(fake.bin), options={"conf": "/etc/other.conf"})


async def test_each_command_of_the_manager_is_permitted_and_others_are_not(settings):
    commands = rights.commands(settings)
    programs = {
        name: Program(Path(path), tuple(map(tuple, commands.allow[name]))) for name, path in commands.paths.items()
    }
    typed: list[list[str]] = []

    async def start(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> Process:
        typed.append(list(argv))
        assert env.items() >= dict(commands.environment).items()
        return await start_child(argv, env, cwd)

    manager = SlurmManager(settings, {"fez": "fez"}, start=start)
    job = JobId("slurm", "lab", "1")
    calls: dict[str, list[tuple[object, ...]]] = {
        "publish": [([SensorValue("fez", 1, closed)],) for closed in (1, 0)] + [([SensorValue("fez", 3, 1)],)],
        "sensors": [()],
        "kick": [(["fez"],)],
        "pending": [()],
        "jobs": [([job],)],
        "delay": [(job, 30), (job, 0)],
        "move": [(job, [Grant("fez", 2)])],
        "hold": [(job, "it's the fault of\nnobody")],
    }
    methods = {name for name, method in vars(SlurmManager).items() if iscoroutinefunction(method)}
    assert calls.keys() == {name for name in methods if not name.startswith("_")}
    for name, each in calls.items():
        for arguments in each:
            await getattr(manager, name)(*arguments)
    words = {word for argv in typed for word in argv}
    assert {"add", "modify", "update", "uhold", "show", "jobid=1"} <= words
    assert any(word.startswith("licenses=") for word in words)
    for argv in typed:
        assert programs[Path(argv[0]).name].permits(argv[1:]), argv
    for bad in (
        ["scontrol", "shutdown"],
        ["scontrol", "update", "partitionname=main", "state=down"],
        ["scontrol", "update", "jobid=1", "comment=x", "priority=9"],
        ["scontrol", "-o", "show", "lic", "all"],
        ["sacctmgr", "-i", "add", "user", "mallory", "adminlevel=operator"],
        ["sacctmgr", "-i", "modify", "resource", "where", "name=x", "server=flex", "set", "lastconsumed=0"],
        ["sacctmgr", "dump", "lab", "file=/tmp/x"],
    ):
        assert not programs[bad[0]].permits(bad[1:]), bad


def test_the_section_is_written_kept_and_asked_for_in_a_file_of_the_sites_own(tmp_path, settings):
    daemon = DaemonSettings(launcher="/run/x.sock", launcher_config=tmp_path / "launcher.toml")
    commands, files = rights.commands(settings), HostFiles(tmp_path / "manifest.json")
    (made,) = run_steps([accounts.step(daemon, commands, files)])
    assert made.state is ChangeState.DONE
    written = tomllib.loads(daemon.launcher_config.read_text())
    assert written == {"version": 1, "managers": {"slurm": commands.section()}}
    assert written["managers"]["slurm"]["environment"]["SLURM_CONF"] == "/etc/other.conf"
    assert accounts.step(daemon, commands, files).change.state is ChangeState.DONE

    daemon.launcher_config.write_text('user = "quantum"\n')
    change = accounts.step(daemon, commands, files).change
    assert change.state is ChangeState.MANUAL
    assert commands.text() in change.detail
    daemon.launcher_config.write_text(f'user = "quantum"\n{commands.text()}')
    assert accounts.step(daemon, commands, files).change.state is ChangeState.DONE


def test_the_doctor_names_what_is_missing_of_the_split(tmp_path, settings, monkeypatch):
    commands = rights.commands(settings)
    (one,) = accounts.checks(DaemonSettings(), commands)
    assert one.ok is None
    own = os.environ.get("USER") or "root"
    for name in ("DAEMON", "WORKER", "PUBLISHER"):
        monkeypatch.setattr(accounts, name, own)
    key = tmp_path / "master.key"
    daemon = DaemonSettings(
        launcher=str(tmp_path / "none.sock"),
        launcher_config=tmp_path / "launcher.toml",
        master_key=key,
        state_dir=tmp_path,
    )
    found = {check.name: check for check in accounts.checks(daemon, commands)}
    assert found["users"].ok
    assert found["launcher's file"].ok is False
    assert found["launcher's file"].fix
    assert found["launcher"].ok is False
    key.write_text("x")
    key.chmod(0o644)
    found = {check.name: check for check in accounts.checks(daemon, commands)}
    assert found["secrets"].ok is False
    assert str(key) in found["secrets"].detail
    monkeypatch.setattr(accounts, "WORKER", "no-such-user")
    assert "no-such-user" in next(accounts.checks(daemon, commands)).detail

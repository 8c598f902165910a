import json
import sys
import types
from dataclasses import replace

import pytest

from qtandem.core.installing import Change, ChangeState, Check
from qtandem.daemons import registry


class FakeInstaller:
    """Installs nothing; remembers what it was asked."""

    fails = False
    asked: list[str]

    def __init__(self, settings, catalog):
        self.asked = FakeInstaller.asked = []

    def changes(self):
        return [
            Change("file:a", "write a", ChangeState.TODO, "+ one\n+ two"),
            Change("file:b", "write b", ChangeState.DONE),
            Change("line:c", "add a line to c", ChangeState.MANUAL, "include q.conf"),
        ]

    removals = changes

    def apply(self, changes):
        self.asked.append("apply")
        state = ChangeState.FAILED if self.fails else ChangeState.DONE
        return [replace(change, state=state) if change.state is ChangeState.TODO else change for change in changes]

    def undo(self):
        self.asked.append("undo")
        return self.apply(self.changes())


@pytest.fixture
def fake(monkeypatch, tmp_path):
    names = ("qtandem_fake_manager", "qtandem_fake_manager.install", "qtandem_fake_manager.doctor")
    package, install, doctor = (types.ModuleType(name) for name in names)
    package.__path__ = []
    install.Installer = FakeInstaller
    doctor.check = lambda settings, catalog: [
        Check("hooks", True, "all there"),
        Check("licence", False, "it is not there", "sacctmgr add resource ..."),
        Check("other host", None, "cannot be asked here"),
    ]
    for name, module in zip(names, (package, install, doctor), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(registry.MANAGERS, "fake", "qtandem_fake_manager.manager:Fake")
    monkeypatch.setattr(FakeInstaller, "fails", False)
    (tmp_path / "qtandem.toml").write_text("")
    monkeypatch.setenv("QTANDEM_CONFIG", str(tmp_path / "qtandem.toml"))


def test_install_shows_and_changes_nothing(fake, qtandem):
    ran = qtandem("install", "fake")
    assert ran.status == 0
    assert ran.out.splitlines() == [
        "todo     write a",
        "           + one",
        "           + two",
        "done     write b",
        "manual   add a line to c",
        "           include q.conf",
        "left: 1 for your hand (manual), as said above",
        "1 change; make it with --apply",
    ]
    assert FakeInstaller.asked == []


def test_apply_shows_first_and_then_what_became_of_it(fake, qtandem):
    ran = qtandem("install", "fake", "--apply")
    assert (ran.status, FakeInstaller.asked) == (0, ["apply"])
    before, after = ran.out.split("applied:")
    assert "todo     write a" in before
    made, left = after.strip().splitlines()
    assert (made.split(), left.split(":")[0]) == (["done", "write", "a"], "left")


def test_a_change_that_failed_is_status_5(fake, qtandem, monkeypatch):
    monkeypatch.setattr(FakeInstaller, "fails", True)
    assert qtandem("install", "fake", "--apply").status == 5


def test_json_is_one_object(fake, qtandem):
    shown = json.loads(qtandem("install", "fake", "--json").out)
    assert (shown["applied"], shown["changes"][0]["state"]) == (False, "todo")
    made = json.loads(qtandem("install", "fake", "--apply", "--json").out)
    assert (made["applied"], made["changes"][0]["state"]) == (True, "done")


def test_uninstall(fake, qtandem):
    assert qtandem("uninstall", "fake").status == 0
    assert FakeInstaller.asked == []
    assert qtandem("uninstall", "fake", "--apply").status == 0
    assert "undo" in FakeInstaller.asked


def test_doctor(fake, qtandem):
    ran = qtandem("doctor", "fake")
    assert ran.status == 5
    assert ran.out.splitlines() == [
        "ok     hooks: all there",
        "FAULT  licence: it is not there",
        "       sacctmgr add resource ...",
        "-      other host: cannot be asked here",
    ]
    assert json.loads(qtandem("doctor", "fake", "--json").out)["ok"] is False


def test_a_manager_that_is_not_there(fake, qtandem):
    ran = qtandem("doctor", "nosuch")
    assert ran.status == 5
    assert "There is no manager 'nosuch'" in ran.err


def test_a_manager_that_needs_no_installation(fake, qtandem):
    ran = qtandem("install", "local")
    assert (ran.status, ran.err) == (3, "qtandem: local has nothing to install [unsupported]\n")


def test_slurm_is_installed_by_its_own_installer(fake, qtandem):
    ran = qtandem("install", "slurm")
    assert "[managers.slurm]" in ran.err

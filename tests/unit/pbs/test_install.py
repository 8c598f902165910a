from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.installing import Change, ChangeState
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import Settings
from qtandem.pbs import doctor, site
from qtandem.pbs.install import Installer
from tests.fakes.pbs.complex import FakePbsComplex

CATALOG = Catalog({name: Resource(name, "simulator", name, slots=slots) for name, slots in (("fez", 2), ("iqm", 1))})


class Site:
    def __init__(self, folder: Path) -> None:
        self.fake = FakePbsComplex(folder / "pbs")
        self.hooks, self.conf = folder / "libexec", folder / "pbs.conf"
        self.conf.write_text(f"# the site's\nPBS_SERVER=ctl\nPBS_HOME={folder}\n")
        (folder / "sched_priv").mkdir()
        self.sched_config = folder / "sched_priv" / "sched_config"
        self.sched_config.write_text('# x\nresources: "ncpus, mem, arch"\nround_robin: False all\n')
        self.settings = Settings.model_validate({
            "daemon": {"state_dir": str(folder / "state"), "socket": str(folder / "q.sock"),
                       "runtime_dir": str(folder / "run")},
            "managers": {"pbs": {"cluster": "lab", "bin_dir": str(self.fake.bin), "options": {
                "conf": str(self.conf), "hooks_dir": str(self.hooks), "access": "commands"}}},
        })  # fmt: skip

    def launched(self) -> None:
        daemon = {"launcher": "/run/l.sock", "launcher_config": self.conf.parent / "launcher.toml"}
        self.settings = self.settings.model_copy(update={"daemon": self.settings.daemon.model_copy(update=daemon)})

    def installer(self, host: str = "ctl.example.org") -> Installer:
        return Installer(self.settings, CATALOG, host=host)


@pytest.fixture
def pbs_site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def by_id(changes: list[Change]) -> dict[str, Change]:
    return {change.id: change for change in changes}


def test_looking_changes_nothing(pbs_site: Site) -> None:
    changes = by_id(pbs_site.installer().changes())
    assert changes["hook qtandem_server"].state is ChangeState.TODO
    assert not pbs_site.hooks.exists()
    with pbs_site.fake.state() as state:
        assert (state["hooks"], "qpu" in state["resources"]) == ({}, False)


def test_applying_is_idempotent_and_undoable(pbs_site: Site) -> None:
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    with pbs_site.fake.state() as state:
        assert state["resources"]["qpu_fez"] == ["long", "qm"]
        assert state["resources"]["qpu"] == ["string", ""]
        assert state["available"] == {"qpu_fez": 0, "qpu_iqm": 0}, "closed until the daemon says otherwise"
        assert state["managers"] == "qtandem@ctl.example.org,qtandem-publisher@ctl.example.org"
        hook = state["hooks"]["qtandem_server"]
        assert (hook["event"], hook["alarm"]) == ('"queuejob,modifyjob,runjob,resvsub,jobobit"', "5")
        assert (hook["order"], hook["enabled"]) == ("900", "true")
        assert f'SOCKET = "{pbs_site.settings.daemon.socket}"' in hook["text"]
    manual = {"line:sched_config", "suspend"}
    again = installer.changes()
    assert {change.state for change in again if change.id not in manual} == {ChangeState.DONE}
    assert {change.state for change in installer.undo()} == {ChangeState.DONE}
    with pbs_site.fake.state() as state:
        assert (state["hooks"], state["managers"], state["available"]) == ({}, "", {})
        assert set(state["resources"]) == {"ncpus", "mem", "walltime"}
    assert not pbs_site.hooks.exists()
    assert installer.removals() == []


def test_a_sites_own_hooks_and_files_stay(pbs_site: Site) -> None:
    with pbs_site.fake.state() as state:
        state["hooks"]["site"] = {"enabled": "true", "order": "1", "alarm": "30", "event": '"queuejob"', "text": "x"}
    installer = pbs_site.installer()
    changes = by_id(installer.apply(installer.changes()))
    assert changes["line:sched_config"].state is ChangeState.MANUAL
    assert 'resources: "ncpus, mem, arch, qpu_fez, qpu_iqm"' in changes["line:sched_config"].detail
    assert "ncpus, mem, arch" in pbs_site.sched_config.read_text()
    installer.undo()
    with pbs_site.fake.state() as state:
        assert list(state["hooks"]) == ["site"]


def test_a_hook_that_somebody_switched_off_is_seen(pbs_site: Site) -> None:
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    with pbs_site.fake.state() as state:
        state["hooks"]["qtandem_node"]["enabled"] = "false"
        state["hooks"]["qtandem_server"]["text"] += "# mine\n"
    changes = by_id(installer.changes())
    assert "enabled is false" in changes["hook qtandem_node"].detail
    assert "its text" in changes["hook qtandem_server"].detail
    installer.apply(installer.changes())
    assert by_id(installer.changes())["hook qtandem_node"].state is ChangeState.DONE


def test_with_a_launcher_the_rights_are_its_users(pbs_site: Site) -> None:
    pbs_site.launched()
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    with pbs_site.fake.state() as state:
        assert state["managers"] == "qtandem-publisher@ctl.example.org"
    written = tomllib.loads(pbs_site.settings.daemon.launcher_config.read_text())
    [(name, entry)] = written["managers"]["pbs"]["commands"].items()
    assert (name, entry["path"]) == ("qtandem-pbs", sys.executable)
    assert entry["allow"] == [["-I", "-m", "qtandem.pbs.child", "commands", str(pbs_site.fake.bin)]]
    assert written["managers"]["pbs"]["environment"]["PBS_CONF_FILE"] == str(pbs_site.conf)
    installer.undo()
    assert not pbs_site.settings.daemon.launcher_config.exists()


def test_the_daemons_host_has_rights_of_its_own(pbs_site: Site) -> None:
    relay = pbs_site.settings.relay.model_copy(update={"server": "service1:7447"})
    pbs_site.settings = pbs_site.settings.model_copy(update={"relay": relay})
    assert pbs_site.installer().managers() == ["qtandem@service1", "qtandem-publisher@ctl.example.org"]
    pbs_site.launched()
    [file, node] = pbs_site.installer("service1").changes()
    assert file.id.endswith("launcher.toml")
    assert node.state is ChangeState.DONE


def test_nothing_is_taken_back_under_jobs_that_need_it(pbs_site: Site) -> None:
    """Without our hooks they would run without the QPU that they ask for."""
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    pbs_site.fake.submit("7", "qpu_fez=1")
    undone = installer.undo()
    assert {change.state for change in undone} == {ChangeState.BLOCKED}
    assert "(7)" in undone[0].detail
    assert pbs_site.hooks.exists()
    with pbs_site.fake.state() as state:
        assert sorted(state["hooks"]) == ["qtandem_node", "qtandem_server"]


def test_a_resource_that_jobs_of_the_history_have_stays(pbs_site: Site) -> None:
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    pbs_site.fake.submit("7", "qpu_fez=1", job_state="F")
    undone = by_id(installer.undo())
    assert undone["record:resource qpu_fez"].state is ChangeState.FAILED
    assert undone["record:resource qpu_iqm"].state is ChangeState.DONE
    with pbs_site.fake.state() as state:
        del state["jobs"]["7.pbs"]
    assert {change.state for change in installer.undo()} == {ChangeState.DONE}
    assert installer.removals() == []


def test_what_is_not_ours_to_take_back_is_told(pbs_site: Site) -> None:
    with pbs_site.fake.state() as state:
        state["resources"]["qpu_fez"] = ["long", "qm"]
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    pbs_site.sched_config.write_text('resources: "ncpus, qpu_fez"\n')
    undone = by_id(installer.undo())
    assert undone["resources"].state is ChangeState.MANUAL
    assert undone["resources"].detail == "qmgr -c 'delete resource qpu_fez'"
    assert undone["line:sched_config"].state is ChangeState.MANUAL


def test_a_resource_that_the_nodes_would_not_see_is_mended(pbs_site: Site) -> None:
    installer = pbs_site.installer()
    installer.apply(installer.changes())
    with pbs_site.fake.state() as state:
        state["resources"]["qpu_fez"][1] = "q"
    [change] = [one for one in installer.changes() if one.state is ChangeState.TODO]
    assert (change.id, "not qm" in change.detail) == ("resource qpu_fez", True)
    installer.apply([change])
    with pbs_site.fake.state() as state:
        assert state["resources"]["qpu_fez"] == ["long", "qm"]


def test_a_node_needs_nothing_of_ours_from_us(pbs_site: Site) -> None:
    [change] = pbs_site.installer("c1").changes()
    assert change.state is ChangeState.DONE
    assert pbs_site.fake.calls == []


def test_a_server_that_is_down_blocks(pbs_site: Site) -> None:
    pbs_site.fake.down()
    assert by_id(pbs_site.installer().changes())["server"].state is ChangeState.BLOCKED


def test_without_a_section_the_configuration_is_at_fault() -> None:
    with pytest.raises(QtandemError) as caught:
        Installer(Settings(), CATALOG)
    assert caught.value.code == "bad-config"


def test_the_doctor_names_what_is_wrong_and_the_fix(pbs_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "ctl")
    checks = {check.name: check for check in doctor.check(pbs_site.settings, CATALOG)}
    for name in ("daemon", "hook qtandem_server", "resource qpu_fez", "sched_config", "right to set resources"):
        assert checks[name].ok is False
        assert checks[name].fix
    installer = pbs_site.installer("ctl")
    installer.apply(installer.changes())
    text = pbs_site.sched_config.read_text()
    line = site.scheduled_line(text, installer.natives())
    pbs_site.sched_config.write_text(text.replace('resources: "ncpus, mem, arch"', line))
    checks = {check.name: check for check in doctor.check(pbs_site.settings, CATALOG)}
    assert {name for name, check in checks.items() if check.ok is False} == {"daemon"}
    (pbs_site.hooks / "server_dyn_res").chmod(0o777)
    checks = {check.name: check for check in doctor.check(pbs_site.settings, CATALOG)}
    assert "written by others" in checks["file server_dyn_res"].detail


def test_the_doctor_sees_what_pbs_counts_for_no_job(pbs_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "ctl")
    installer = pbs_site.installer("ctl")
    installer.apply(installer.changes())
    pbs_site.fake.submit("7", "qpu_fez=1")
    pbs_site.fake.run("7")
    with pbs_site.fake.state() as state:
        state["counted"] = {"qpu_iqm": 1}
    checks = {check.name: check for check in doctor.check(pbs_site.settings, CATALOG)}
    assert "count of qpu_fez" not in checks
    assert checks["count of qpu_iqm"].ok is None
    assert "counts 1 as used, and no job runs with it" in checks["count of qpu_iqm"].detail


def test_what_qmgr_lists() -> None:
    text = 'Hook a\n    event = "queuejob,\n\trunjob"\n    order = 1\n\nHook b\n    event = ""\n'
    assert site.listed(text, "Hook")["b"]["event"] == ""
    assert site.listed(text, "Hook")["a"]["order"] == "1"
    assert site.words(site.listed(text, "Hook")["a"]["event"]) == {"queuejob", "runjob"}

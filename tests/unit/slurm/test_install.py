import os
import shutil
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.installing import Change, ChangeState
from qtandem.core.resources import Catalog, Reach, Resource
from qtandem.core.settings import Settings
from qtandem.slurm import conf, doctor
from qtandem.slurm.install import Installer
from tests.fakes.slurm.cluster import FakeSlurm

CATALOG = Catalog({name: Resource(name, "simulator", name, slots=slots) for name, slots in (("fez", 2), ("iqm", 1))})


class Site:
    def __init__(self, folder: Path, fake: FakeSlurm) -> None:
        self.etc, self.hooks, self.fake = folder / "etc", folder / "libexec" / "slurm", fake
        self.etc.mkdir()
        self.conf = self.etc / "slurm.conf"
        self.conf.write_text("ClusterName=lab\nSlurmctldHost=ctl(10.0.0.1)\n")
        (self.etc / "plugstack.conf").write_text(f"include {self.etc}/plugstack.conf.d/*.conf\n")
        self.settings = Settings.model_validate({
            "daemon": {"state_dir": str(folder / "state"), "socket": str(folder / "q.sock"),
                       "runtime_dir": str(folder / "run")},
            "managers": {"slurm": {"cluster": "lab", "bin_dir": str(fake.bin), "options": {
                "conf": str(self.conf), "hooks_dir": str(self.hooks)}}},
        })  # fmt: skip

    def installer(self, host: str = "ctl.example.org") -> Installer:
        return Installer(self.settings, CATALOG, host=host)

    def files(self) -> set[str]:
        return {str(path) for place in (self.etc, self.hooks) if place.exists() for path in place.rglob("*")}

    def include(self) -> None:
        self.conf.write_text(f"{self.conf.read_text()}Include {self.etc}/qtandem.conf\n")


@pytest.fixture
def site(tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("cc", "gcc") else f"/usr/bin/{name}")
    return Site(tmp_path, fake)


def by_id(changes: list[Change]) -> dict[str, Change]:
    return {change.id: change for change in changes}


def states(changes: list[Change], *but: str) -> set[ChangeState]:
    return {change.state for change in changes if not change.id.startswith(but or ("~",))}


def test_looking_changes_nothing(site: Site) -> None:
    before = site.files()
    changes = site.installer().changes()
    assert site.files() == before
    assert ChangeState.TODO in states(changes)
    assert not any(call[0] in ("add", "modify", "delete") for call in site.fake.calls_of("sacctmgr"))


def test_applying_is_idempotent_and_undoable(site: Site) -> None:
    before = site.files()
    installer = site.installer()
    installer.apply(installer.changes())
    site.include()
    again = installer.changes()
    assert states(again, "build:", "operator") == {ChangeState.DONE}
    content = {path: Path(path).read_bytes() for path in site.files() if Path(path).is_file()}
    installer.apply(again)
    assert {path: Path(path).read_bytes() for path in site.files() if Path(path).is_file()} == content
    assert site.fake.free("fez@qtandem") == 0

    site.conf.write_text("ClusterName=lab\nSlurmctldHost=ctl\n")
    undone = installer.undo()
    assert states(undone) == {ChangeState.DONE}
    assert site.files() == before
    assert installer.removals() == []
    with site.fake.state() as state:
        assert state["resources"] == {}


def test_only_the_changes_that_were_asked_for_are_made(site: Site) -> None:
    installer = site.installer()
    [lua] = [change for change in installer.changes() if change.id.endswith("/qtandem.lua")]
    installer.apply([lua])
    assert [path.name for path in site.hooks.iterdir()] == ["qtandem.lua"]


def test_hooks_carry_the_sites_values(site: Site) -> None:
    installer = site.installer()
    installer.apply(installer.changes())
    assert f'SOCKET = "{site.settings.daemon.socket}"' in (site.hooks / "qtandem.lua").read_text()
    assert 'CLUSTER = "lab"' in (site.hooks / "qtandem_slurm.py").read_text()
    assert f"RUNS='{site.settings.daemon.runtime_dir}/runs'" in (site.hooks / "task_prolog").read_text()
    assert (site.hooks / "prolog").stat().st_mode & 0o777 == 0o755
    assert f"{site.hooks}/qtandem.lua" in (site.etc / "job_submit.lua").read_text()


def test_a_sites_own_files_are_kept_and_shown_what_to_add(site: Site) -> None:
    (site.etc / "job_submit.lua").write_text("-- the site's\n")
    (site.etc / "plugstack.conf").write_text("# the site's\n")
    task = site.etc / "task_prolog.sh"
    task.write_text("#!/bin/sh\n")
    site.conf.write_text(
        f"SlurmctldHost=ctl\nJobSubmitPlugins=throttle\nGresTypes=gpu\nTaskProlog={task}\nPrologFlags=Serial\nProlog=/site/prolog\n"
        f"PrologSlurmctld={site.etc}/ctld.sh\n"
    )
    installer = site.installer()
    changes = by_id(installer.apply(installer.changes()))
    assert (site.etc / "job_submit.lua").read_text() == "-- the site's\n"
    assert "qtandem.submit(" in changes[f"line:{site.etc}/job_submit.lua"].detail
    assert changes["line:JobSubmitPlugins"].detail == "change it to: JobSubmitPlugins=throttle,lua"
    assert changes["line:PrologFlags"].detail == "change it to: PrologFlags=Serial,Alloc"
    assert (
        f"{site.etc}/ctld.sh add the line: {site.hooks}/prolog_slurmctld ||" in changes["line:PrologSlurmctld"].detail
    )
    assert changes["line:GresTypes"].detail.startswith("change it to: GresTypes=gpu,qpu ")
    assert f"{site.hooks}/task_prolog" in changes["line:TaskProlog"].detail
    assert "include" in changes[f"line:{site.etc}/plugstack.conf"].detail
    own = (site.etc / "qtandem.conf").read_text()
    assert f"Prolog={site.hooks}/prolog\n" in own
    assert not any(
        key in own for key in ("JobSubmitPlugins", "GresTypes", "PrologSlurmctld", "TaskProlog", "PrologFlags")
    )


def test_slurmctld_is_made_to_read_lua_that_has_changed(site: Site) -> None:
    installer = site.installer()
    installer.apply(installer.changes())
    script, before = site.etc / "job_submit.lua", (site.etc / "job_submit.lua").read_text()
    assert not installer.lua_is_stale()
    timing = site.settings.timing.model_copy(update={"submit_ms": 77})
    site.settings = site.settings.model_copy(update={"timing": timing})
    changed = site.installer()
    assert changed.lua_is_stale()
    changes = by_id(changed.apply(changed.changes()))
    assert changes[f"file:{script}"].state is ChangeState.DONE
    assert script.read_text() != before
    assert not changed.lua_is_stale()


def test_a_sites_own_script_is_to_be_touched_when_lua_has_changed(site: Site) -> None:
    script = site.etc / "job_submit.lua"
    installer = site.installer()
    installer.apply(installer.changes())
    script.write_text(f'dofile("{site.hooks}/qtandem.lua")\n')
    assert by_id(installer.changes())[f"line:{script}"].state is ChangeState.DONE
    newer = script.stat().st_mtime + 5
    os.utime(site.hooks / "qtandem_forms.lua", (newer, newer))
    change = by_id(installer.changes())[f"line:{script}"]
    assert (change.state, f"touch {script}" in change.detail) == (ChangeState.MANUAL, True)
    os.utime(script, (newer + 1, newer + 1))
    assert by_id(installer.changes())[f"line:{script}"].state is ChangeState.DONE


def test_a_file_that_was_changed_since_survives_the_uninstallation(site: Site) -> None:
    installer = site.installer()
    installer.apply(installer.changes())
    script = site.etc / "job_submit.lua"
    script.write_text(script.read_text() + "-- the site's own rule\n")
    changes = by_id(installer.undo())
    assert changes[f"file:{script}"].state is ChangeState.MANUAL
    assert script.exists()
    assert not (site.hooks / "qtandem.lua").exists()


def test_nothing_is_removed_while_slurm_conf_names_it(site: Site) -> None:
    installer = site.installer()
    installer.apply(installer.changes())
    site.include()
    undone = installer.undo()
    assert states(undone) == {ChangeState.MANUAL, ChangeState.BLOCKED}
    assert (site.hooks / "prolog").exists()


def test_a_node_gets_files_and_no_records(site: Site) -> None:
    installer = site.installer("c1")
    installer.apply(installer.changes())
    assert (site.hooks / "prolog").exists()
    assert not (site.etc / "job_submit.lua").exists()
    assert site.fake.calls_of("sacctmgr") == []


def test_without_slurmdbd_the_rest_is_installed(site: Site) -> None:
    site.fake.down("slurmdbd")
    installer = site.installer()
    changes = by_id(installer.apply(installer.changes()))
    assert changes["licences"].state is ChangeState.BLOCKED
    assert changes["licences"].optional
    assert (site.hooks / "prolog").exists()


def test_slurms_commands_are_not_asked_while_slurm_conf_is_broken(site: Site) -> None:
    site.include()
    installer = site.installer()
    assert by_id(installer.changes())["licences"].state is ChangeState.BLOCKED
    assert site.fake.calls == []
    assert by_id(installer.apply(installer.changes()))["licences"].state is ChangeState.DONE


def test_without_a_compiler_the_option_is_blocked_with_what_to_install(site: Site) -> None:
    change = by_id(site.installer().changes())[f"build:{site.hooks}/spank_qpu.so"]
    assert change.state is ChangeState.BLOCKED
    assert "libslurm-dev" in change.detail


def test_without_a_section_for_slurm_the_configuration_is_at_fault() -> None:
    with pytest.raises(QtandemError) as caught:
        Installer(Settings(), CATALOG)
    assert caught.value.code == "bad-config"


def test_the_doctor_names_what_is_wrong_and_the_fix(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "ctl")
    checks = {check.name: check for check in doctor.check(site.settings, CATALOG)}
    for name in ("daemon", "hook prolog", "Prolog", "job_submit.lua", "licence fez@qtandem"):
        assert checks[name].ok is False
        assert checks[name].fix
    installer = site.installer()
    installer.apply(installer.changes())
    with site.fake.state() as state:
        state["config"] = {
            "ClusterName": "lab", "JobSubmitPlugins": "lua", "PrologFlags": "Alloc,Contain",
            "PrologSlurmctld": f"{site.hooks}/prolog_slurmctld",
            "AccountingStorageType": "accounting_storage/slurmdbd", "TaskProlog": f"{site.hooks}/task_prolog",
            **{key: f"/site/x,{site.hooks}/{name}" for key, name in (
                ("EpilogSlurmctld", "epilog_slurmctld"),
                ("Prolog", "prolog"), ("Epilog", "epilog"))},
        }  # fmt: skip
    checks = {check.name: check for check in doctor.check(site.settings, CATALOG)}
    wrong = {name for name, check in checks.items() if check.ok is False}
    assert wrong <= {"daemon", "plug-in file", "LuaSocket", "right to set licences"}
    (site.hooks / "prolog").chmod(0o777)
    (site.hooks / "epilog").write_text("#!/bin/sh\n")
    checks = {check.name: check for check in doctor.check(site.settings, CATALOG)}
    assert "written by others" in checks["hook prolog"].detail
    assert "is not what" in checks["hook epilog"].detail


def test_the_doctor_knows_partitions_and_nodes_that_slurm_has_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "ctl")
    reaches = {"fez": Reach.of(["main", "big"], "c[1-2]"), "iqm": Reach.of(["mian"], "c[1-3]"), "sim": Reach()}
    catalog = Catalog({name: Resource(name, "simulator", name, reach=reach) for name, reach in reaches.items()})
    checks = [check for check in doctor.check(site.settings, catalog) if check.name.startswith("reach of ")]
    assert [(check.name, check.ok) for check in checks] == [
        ("reach of fez", True), ("reach of fez", True), ("reach of iqm", False), ("reach of iqm", False),
    ]  # fmt: skip
    assert (checks[2].detail, checks[2].fix) == (
        "no partitions of Slurm: mian", "Mend reachable_from.partitions of iqm. Did you mean main?",
    )  # fmt: skip
    assert checks[3].detail == "no nodes of Slurm: c3"


@pytest.mark.parametrize(
    ("version", "ok"),
    [
        ("23.11.4", False),
        ("24.11.5", True),
        ("25.05.1", False),
        ("25.11.6", False),
        ("25.11.7", True),
        ("26.05.5", True),
    ],
)
def test_the_doctor_warns_of_versions_that_lose_licences(site: Site, version: str, ok: bool) -> None:
    with site.fake.state() as state:
        state["version"] = version
    [check] = [check for check in doctor.check(site.settings, CATALOG) if check.name == "version"]
    assert check.ok is ok


def test_a_doctor_without_slurm_says_so(site: Site) -> None:
    shutil.rmtree(site.fake.bin)
    checks = {check.name: check for check in doctor.check(site.settings, CATALOG)}
    assert checks["version"].ok is False
    assert "cannot be started" in checks["version"].detail


def test_slurm_conf_is_read_with_its_includes(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("prolog = /b # why\nNodeName=n1 CPUs=4\n")
    (tmp_path / "slurm.conf").write_text("# Prolog=/no\nProlog=/a\nInclude more.conf\nJobSubmitPlugins=\\\nlua\n")
    found = conf.read(tmp_path / "slurm.conf")
    assert found is not None
    assert (found.values("Prolog"), found.last("JobSubmitPlugins")) == (["/a", "/b"], "lua")
    assert conf.read(tmp_path / "none.conf") is None


def test_a_job_waits_for_our_prolog_only_if_one_script_runs_it(tmp_path: Path) -> None:
    """slurmctld 24.11 starts a job when the first of several PrologSlurmctld has ended."""
    hook, script = "/hooks/prolog_slurmctld", tmp_path / "site.sh"
    script.write_text("#!/bin/sh\n/site/check\n")
    assert conf.waits_for([hook], hook)
    assert not conf.waits_for([str(script)], hook)
    assert not conf.waits_for([str(script), hook], hook)
    script.write_text(f"#!/bin/sh\n/site/check\n{hook} || exit 1\n")
    assert conf.waits_for([str(script)], hook)

"""What an installation makes of a host and of the cell, and that all of it can be taken back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.commands import CommandError, Result
from qtandem.core.config import load
from qtandem.core.installing import ChangeState
from qtandem.gridengine.install import Installer
from tests.fakes.gridengine import commands
from tests.fakes.gridengine.cell import FakeCell

TOML = """version = 1
[daemon]
state_dir = "{folder}/{state}"
runtime_dir = "{folder}/run"
[relay]
server = "ctl:7447"
[managers.gridengine]
cluster = "lab"
bin_dir = "{folder}/bin"
service_users = ["sgeadmin"]
options = {{ root = "{folder}/sge", hooks_dir = "{folder}/hooks" }}
[resources.fez]
type = "simulator"
[resources.narrow]
type = "simulator"
reachable_from = {{ partitions = ["main"] }}
"""


class Site:
    """A host of a cell. `admin` is the cell's admin_user."""

    def __init__(self, folder: Path, cell: FakeCell) -> None:
        self.folder, self.cell = folder, cell
        common = folder / "sge/default/common"
        common.mkdir(parents=True)
        (common / "act_qmaster").write_text("ctl\n")
        self.admin("sgeadmin")

    def admin(self, user: str) -> None:
        text = f"admin_user              {user}\nbinary_path             /opt/sge/bin\n"
        (self.folder / "sge/default/common/bootstrap").write_text(text)

    def installer(self, host: str = "ctl") -> Installer:
        """On the host; each has a manifest of its own."""
        file = self.folder / f"{host}.toml"
        file.write_text(TOML.format(folder=self.folder, state=self.manifest(host).parents[1].name))
        found = load(file, secrets=False)
        return Installer(found.settings, found.catalog, host=host)

    def manifest(self, host: str = "ctl") -> Path:
        return self.folder / f"state-{host}/install/gridengine.json"

    def install(self, host: str = "ctl") -> None:
        installer = self.installer(host)
        done = installer.apply(installer.changes())
        assert {change.state for change in done} <= {ChangeState.DONE, ChangeState.MANUAL}, done

    def objects(self) -> dict[str, Any]:
        return {key: value for key, value in self.cell.read().items() if key not in ("log", "jobs", "next")}


@pytest.fixture
def site(tmp_path: Path, cell: FakeCell, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Its commands are called in this process: an installation asks for dozens."""

    def run_sync(argv: Sequence[str], **_: object) -> Result:
        status, out, err = commands.call(cell.path, Path(argv[0]).name, list(argv[1:]))
        if status:
            raise CommandError(f"{argv[0]} failed", argv, status, out, err)
        return Result(tuple(argv), status, out, err)

    monkeypatch.setattr("qtandem.core.manager_commands.commands.run_sync", run_sync)
    monkeypatch.setattr("qtandem.gridengine.client.Client.shepherds", lambda _: ["/opt/sge/bin/sge_shepherd"])
    return Site(tmp_path, cell)


def states(installer: Installer) -> dict[str, ChangeState]:
    return {change.id: change.state for change in installer.changes()}


def test_an_installation_is_made_once_and_taken_back_to_the_letter(site: Site) -> None:
    before = site.objects()
    site.install()
    state = site.cell.read()
    hooks = site.folder / "hooks"
    assert state["conf"]["prolog"] == f"root@{hooks}/prolog $job_id $job_owner"
    assert state["conf"]["jsv_url"] == f"script:sgeadmin@{hooks}/jsv"
    assert state["conf"]["shepherd_cmd"] == f"{hooks}/shepherd"
    assert state["managers"] == ["root", "qtandem", "qtandem-publisher"]
    assert state["queues"]["classical"]["complex_values"] == "qpu_narrow=0"
    assert set(states(site.installer()).values()) == {ChangeState.DONE}

    done = site.installer().undo()
    assert {change.state for change in done} == {ChangeState.DONE}, done
    assert site.objects() == before
    assert not hooks.exists()
    assert not site.manifest().exists()


def test_what_the_daemon_defined_later_goes_too(site: Site) -> None:
    before = site.objects()
    site.install()
    state = site.cell.read()
    state["complexes"] += ["qpu_late", "qpu_queue_late", "qpu_wait_late", "qpu_wait_theirs"]
    state["global"] = {"qpu_late": "1", "qpu_fez": "0"}
    site.cell.write(state)
    site.installer().undo()
    assert site.objects() == {**before, "complexes": [*before["complexes"], "qpu_wait_theirs"]}


@pytest.mark.parametrize("looks", [3, 99])
def test_complexes_go_when_no_host_reports_them_any_more(
    site: Site, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    site.install()
    site.cell.write({**site.cell.read(), "reported": looks})
    installer, now = site.installer(), [0.0]
    monkeypatch.setattr(installer.cell, "_monotonic", lambda: now[0])
    monkeypatch.setattr(installer.cell, "_sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    failed = [change for change in installer.undo() if change.state is ChangeState.FAILED]
    assert len(failed) == (looks == 99)
    assert 4 <= now[0] <= 140
    if failed:
        assert "still referenced in host" in failed[0].detail
        site.cell.write({**site.cell.read(), "reported": 0})
        assert {change.state for change in site.installer().undo()} == {ChangeState.DONE}
    assert site.cell.read()["complexes"] == ["arch", "h_rt"]


def test_what_the_site_has_is_left_and_told(site: Site) -> None:
    state = site.cell.read()
    state["conf"] |= {"prolog": "/site/prolog", "load_sensor": "/site/sensor", "execd_params": "KEEP_ACTIVE=true"}
    state["queues"]["main"]["starter_method"] = "/site/starter"
    site.cell.write(state)
    before = site.objects()
    site.install()
    found = {change.id: change for change in site.installer().changes()}
    assert found["conf:prolog"].state is found["starter main"].state is ChangeState.MANUAL
    assert "/site/prolog" in found["conf:prolog"].detail
    assert site.cell.read()["conf"]["load_sensor"] == f"/site/sensor,{site.folder}/hooks/load_sensor"
    site.installer().undo()
    assert site.objects() == before


def test_a_script_of_the_sites_that_calls_ours_is_in_order_and_keeps_our_files(site: Site) -> None:
    hooks, own = site.folder / "hooks", site.folder / "site-prolog"
    own.write_text(f'#!/bin/sh\nexec {hooks}/prolog "$@"\n')
    epilog = site.folder / "site-epilog"
    epilog.write_text("#!/bin/sh\nexit 0\n")
    state = site.cell.read()
    state["conf"]["prolog"] = f"root@{own} $job_id $job_owner"
    state["queues"]["main"] |= {"prolog": f"sgeadmin@{own} $job_id $job_owner", "epilog": f"root@{epilog}"}
    site.cell.write(state)
    before = site.objects()
    site.install()
    found = states(site.installer())
    assert found["conf:prolog"] is ChangeState.DONE
    assert found["prolog main"] is ChangeState.MANUAL, "not as root"
    assert found["epilog main"] is ChangeState.MANUAL, "it does not call ours"

    blocked = [change for change in site.installer().undo() if change.state is ChangeState.BLOCKED]
    assert {change.id for change in blocked} >= {f"file:{path}" for path in site.installer().hook_texts()}
    assert str(own) in blocked[0].detail
    assert site.objects() == before
    own.write_text("#!/bin/sh\nexit 0\n")
    site.installer().undo()
    assert not hooks.exists()


def test_a_value_of_an_earlier_installation_is_replaced_and_the_first_one_comes_back(site: Site) -> None:
    before = site.objects()
    site.install()
    text = site.manifest().read_text()
    site.manifest().write_text(text.replace("$job_id $job_owner", "$host $job_id"))
    state = site.cell.read()
    state["conf"]["prolog"] = state["conf"]["prolog"].replace("$job_id $job_owner", "$host $job_id")
    site.cell.write(state)
    assert states(site.installer())["conf:prolog"] is ChangeState.TODO
    site.install()
    assert site.cell.read()["conf"]["prolog"].endswith("$job_id $job_owner")
    assert sum(record.startswith("was prolog") for record in json.loads(site.manifest().read_text())["records"]) == 1
    site.installer().undo()
    assert site.objects() == before


@pytest.mark.parametrize("admin", ["root", "none"])
def test_a_shepherd_that_is_root_needs_no_help(site: Site, admin: str) -> None:
    site.admin(admin)
    site.install()
    assert site.cell.read()["conf"]["shepherd_cmd"] == "none"


def test_files_of_a_host_stay_while_the_cell_or_a_job_needs_them(site: Site) -> None:
    site.install("c1")
    site.install()
    node = site.installer("c1")
    [why] = {change.detail for change in node.removals()}
    assert "first, on the host of qmaster" in why
    assert {change.state for change in node.undo()} == {ChangeState.BLOCKED}

    asking = site.cell.submit("qpu_fez=1")
    [why] = {step.change.detail for step in site.installer().cell.undo_steps()}
    assert f"({asking})" in why
    site.cell.become(asking, "")
    for step in site.installer().cell.undo_steps():
        assert step.act is not None
        step.act()
    number = site.cell.submit("arch=lx*")
    site.cell.become(number, "r")
    [why] = {change.detail for change in node.removals()}
    assert f"({number})" in why
    site.cell.become(number, "")
    assert {change.state for change in node.undo()} == {ChangeState.DONE}
    assert not (site.folder / "hooks").exists()


def test_a_cell_that_is_gone_keeps_no_files(site: Site) -> None:
    installer = site.installer("c1")
    installer.apply(installer.changes())
    site.cell.cut()
    assert {change.state for change in installer.undo()} == {ChangeState.DONE}
    assert not (site.folder / "hooks").exists()


def test_nothing_is_asked_of_a_cell_that_does_not_answer(site: Site) -> None:
    installer = site.installer()
    site.cell.cut()
    assert states(installer)["cell"] is ChangeState.BLOCKED

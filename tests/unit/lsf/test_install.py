"""What `qtandem install lsf` makes, shows, and takes back; and what `doctor` finds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.installing import ChangeState
from qtandem.core.resources import Catalog, Reach, Resource
from qtandem.core.settings import DaemonSettings, ManagerSettings, Settings
from qtandem.lsf import doctor, install, rights, site
from qtandem.lsf.install import Installer
from tests.fakes.lsf.cluster import FakeLsf

FEZ = Resource("fez", "simulator", "fez", slots=2)
FAR = Resource("ibm-x", "simulator", "ibm_x", reach=Reach(nodes=frozenset({"c1", "c2"})))
QUEUES = """
Begin Queue
QUEUE_NAME   = normal
PRIORITY     = 30    # as ever
DESCRIPTION  = For normal \\
   jobs
End Queue

Begin Queue
QUEUE_NAME = own
JOB_STARTER = /site/starter
PRE_EXEC = /site/pre
End Queue
"""
SHARED = """
Begin Cluster
ClusterName
lab
End Cluster
Begin Resource
RESOURCENAME  TYPE    INTERVAL INCREASING  DESCRIPTION        # Keywords
   mips       Boolean ()       ()          (MIPS architecture)
End Resource
"""
CLUSTER = """
Begin ClusterAdmins
Administrators = lsfadmin
End ClusterAdmins
Begin ResourceMap
RESOURCENAME LOCATION
# none yet
End ResourceMap
"""


class Host:
    """A master with LSF's own files in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.envdir, self.server = folder, folder / "conf", folder / "etc"
        self.envdir.mkdir()
        self.server.mkdir()
        (self.server / "mesub").touch()
        self.conf = self.envdir / "lsf.conf"
        self.conf.write_text(f'LSF_SERVERDIR={self.server}\nLSF_CONFDIR={self.envdir}\nLSF_MASTER_LIST="ctl ctl2"\n')
        self.put("lsf.shared", SHARED)
        self.put("lsf.cluster.lab", CLUSTER)
        self.put("lsb.queues", QUEUES)
        self.sudoers = folder / "lsf.sudoers"
        monkeypatch.setattr(install, "SUDOERS", self.sudoers)

    @property
    def batch(self) -> Path:
        return self.envdir / "lsbatch" / "lab" / "configdir"

    def put(self, name: str, text: str) -> None:
        path = self.batch / name if name.startswith("lsb.") else self.envdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def settings(self, **options: str) -> Settings:
        given = {"envdir": str(self.envdir), "hooks_dir": str(self.folder / "hooks"), **options}
        daemon = DaemonSettings(state_dir=self.folder / "state", socket=self.folder / "s", runtime_dir=self.folder)
        return Settings(daemon=daemon, managers={"lsf": ManagerSettings(cluster="lab", options=given)})

    def installer(self, *resources: Resource, host: str = "ctl", **options: str) -> Installer:
        found = {one.name: one for one in (resources or (FEZ,))}
        return Installer(self.settings(**options), Catalog(found), host=host)


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def by_id(changes: Any) -> dict[str, Any]:
    return {change.id: change for change in changes}


def states(changes: Any, *wanted: ChangeState) -> set[str]:
    return {change.id for change in changes if change.state in wanted}


def test_it_is_made_once_and_then_nothing_is_to_do(lsf: Host) -> None:
    installer = lsf.installer()
    first = installer.apply(installer.changes())
    assert not states(first, ChangeState.FAILED, ChangeState.TODO)
    again = lsf.installer().changes()
    assert not states(again, ChangeState.TODO, ChangeState.BLOCKED)
    for name in ("esub.qpu", "elim.qpu"):
        assert (lsf.server / name).stat().st_mode & 0o777 == 0o755
    for path in (lsf.folder / "hooks").glob("*"):
        if path.suffix != ".py" and path.is_file():
            assert subprocess.run(["/bin/sh", "-n", path], check=False).returncode == 0, path


def test_no_hook_names_another_place_than_the_one_it_is_in(lsf: Host) -> None:
    for data, _ in lsf.installer().hook_texts().values():
        assert b"/usr/libexec" not in data
        assert b"qtandem:include" not in data


def test_lines_for_lsfs_own_files_are_shown_and_never_written(lsf: Host) -> None:
    before = {path: path.read_bytes() for path in lsf.envdir.rglob("*") if path.is_file()}
    installer = lsf.installer(FEZ, FAR)
    changes = by_id(installer.apply(installer.changes()))
    assert {path: path.read_bytes() for path in lsf.envdir.rglob("*") if path.is_file()} == before
    shared = changes["line:lsf.shared"].detail.splitlines()
    assert "qpu_fez Numeric 15 N (slots of the QPU fez)" in shared, "in the columns that the site's file has"
    mapped = changes["line:lsf.cluster"].detail.splitlines()
    assert {"qpu_fez [all]", "qpu_ibm_x [c1 c2]", "qpu_ready [all]"} <= set(mapped)
    hooks = lsf.folder / "hooks"
    assert f"JOB_STARTER = . {hooks}/jobstarter.qpu ;" in changes["line:queue normal"].detail.splitlines()
    own = changes["line:queue own"].detail
    assert f"JOB_STARTER = . {hooks}/jobstarter.qpu ; /site/starter" in own.splitlines()
    assert "call ours from it, and pass on its exit status" in own
    assert changes["line:administrator"].detail.startswith("add qtandem to Administrators")
    assert 'LSB_ESUB_METHOD="qpu"' in changes["line:esub"].detail
    assert "qpu_fez PER_JOB" in changes["line:reservations"].detail
    assert "JOB_INCLUDE_POSTPROC" in changes["line:postproc"].detail


def paste(lsf: Host, installer: Installer) -> None:
    """What an admin does with the lines."""
    texts = installer.fragment_texts()
    for name, file in (
        ("lsf.shared", "lsf.shared"),
        ("lsf.cluster", "lsf.cluster.lab"),
        ("lsb.resources", "lsb.resources"),
    ):
        lsf.put(file, _old(lsf, file) + texts[name])
    lsf.put("lsf.cluster.lab", _old(lsf, "lsf.cluster.lab").replace("lsfadmin", "lsfadmin qtandem"))
    queue = "Begin Queue\nQUEUE_NAME = normal\n" + texts["lsb.queues"] + "End Queue\n"
    lsf.put("lsb.queues", queue)
    lsf.put("lsb.applications", texts["lsb.applications"])
    lsf.put("lsf.conf", lsf.conf.read_text() + texts["lsf.conf"])


def _old(lsf: Host, file: str) -> str:
    path = lsf.batch / file if file.startswith("lsb.") else lsf.envdir / file
    return path.read_text() if path.exists() else ""


def test_the_lines_once_pasted_are_recognised(lsf: Host) -> None:
    paste(lsf, lsf.installer(FEZ, FAR))
    changes = lsf.installer(FEZ, FAR, profile="qpu").changes()
    assert not states(changes, ChangeState.MANUAL)
    more = Resource("new", "simulator", "new")
    assert by_id(lsf.installer(FEZ, FAR, more).changes())["line:lsf.shared"].detail.count("qpu_new") == 1


def test_an_lsf_without_esub_names_gets_one_esub_and_one_elim(lsf: Host) -> None:
    (lsf.server / "mesub").unlink()
    installer = lsf.installer()
    changes = by_id(installer.apply(installer.changes()))
    assert (lsf.server / "esub").exists()
    assert (lsf.server / "elim").exists()
    assert "line:esub" not in changes
    assert "DURATIONS = 0\n" in (lsf.folder / "hooks/qtandem_esub.py").read_text()
    assert "CONSUMABLE" not in (lsf.folder / "hooks/fragments/lsf.shared").read_text()


def test_the_sites_own_esub_is_not_replaced(lsf: Host) -> None:
    (lsf.server / "mesub").unlink()
    (lsf.server / "esub").write_text("#!/bin/sh\n")
    installer = lsf.installer()
    change = by_id(installer.apply(installer.changes()))[f"file:{lsf.server}/esub"]
    assert change.state is ChangeState.MANUAL
    assert "options.esub" in change.detail
    assert (lsf.server / "esub").read_text() == "#!/bin/sh\n"
    (lsf.server / "esub").rename(lsf.server / "esub.site")
    installer = lsf.installer(esub=f"{lsf.server}/esub.site")
    installer.apply(installer.changes())
    assert f"SITE_ESUB='{lsf.server}/esub.site'" in (lsf.server / "esub").read_text()


def test_a_server_directory_that_another_host_filled_is_filled(lsf: Host, tmp_path: Path) -> None:
    first = lsf.installer()
    first.apply(first.changes())
    settings = lsf.settings()
    other = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"state_dir": tmp_path / "other"})})
    changes = by_id(Installer(other, Catalog({"fez": FEZ}), host="c1").changes())
    assert changes[f"file:{lsf.server}/esub.qpu"].state is ChangeState.DONE


def test_a_host_that_is_no_master_has_nothing_to_change_in_lsf(lsf: Host) -> None:
    lines = {id for id in by_id(lsf.installer(host="c1").changes()) if id.startswith("line:")}
    assert lines == {"line:user"}


def test_hooks_as_another_user_are_told_of_with_what_that_gives_away(lsf: Host) -> None:
    assert by_id(lsf.installer().changes())["line:user"].state is ChangeState.DONE
    lsf.sudoers.write_text("LSB_PRE_POST_EXEC_USER=root\n")
    change = by_id(lsf.installer().changes())["line:user"]
    assert (change.state, change.optional) == (ChangeState.MANUAL, True)
    assert "LD_PRELOAD" in change.detail


def test_what_was_made_is_taken_back(lsf: Host) -> None:
    before = sorted(lsf.folder.rglob("*"))
    installer = lsf.installer()
    installer.apply(installer.changes())
    assert not states(lsf.installer().undo(), ChangeState.FAILED, ChangeState.BLOCKED)
    assert sorted(path for path in lsf.folder.rglob("*") if "state" not in path.parts) == [
        path for path in before if "state" not in path.parts
    ]


def test_nothing_is_taken_back_while_lsf_names_it(lsf: Host) -> None:
    """A queue whose pre_exec is gone would start no job, and a mandatory esub that is gone would take none."""
    installer = lsf.installer()
    installer.apply(installer.changes())
    paste(lsf, installer)
    changes = lsf.installer().undo()
    assert changes[0].state is ChangeState.MANUAL
    assert "lsb.queues:3: PRE_EXEC" in changes[0].detail
    assert "LSB_ESUB_METHOD" in changes[0].detail
    assert states(changes[1:]) == set()
    assert states(changes[1:], ChangeState.BLOCKED) == {change.id for change in changes[1:]}
    assert (lsf.server / "esub.qpu").exists()


def test_a_file_that_was_changed_since_is_left(lsf: Host) -> None:
    installer = lsf.installer()
    installer.apply(installer.changes())
    (lsf.server / "esub.qpu").write_text("# mine\n")
    changes = by_id(lsf.installer().undo())
    assert changes[f"file:{lsf.server}/esub.qpu"].state is ChangeState.MANUAL
    assert (lsf.server / "esub.qpu").exists()


@pytest.mark.parametrize("native", ["ready", "queue", "wait", "qubits", "x" * 36])
def test_names_that_lsf_cannot_tell_apart_are_refused(lsf: Host, native: str) -> None:
    with pytest.raises(QtandemError) as caught:
        lsf.installer(Resource("q", "simulator", native))
    assert caught.value.code == "bad-config"
    assert "native" in (caught.value.remedy or "")


def test_without_lsf_conf_the_hooks_are_made_and_the_reason_told(lsf: Host) -> None:
    lsf.conf.unlink()
    installer = lsf.installer()
    changes = by_id(installer.apply(installer.changes()))
    assert changes["conf"].state is ChangeState.BLOCKED
    assert (lsf.folder / "hooks" / "pre_exec").exists()


def test_without_a_section_it_says_so() -> None:
    with pytest.raises(QtandemError, match="no section"):
        Installer(Settings(), Catalog())


# ---- LSF's files
def test_sections_of_lsfs_files() -> None:
    queues = site.of_kind(QUEUES, "Queue")
    assert [queue.values["QUEUE_NAME"] for queue in queues] == ["normal", "own"]
    assert queues[0].values["DESCRIPTION"] == "For normal jobs"
    [shared] = site.of_kind(SHARED, "Resource")
    assert shared.heads == ("RESOURCENAME", "TYPE", "INTERVAL", "INCREASING", "DESCRIPTION")
    assert shared.first_words == {"mips"}


@pytest.mark.parametrize(
    "text", ["", "Begin Queue\n", "End Queue\n", "Begin Queue\nx\nEnd Host\n", "Begin\nEnd\n", "\0"]
)
def test_files_of_another_form_have_no_sections(text: str) -> None:
    assert site.of_kind(text, "Queue") == []


def test_the_commands_environment_is_that_of_lsfs_profile(tmp_path: Path) -> None:
    (tmp_path / "lsf.conf").write_text("LSF_LIBDIR=/l\nLSF_BINDIR = '/b'\n# LSF_SERVERDIR=/x\nOTHER=1\n")
    conf = site.conf(tmp_path / "lsf.conf")
    assert site.environment(tmp_path / "lsf.conf", conf) == {
        "LSF_ENVDIR": str(tmp_path), "LSF_LIBDIR": "/l", "LSF_BINDIR": "/b", "LD_LIBRARY_PATH": "/l",
    }  # fmt: skip


# ---- doctor and launcher
def test_doctor_finds_what_is_missing_and_what_is_well(lsf: Host, tmp_path: Path, monkeypatch: Any) -> None:
    fake = FakeLsf(tmp_path / "fake")
    settings = lsf.settings()
    section = settings.managers["lsf"].model_copy(update={"bin_dir": str(fake.bin), "control_hosts": ("here",)})
    settings = settings.model_copy(update={"managers": {"lsf": section}})
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    checks = {check.name: check for check in doctor.check(settings, Catalog({"fez": FEZ}))}
    assert checks["version"].ok
    assert checks["cluster"].ok
    assert checks["hook pre_exec"].ok is False
    assert checks["indices"].ok is False
    assert checks["ENABLE_USER_RESUME"].ok
    assert checks["daemon"].ok is False
    fake.sensors.write_text("fez 1\n")
    installer = Installer(settings, Catalog({"fez": FEZ}))
    installer.apply(installer.changes())
    checks = {check.name: check for check in doctor.check(settings, Catalog({"fez": FEZ}))}
    assert checks["indices"].ok
    assert "does not" not in checks["hook pre_exec"].detail


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ENABLE_USER_RESUME = Y", "ENABLE_USER_RESUME"),
        ("LOCAL_MAX_PREEXEC_RETRY = 3", "LOCAL_MAX_PREEXEC_RETRY"),
        ("PREEXEC_EXCLUDE_HOST_EXIT_VALUES = 75 76", "PREEXEC_EXCLUDE_HOST_EXIT_VALUES"),
        ("PREEXEC_EXCLUDE_HOST_EXIT_VALUES = all ~1", "PREEXEC_EXCLUDE_HOST_EXIT_VALUES"),
    ],
)
def test_doctor_finds_settings_that_would_hurt_jobs_whose_start_is_refused(
    lsf: Host, tmp_path: Path, monkeypatch: Any, line: str, name: str
) -> None:
    fake = FakeLsf(tmp_path / "fake")
    settings = lsf.settings()
    section = settings.managers["lsf"].model_copy(update={"bin_dir": str(fake.bin), "control_hosts": ("here",)})
    settings = settings.model_copy(update={"managers": {"lsf": section}})
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    fake.write(params=f"Parameters:\n    {line}\n")
    found = {check.name: check for check in doctor.check(settings, Catalog({"fez": FEZ}))}[name]
    assert found.ok is False
    assert found.fix
    fake.write(params="    PREEXEC_EXCLUDE_HOST_EXIT_VALUES = all ~75\n    LOCAL_MAX_PREEXEC_RETRY = 2147483647\n")
    checks = {check.name: check for check in doctor.check(settings, Catalog({"fez": FEZ}))}
    assert all(checks[each].ok for each in ("ENABLE_USER_RESUME", "LOCAL_MAX_PREEXEC_RETRY"))
    assert checks["PREEXEC_EXCLUDE_HOST_EXIT_VALUES"].ok


@pytest.mark.parametrize(
    "argv",
    [
        ["bjobs", "-u", "all", "-json", "-o", "x", "1", "2"], ["bjobs", "-u", "all", "-w"], ["lsload", "-s"],
        ["bhosts", "-s"], ["bstop", "12[3]"], ["bresume", "12"], ["bpost", "-d", "x", "12"],
    ],
)  # fmt: skip
def test_the_launcher_may_start_what_the_manager_types(lsf: Host, argv: list[str], fits: Callable[..., bool]) -> None:
    allowed = rights.commands(lsf.settings().managers["lsf"])
    assert any(fits(tuple(argv[1:]), tuple(line)) for line in allowed.allow[argv[0]])


@pytest.fixture
def fits() -> Callable[..., bool]:
    from qtandem.daemons.launchplan import fits

    return fits


@pytest.mark.parametrize(
    "argv", [["bstop", "-u", "all", "0"], ["bkill", "1"], ["brequeue", "-H", "1"], ["bresume", "-u", "x", "0"]]
)
def test_the_launcher_starts_nothing_else(lsf: Host, argv: list[str], fits: Callable[..., bool]) -> None:
    allowed = rights.commands(lsf.settings().managers["lsf"])
    assert not any(fits(tuple(argv[1:]), tuple(line)) for line in allowed.allow.get(argv[0], ()))

"""A launcher of root's, and this process as its caller. The users are those that every Debian has."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CALLER, WORKER, PUBLISHER = "daemon", "nobody", "games"
CONFIG = f"""
version = 1
user = "{CALLER}"
[worker]
user = "{WORKER}"
memory_mb = 0
root_types = ["rooted"]
environment = {{ PYTHONPATH = "/nowhere", https_proxy = "http://proxy.example" }}
[managers.probe]
user = "{PUBLISHER}"
environment = {{ SLURM_CONF = "/etc/slurm/slurm.conf" }}
[managers.probe.commands.sh]
path = "/bin/sh"
allow = [["-c", "*"]]
[managers.probe.commands.echo]
path = "/bin/echo"
allow = [["licence", "name=*"], ["show", "..."], ["set", "re:qpu_[a-z]+=[0-9]+(,qpu_[a-z]+=[0-9]+)*"]]
[managers.spy]
user = "{WORKER}"
[managers.spy.commands.cat]
path = "/bin/cat"
allow = [["*"]]
"""


class Rig:
    """`folder` is root's; `own` the caller's, for nobody else."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.command = [interpreter, "-m", "qtandem.daemons.launcher"]
        self.folder, self.own, self.socket = folder, folder / "own", folder / "launcher.sock"
        self.config = folder / "launcher.toml"
        self.config.write_text(CONFIG)
        self.own.mkdir(mode=0o700)
        os.chown(self.own, pwd.getpwnam(CALLER).pw_uid, -1)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # What a killed launcher had forked may still hear on its socket: that is not the new one.
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen([*self.command, "--config", str(self.config), "--socket", str(self.socket)])
        end = time.monotonic() + 10
        while not self.socket.exists() or self._deaf():
            assert time.monotonic() < end, "the launcher does not listen"
            time.sleep(0.01)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _deaf(self) -> bool:
        with caller(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket)) != 0


@contextmanager
def caller(name: str = CALLER) -> Iterator[None]:
    """Be another user; the kernel tells this uid to whom one connects."""
    before, account = (os.geteuid(), os.getegid()), pwd.getpwnam(name)
    become(account.pw_uid, account.pw_gid)
    try:
        yield
    finally:
        become(*before)


def become(uid: int, gid: int) -> None:
    os.seteuid(0)
    os.setegid(gid)
    os.seteuid(uid)


def status(pid: int) -> Mapping[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def others_can_run(interpreter: str) -> bool:
    """Whether another user can run this interpreter with our modules and what they import."""
    account = pwd.getpwnam(WORKER)
    code = f"import sys; sys.path.insert(0, {str(ROOT / '.dev')!r}); import qtandem.core.facts"
    argv = [interpreter, "-I", "-c", code]
    try:
        tried = subprocess.run(
            argv, user=account.pw_uid, group=account.pw_gid, extra_groups=[], cwd="/", capture_output=True, check=False
        )
    except PermissionError:
        return False
    return tried.returncode == 0


@pytest.fixture(scope="session")
def interpreter() -> Iterator[str]:
    """This one if other users may run it, else the system's with the packages of this one."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of other users")
    if others_can_run(sys.executable):
        yield sys.executable
        return
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory(prefix="qtl-python") as folder:
        Path(folder).chmod(0o755)
        if Path(system).exists():
            subprocess.run([system, "-m", "venv", "--without-pip", folder], check=True)
            (packages,) = Path(folder).glob("lib/*/site-packages")
            (packages / "these.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        made = f"{folder}/bin/python"
        if not others_can_run(made):
            pytest.skip("other users cannot read this checkout or its interpreter")
        yield made


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, interpreter: str) -> Iterator[Rig]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    folder = Path(tempfile.mkdtemp(prefix="qtl"))
    folder.chmod(0o755)
    made = Rig(folder, interpreter)
    made.start()
    try:
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder)

"""The examples as jobs: a real daemon, a real queue, simulated QPUs."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from qtandem.core.client.transport import Daemon
from qtandem.daemons.commands.toml import document
from qtandem.local.queue import LocalQueue
from qtandem.local.store import State

pytest.importorskip("qiskit_aer", reason="the simulator runs circuits on Qiskit Aer")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon = Daemon(folder / "s", patience_s=30)
        self.queue = LocalQueue(folder / "queue", daemon=self.daemon)
        self.processes = []

    def start(self) -> None:
        simulators = {
            name: {"type": "simulator", "slots": 2, "settings": {"state_dir": str(self.folder / name)}}
            for name in ("ibm_fez", "iqm-garnet")
        }
        paths = ("runtime_dir", "state_dir", "master_key", "qrmi_config", "tls_dir")
        settings = {
            "daemon": {"socket": self.daemon.path, "metrics": "", **{key: self.folder / "var" / key for key in paths}},
            "resources": simulators,
            "managers": {"local": {"options": {"state_dir": str(self.queue.folder)}}},
        }
        (self.folder / "qtandem.toml").write_text(document(settings))
        self._run("qtandem.daemons.qtandemd", "--config", str(self.folder / "qtandem.toml"))
        self._run(
            "qtandem.local.command", "run", "--state-dir", str(self.queue.folder), "--socket", str(self.daemon.path)
        )
        self.daemon.get("healthz")

    def run(self, request: str, *argv: str) -> str:
        """The output of a job that completes."""
        environ = {**self._environ(), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        job = self.queue.submit(argv, request, environ=environ, cwd=EXAMPLES)
        row = self.queue.wait(job, timeout=40)
        out = (self.queue.folder / "output" / f"{job}.out").read_text()
        assert row.state is State.COMPLETED, out or row.reason
        return out

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(20)

    def _run(self, module: str, *arguments: str) -> None:
        log = (self.folder / f"{module}.log").open("wb")
        command = [sys.executable, "-m", module, *arguments]
        self.processes.append(subprocess.Popen(command, env=self._environ(), stdout=log, stderr=log))

    def _environ(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("QTANDEM_")}
        return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="module")
def site():
    folder = Path(tempfile.mkdtemp(prefix="qt"))
    (folder / "bin").mkdir()
    command = folder / "bin" / "qtandem"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m qtandem.daemons.cli "$@"\n')
    command.chmod(0o755)
    site = Site(folder)
    try:
        site.start()
        yield site
    finally:
        site.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_bell(site):
    out = site.run("ibm_fez", sys.executable, "bell.py")
    assert out.startswith("ibm_fez {")
    assert "'00'" in out


def test_bell_from_a_shell(site):
    assert '"counts"' in site.run("ibm_fez", "/bin/sh", "bell.sh")


def test_the_verbs_of_qrmi(site):
    out = site.run("ibm_fez", sys.executable, "qrmi_verbs.py")
    assert "TaskStatus.Completed" in out


def test_two_qpus_one_of_them_with_a_name_that_shells_do_not_take(site):
    lines = site.run("ibm_fez+iqm-garnet", sys.executable, "two_qpus.py").splitlines()
    assert [line.split()[0] for line in lines] == ["ibm_fez", "iqm_garnet"]


def test_env_in_a_shell_without_the_variables(site):
    script = 'unset QRMI_JOB_QPU_RESOURCES; eval "$(qtandem env)"; echo $QRMI_JOB_QPU_RESOURCES'
    assert site.run("iqm-garnet", "/bin/sh", "-c", script) == "iqm_garnet\n"


def test_everything_is_given_back(site):
    site.run("ibm_fez", "/bin/true")
    assert site.daemon.get("leases") == {"leases": []}

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
from qtandem.core.errors import QtandemError
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
        job = self.queue.submit(argv, request, environ=self.environ(), cwd=EXAMPLES)
        row = self.queue.wait(job, timeout=40)
        out = (self.queue.folder / "output" / f"{job}.out").read_text()
        assert row.state is State.COMPLETED, out or row.reason
        return out

    def environ(self) -> dict[str, str]:
        """For commands that find this site, this Python, and `qtandem`."""
        site = {"QTANDEM_SOCKET": str(self.daemon.path), "STATE_DIR": str(self.queue.folder)}
        return {**self._environ(), **site, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

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
    for name, words in {"qtandem": "-m qtandem.daemons.cli", "python3": ""}.items():
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        command.chmod(0o755)
    site = Site(folder)
    try:
        site.start()
        yield site
    finally:
        site.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", ["sampler.py", "estimator.py", "vqe.py", "qaoa.py", "aio.py", "bell.sh"])
def test_slurm_reads_the_directives(name):
    head = (EXAMPLES / name).read_text().splitlines()[:6]
    assert head[0].startswith("#!")
    assert any(line.startswith("#SBATCH --qpu=") for line in head)


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


def test_the_sampler_of_qiskit(site):
    out = site.run("ibm_fez", sys.executable, "sampler.py")
    assert out.startswith("ibm_fez {")
    assert "'111'" in out


def test_the_estimator_of_qiskit(site):
    values = [float(line.split()[1]) for line in site.run("ibm_fez", sys.executable, "estimator.py").splitlines()]
    assert values == pytest.approx([1, 1.414, 1, 0, -1], abs=0.1)


def test_vqe_runs_its_many_tasks_on_one_lease(site):
    energy, *_, tasks, _ = site.run("ibm_fez", sys.executable, "vqe.py").split()
    assert float(energy) == pytest.approx(-1.857, abs=0.1)
    assert site.daemon.get("usage")["usage"][-1]["tasks"] == int(tasks) > 10


def test_one_element_of_qaoa(site):
    element, cut, *_ = site.run("any:qubits=5", sys.executable, "qaoa.py").split()
    assert element == "3"
    assert float(cut) > 3.3


def test_asyncio(site):
    lines = site.run("ibm_fez:2", sys.executable, "aio.py").splitlines()
    assert len(lines) == 10
    assert lines[0] == "0.0 0.000"


def test_circuit_cutting_on_the_queue_of_one_machine(site, tmp_path):
    pytest.importorskip("qiskit_addon_cutting", reason="the circuit-cutting example cuts with it")
    script = EXAMPLES / "cutting" / "local.sh"
    said = subprocess.run(
        ["sh", script, "any", "1"], env=site.environ(), cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert said.returncode == 0, said.stderr
    values = [line.split() for line in (tmp_path / "cutting-out" / "values").read_text().splitlines()]
    assert len(values) == 3
    assert all(float(value) == pytest.approx(float(exact), abs=0.15) for _, value, _, exact in values)


def test_a_refusal_says_once_what_to_do(site):
    with pytest.raises(QtandemError, match="Write --qpu=ibm_fez:2 at most") as refused:
        site.queue.submit(["/bin/true"], "ibm_fez:3")
    assert len(refused.value.lines()) == 1


def test_everything_is_given_back(site):
    site.run("ibm_fez", "/bin/true")
    assert site.daemon.get("leases") == {"leases": []}

"""The demo: a real daemon, a real queue, simulated QPUs, jobs that are scripts, all in a temporary folder.

Without root, Docker or a cluster. Everything that is shown was asked of the daemon, the queue or the devices.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qtandem.core.client.calls import as_object, as_rows
from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.core.providers.simulator.device import SimulatedDevice
from qtandem.daemons.commands.output import print_table
from qtandem.daemons.commands.toml import document
from qtandem.local.queue import LocalQueue
from qtandem.local.store import Row, State

READY_S, JOBS_S, STOP_S = 30.0, 120.0, 10.0
LOOK_S = 0.05
ROOM_FOR_SOCKET = 90

SCRIPT = '''\
"""A GHZ state of some qubits, measured: python ghz.py QUBITS SHOTS"""

import json
import sys

from qtandem.core.client import Payload, acquire, counts

qubits, shots = int(sys.argv[1]), int(sys.argv[2])
entangle = "\\n".join(f"cx q[{n}], q[{n + 1}];" for n in range(qubits - 1))
program = f"""OPENQASM 3.0;
include "stdgates.inc";
qubit[{qubits}] q;
bit[{qubits}] c;
h q[0];
{entangle}
c = measure q;
"""

with acquire() as qpu:
    result = qpu.run(Payload.QASM3(program, shots), timeout=100)
print(json.dumps(counts(result.value)))
'''


@dataclass(frozen=True)
class Qpu:
    name: str
    backend: str
    slots: int


@dataclass(frozen=True)
class Order:
    """A job to submit: `--qpu` request, qubits and shots of its circuit."""

    request: str
    qubits: int
    shots: int


CLOSED = "sim_marrakesh"
QPUS = (Qpu("sim_fez", "fake_fez", 2), Qpu("sim_torino", "fake_torino", 1), Qpu(CLOSED, "fake_marrakesh", 1))
ORDERS = (
    Order("sim_fez", 2, 1000),
    Order("sim_fez", 3, 800),
    Order("sim_fez", 2, 500),
    Order("sim_torino", 4, 2000),
    Order(CLOSED, 5, 1500),
)


def run(*, as_json: bool) -> bool:
    """Show the main job; True when all jobs completed and every QPU was given back."""
    if find_spec("qiskit_aer") is None:
        raise QtandemError(
            "no-provider", "The demo runs circuits on Qiskit Aer", remedy="pip install 'qtandem[simulator]'"
        )
    with _folder() as folder:
        stage = _Stage(folder, quiet=as_json)
        try:
            outcome = stage.play()
        finally:
            stage.close()
    if as_json:
        print(json.dumps(outcome))
    return stage.good(outcome)


class _Stage:
    """The processes of the demo and what it says of them."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._quiet = quiet
        self._began = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._devices = {qpu.name: SimulatedDevice(folder / "devices" / qpu.name) for qpu in QPUS}
        self._daemon = Daemon(folder / "run" / "qtandem.sock", deadline_s=20.0)
        self._queue = LocalQueue(folder / "queue", daemon=self._daemon)
        self._problems: list[str] = []

    def play(self) -> dict[str, Any]:
        self._devices[CLOSED].set(availability="paused", reason="calibrating")
        self._say(f"{len(QPUS)} simulated QPUs; {CLOSED} is being calibrated. Starting qtandemd and a queue ...")
        self._start_daemon()
        self._start("queue", "qtandem.local.command", "run", "--state-dir", str(self._queue.folder))
        self._say(f"qtandemd is ready. Submitting {len(ORDERS)} jobs ...")
        jobs = [self._submit(order) for order in ORDERS]
        rows = self._watch(jobs)
        outcome = self._outcome(rows)
        self._show(outcome, rows)
        return outcome

    def good(self, outcome: Mapping[str, Any]) -> bool:
        for problem in self._problems:
            print(f"qtandem: {problem}", file=sys.stderr)
        return not self._problems and not outcome["leases_open"]

    def close(self) -> None:
        """The queue first: it ends what still runs and reports it."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"[{time.monotonic() - self._began:5.1f} s] {text}", flush=True)

    def _start_daemon(self) -> None:
        config = self._folder / "qtandem.toml"
        config.write_text(document(_settings(self._folder)))
        process = self._start("qtandemd", "qtandem.daemons.qtandemd", "--config", str(config))
        ends = time.monotonic() + READY_S
        while True:
            try:
                self._daemon.get("healthz", deadline_s=2.0)
                return
            except QtandemError as error:
                if process.poll() is not None or time.monotonic() > ends:
                    raise QtandemError(
                        "daemon-unreachable",
                        "The demo's qtandemd did not start",
                        remedy="",
                        cause=self._tail("qtandemd"),
                    ) from error
            time.sleep(LOOK_S)

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**_environ(), "QTANDEM_SOCKET": str(self._daemon.path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _submit(self, order: Order) -> int:
        script = self._folder / "ghz.py"
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), str(order.qubits), str(order.shots)]
        job = self._queue.submit(command, order.request, name="ghz", cwd=self._folder, environ=_environ())
        self._say(f"job {job}: --qpu={order.request}, {order.shots} shots of a {order.qubits}-qubit GHZ state")
        return job

    def _watch(self, jobs: Sequence[int]) -> list[Row]:
        """Tell what happens to the jobs until all have ended; open the closed QPU when the first has."""
        told: dict[int, str] = {}
        opened = False
        ends = time.monotonic() + JOBS_S
        while True:
            rows = [self._queue.job(job) for job in jobs]
            for row in rows:
                self._tell(row, told)
            if all(row.state.final for row in rows):
                return rows
            if not opened and any(row.state.final for row in rows):
                self._devices[CLOSED].set(availability="online", reason="")
                self._say(f"{CLOSED}: calibration is over, the device goes online")
                opened = True
            if time.monotonic() > ends:
                self._problems.append(f"not all jobs ended within {JOBS_S:.0f} s")
                return rows
            time.sleep(LOOK_S)

    def _tell(self, row: Row, told: dict[int, str]) -> None:
        now = f"{row.state} {row.reason if row.state is State.PENDING else ''}"
        if told.get(row.id) == now or (row.state is State.PENDING and not row.reason):
            return
        answer: Mapping[str, Any] = {}
        if row.state is State.PENDING:
            answer = as_object(self._daemon.get("explain", str(self._queue.full_id(row.id))))
            if "busy" in row.reason and all(each["open"] for each in as_rows(answer, "resources")):
                return  # the queue counts jobs whose leases are not taken yet: this is not the cause
        told[row.id] = now
        if row.state is State.PENDING:
            self._say(f"job {row.id}: pending ({row.reason})")
            for line in answer["lines"]:
                self._say(f"        explain: {line}")
        elif row.state is State.RUNNING:
            self._say(f"job {row.id}: running, waited {_waited(row):.1f} s")
        elif row.state.final:
            self._say(f"job {row.id}: {row.state}")

    def _outcome(self, rows: Sequence[Row]) -> dict[str, Any]:
        tasks = as_rows(self._daemon.get("tasks"), "tasks")
        used = as_rows(self._daemon.get("usage"), "usage")
        jobs = [self._result(row, [task for task in tasks if task["run"] == row.run and row.run]) for row in rows]
        acquired = {
            entry["key"] for device in self._devices.values() for entry in device.log() if entry["event"] == "acquire"
        }
        if len(acquired) != len(used):
            self._problems.append(f"{len(used)} leases are accounted, the devices saw {len(acquired)} sessions")
        for device in self._devices.values():
            self._problems.extend(device.violations())
        return {
            "jobs": jobs,
            "leases_open": len(as_rows(self._daemon.get("leases"), "leases")),
            "leases_total": len(used),
        }

    def _result(self, row: Row, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        output = Path(row.output.replace("%j", str(row.id)))
        printed = output.read_text() if output.exists() else ""
        counts: dict[str, int] = {}
        if row.state is State.COMPLETED:
            counts = json.loads(printed.splitlines()[-1])
        shots = sum(task["shots"] or 0 for task in tasks)
        if row.state is not State.COMPLETED:
            self._problems.append(f"job {row.id} {row.state}: {row.reason or printed.strip() or self._tail('queue')}")
        elif sum(counts.values()) != shots:
            self._problems.append(f"job {row.id}: {sum(counts.values())} counts, but {shots} shots are accounted")
        resources = sorted({str(task["resource"]) for task in tasks}) or [row.request]
        return {
            "id": str(self._queue.full_id(row.id)),
            "resource": "+".join(resources),
            "state": str(row.state) if row.state.final else "failed",
            "waited_s": round(_waited(row), 3),
            "shots": shots,
            "counts": counts,
        }

    def _show(self, outcome: Mapping[str, Any], rows: Sequence[Row]) -> None:
        if self._quiet:
            return
        print("\nResults")
        print_table(
            ["JOB", "RESOURCE", "STATE", "WAITED S", "SHOTS", "MOST FREQUENT"],
            (
                [job["id"], job["resource"], job["state"], f"{job['waited_s']:.1f}", job["shots"], _most(job["counts"])]
                for job in outcome["jobs"]
            ),
            aligned=True,
        )
        print("\nAccounted (qtandem usage)")
        print_table(
            ["RUN", "USER", "RESOURCE", "SLOTS", "HELD S", "TASKS", "SHOTS", "QPU S"],
            (
                [
                    u["run"],
                    u["user"],
                    u["resource"],
                    u["slots"],
                    f"{u['held_s']:.1f}",
                    u["tasks"],
                    u["shots"],
                    u["usage_s"],
                ]
                for u in as_rows(self._daemon.get("usage"), "usage")
            ),
            aligned=True,
        )
        print(f"\n{outcome['leases_total']} leases in all, {outcome['leases_open']} open.")
        ended = sum(row.state is State.COMPLETED for row in rows)
        self._say(f"{ended} of {len(rows)} jobs completed")

    def _tail(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-5:]) if path.exists() else ""


@contextmanager
def _folder() -> Iterator[Path]:
    """A private folder whose path leaves room for a socket's name."""
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="qtandem-", dir=base if len(base) < ROOM_FOR_SOCKET - 20 else "/tmp"))  # noqa: S108
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settings(folder: Path) -> dict[str, Any]:
    return {
        "daemon": {
            "socket": folder / "run" / "qtandem.sock",
            "runtime_dir": folder / "run",
            "state_dir": folder / "state",
            "master_key": folder / "state" / "master.key",
            "qrmi_config": folder / "qrmi_config.json",
            "tls_dir": folder / "tls",
            "metrics": "",
        },
        "resources": {
            qpu.name: {
                "type": "simulator",
                "slots": qpu.slots,
                "settings": {"state_dir": str(folder / "devices" / qpu.name), "backend": qpu.backend},
            }
            for qpu in QPUS
        },
        "managers": {"local": {"options": {"state_dir": str(folder / "queue")}}},
    }


def _environ() -> dict[str, str]:
    """Ours without settings of another daemon, and with our own way to find modules."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("QTANDEM_", "NOTIFY_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _waited(row: Row) -> float:
    return (row.started_at or time.time()) - row.submitted_at


def _most(counts: Mapping[str, int]) -> str:
    best = sorted(counts.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{bits}: {number}" for bits, number in best)

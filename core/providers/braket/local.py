"""The SDK's simulators on this host. Each task runs in a child of the worker, with its own folder as its record.

A folder is named after the task's key, so the same key is the same task; what ran when a worker ended starts again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from braket.devices import LocalSimulator

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Calibration, Observation
from qtandem.core.providers import frames
from qtandem.core.providers.base import Capabilities, ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.braket import run
from qtandem.core.providers.braket.payloads import KINDS, read
from qtandem.core.providers.braket.run import ERROR, PAYLOAD, RESULT, STOPPED
from qtandem.core.providers.braket.settings import LOCAL, Settings
from qtandem.core.providers.records import folder, put

_KEPT_S = 7 * 86_400.0
_ID = re.compile(r"[0-9a-f]{32}")


class LocalProvider:
    """One simulator. At most `slots` tasks run at once, the others wait."""

    capabilities = Capabilities(
        sessions=False, finds_sessions=False, finds_tasks=True, payloads=KINDS, logs=False, stop=True
    )

    def __init__(self, spec: ProviderSpec, settings: Settings) -> None:
        self._backend = settings.device.removeprefix(LOCAL) or "default"
        if self._backend not in LocalSimulator.registered_backends():
            known = ", ".join(sorted(LocalSimulator.registered_backends()))
            raise QtandemError("bad-config", f"The SDK has no simulator {self._backend!r}, but {known}")
        self._slots = max(1, spec.slots)
        self._folder = folder("braket", spec)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._described: Mapping[str, Any] = {}

    @property
    def busy(self) -> bool:
        return any(child.poll() is None for child in self._running.values())

    def observe(self) -> Observation:
        said = self._description()
        qubits = (said.get("paradigm") or {}).get("qubitCount")
        calibration = Calibration(qubits=qubits) if isinstance(qubits, int) and qubits > 0 else None
        return Observation(availability=Availability.ONLINE, total_slots=self._slots, calibration=calibration)

    def acquire(self, key: str, slots: int) -> str:  # noqa: ARG002  nothing is opened
        return key

    def release(self, token: str) -> None:
        for task in self._tasks():
            if _lease(self._folder / task) == token:
                self.task_stop(task)
        self._prune()

    def find_session(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def target(self) -> str:
        return json.dumps({"deviceName": self._backend, "deviceCapabilities": self._description()})

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        task = _id(key)
        if not (self._folder / task).exists():
            read(payload, None)
            self._write(task, token, payload)
        self._pump()
        return task

    def find_task(self, key: str) -> str | None:
        task = _id(key)
        return task if (self._folder / task).exists() else None

    def task_status(self, task: str) -> TaskReport:
        place = self._place(task)
        self._pump()
        if (place / STOPPED).exists():
            return TaskReport(TaskState.CANCELLED)
        if (place / ERROR).exists():
            return TaskReport(TaskState.FAILED, (place / ERROR).read_text())
        if (place / RESULT).exists():
            return TaskReport(TaskState.COMPLETED)
        return TaskReport(TaskState.RUNNING if task in self._running else TaskState.QUEUED)

    def task_result(self, task: str) -> str:
        report = self.task_status(task)
        if not report.state.final:
            raise QtandemError("task-not-ready", f"The task is {report.state}", retry_after=0.1)
        if report.state is not TaskState.COMPLETED:
            raise QtandemError(
                "task-failed", f"The task is {report.state}{': ' if report.reason else ''}{report.reason}"
            )
        return (self._folder / task / RESULT).read_text()

    def task_logs(self, task: str) -> str:
        self._place(task)
        return ""

    def task_stop(self, task: str) -> None:
        if not _ID.fullmatch(task) or not (self._folder / task).exists():
            return
        if self.task_status(task).state.final:
            return
        put(self._folder / task / STOPPED, "")
        child = self._running.pop(task, None)
        if child is not None:
            child.kill()
            child.wait()
        self._pump()

    def metadata(self) -> dict[str, str]:
        return {
            "device": f"{LOCAL}{self._backend}",
            "amazon-braket-sdk": version("amazon-braket-sdk"),
            "amazon-braket-default-simulator": version("amazon-braket-default-simulator"),
        }

    def _description(self) -> Mapping[str, Any]:
        if not self._described:
            self._described = json.loads(LocalSimulator(self._backend).properties.json())
        return self._described

    def _write(self, task: str, token: str, payload: Mapping[str, object]) -> None:
        """The folder appears at once, with all that is in it."""
        spare = self._folder / f".{task}"
        shutil.rmtree(spare, ignore_errors=True)
        spare.mkdir(mode=0o700)
        content = {"lease": token, "at": time.time(), "backend": self._backend, "payload": dict(payload)}
        put(spare / PAYLOAD, json.dumps(content))
        spare.rename(self._folder / task)

    def _pump(self) -> None:
        """Start what waits while there is room; a child that ended without a word failed."""
        for task, child in list(self._running.items()):
            if child.poll() is not None:
                del self._running[task]
                if not _ended(self._folder / task):
                    put(self._folder / task / ERROR, f"The simulator ended with status {child.returncode}")
        for task in self._tasks():
            if len(self._running) >= self._slots:
                return
            if task not in self._running and not _ended(self._folder / task):
                self._running[task] = self._start(task)

    def _start(self, task: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            frames.command(run.__name__), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/",
            env=frames.environment(),
        )  # fmt: skip
        assert child.stdin is not None
        child.stdin.write(str(self._folder / task).encode())
        child.stdin.close()
        return child

    def _place(self, task: str) -> Path:
        place = self._folder / task
        if not _ID.fullmatch(task) or not place.exists():
            raise QtandemError("no-such-run", f"There is no task {task[:40]!r} here")
        return place

    def _tasks(self) -> list[str]:
        """In the order in which they came."""
        found = [place for place in self._folder.iterdir() if _ID.fullmatch(place.name)]
        return [place.name for place in sorted(found, key=lambda place: (place / PAYLOAD).stat().st_mtime)]

    def _prune(self) -> None:
        for task in self._tasks():
            place = self._folder / task
            if _ended(place) and time.time() - place.stat().st_mtime > _KEPT_S:
                shutil.rmtree(place, ignore_errors=True)


def _id(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _lease(place: Path) -> str:
    return str(json.loads((place / PAYLOAD).read_text())["lease"])


def _ended(place: Path) -> bool:
    return any((place / name).exists() for name in (RESULT, ERROR, STOPPED))

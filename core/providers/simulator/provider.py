"""The simulator as a provider."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Calibration, Observation
from qtandem.core.providers.base import Capabilities, ProviderSpec, TaskReport
from qtandem.core.providers.simulator import calibration
from qtandem.core.providers.simulator.device import Knobs, SimulatedDevice, state_dir
from qtandem.core.providers.simulator.retention import DAYS, TASKS, Keep
from qtandem.core.providers.simulator.runner import Engines, Runner

PAYLOADS = frozenset({"qasm2", "qasm3", "qiskit-primitive"})
IDEAL_QUBITS, MAX_SHOTS = 32, 100_000
_FLOOD = 1 << 40
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Options:
    """The simulator's settings. With a fake backend, its own qubits and shots hold.

    Without `noise` circuits run as they are on an ideal simulator; with it they are compiled to the backend and
    run with the errors of the qubits they use. A `seed` makes equal tasks give equal counts.
    """

    backend: str = calibration.IDEAL
    qubits: int = IDEAL_QUBITS
    max_shots: int = MAX_SHOTS
    seed: int | None = None
    noise: bool = False
    keep: Keep = field(default_factory=Keep)

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> Options:
        """Raises `bad-config` for a value that is not what its key needs."""
        backend = settings.get("backend", calibration.IDEAL)
        noise = settings.get("noise", "false").lower()
        if noise not in _BOOLEANS:
            raise QtandemError("bad-config", f"noise = {noise!r} is neither true nor false")
        if _BOOLEANS[noise] and backend == calibration.IDEAL:
            raise QtandemError("bad-config", "noise needs a backend whose errors it takes, such as fake_fez")
        return cls(
            backend=backend,
            qubits=_integer(settings, "qubits", 1) or IDEAL_QUBITS,
            max_shots=_integer(settings, "max_shots", 1) or MAX_SHOTS,
            seed=_integer(settings, "seed", 0),
            noise=_BOOLEANS[noise],
            keep=Keep(_integer(settings, "keep_days", 1) or DAYS, _integer(settings, "keep_tasks", 100) or TASKS),
        )


def _integer(settings: Mapping[str, str], key: str, least: int) -> int | None:
    if not settings.get(key):
        return None
    try:
        value = int(settings[key])
    except ValueError:
        value = least - 1
    if value < least:
        raise QtandemError("bad-config", f"{key} = {settings[key]!r} is not a whole number from {least} up")
    return value


def _moody(
    method: Callable[Concatenate[SimulatorProvider, _P], _T],
) -> Callable[Concatenate[SimulatorProvider, _P], _T]:
    """Let the device's latency and faults strike a method."""
    name = method.__name__

    @wraps(method)
    def call(self: SimulatorProvider, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        knobs = self.device.knobs()
        time.sleep(knobs.latency_s)
        _strike(knobs.strikes(name, "before"))
        result = method(self, *args, **kwargs)
        _strike(knobs.strikes(name, "after"))
        return result

    return call


def _strike(fault: str) -> None:
    match fault:
        case "hang":
            while True:
                signal.pause()
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "flood":
            taken = [bytearray(64 << 20) for _ in range(_FLOOD // (64 << 20))]
            raise MemoryError(len(taken))
        case "garbage":
            os.write(1, b"\x00\xff\xff\xff<html>502 Bad Gateway</html>\n")
            raise QtandemError("vendor-error", "The simulator's answer cannot be read", cause="<html>502 Bad Gateway")
        case "500":
            raise QtandemError("vendor-error", "The simulator answered 500 Internal Server Error")
        case "401":
            raise QtandemError("bad-credentials", "The simulator answered 401 Unauthorized")
        case "403":
            raise QtandemError("policy", "The simulator answered 403 Forbidden")


class SimulatorProvider:
    """One simulated device. Its state outlives this process; only circuits need the SDK, in engines of their own."""

    capabilities = Capabilities(sessions=True, finds_sessions=True, finds_tasks=True, payloads=PAYLOADS)

    def __init__(self, spec: ProviderSpec) -> None:
        self._spec = spec
        self._options = Options.read(spec.settings)
        self.device = _device(state_dir(spec.resource, spec.settings), self._options.keep)
        self._calibration: Calibration | None = None
        self._runner: Runner | None = None

    @property
    def busy(self) -> bool:
        return self._runner is not None and self.device.unfinished_tasks() > 0

    def observe(self) -> Observation:
        try:
            return self._observe()
        except QtandemError as error:
            if error.code != "policy":
                raise
            return Observation(availability=Availability.FORBIDDEN, reason=error.message)

    @_moody
    def acquire(self, key: str, slots: int) -> str:
        now, knobs = self.device.clock(), self.device.knobs()
        availability, reason, opens_at = _state(knobs, now)
        if self.device.find_session(key) is None and availability is not Availability.ONLINE:
            wait = None if opens_at is None else max(0.0, opens_at - now)
            words = f"The simulator is {availability}" + (f": {reason}" if reason else "")
            raise QtandemError("not-available", words, retry_after=wait)
        return self.device.acquire(key, slots, self._spec.slots)

    @_moody
    def release(self, token: str) -> None:
        for task in self.device.release(token):
            if self._runner is not None:
                self._runner.stop(task)

    @_moody
    def find_session(self, key: str) -> str | None:
        return self.device.find_session(key)

    @_moody
    def target(self) -> str:
        if self._options.backend == calibration.IDEAL:
            return json.dumps(calibration.ideal_description(self._options.qubits, self._options.max_shots))
        return json.dumps(calibration.description(self._options.backend))

    @_moody
    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        if self.device.find_task(key) is None:
            self._check(payload)
        task = self.device.task_start(token, key, payload)
        self._tasks().wake()
        return task

    @_moody
    def find_task(self, key: str) -> str | None:
        return self.device.find_task(key)

    @_moody
    def task_status(self, task: str) -> TaskReport:
        report = self.device.task_report(task)
        if not report.state.final:
            self._tasks().wake()
        return report

    @_moody
    def task_result(self, task: str) -> str:
        return self.device.task_result(task)

    @_moody
    def task_logs(self, task: str) -> str:
        return "".join(_log_line(entry) for entry in self.device.task_log(task))

    @_moody
    def task_stop(self, task: str) -> None:
        self.device.task_stop(task)
        if self._runner is not None:
            self._runner.stop(task)

    @_moody
    def metadata(self) -> dict[str, str]:
        return {"backend_name": self._options.backend, "noise": str(self._options.noise).lower()} | _versions()

    def _observe(self) -> Observation:
        knobs = self.device.knobs()
        time.sleep(knobs.latency_s)
        _strike(knobs.strikes("observe", "before"))
        now = self.device.clock()
        availability, reason, opens_at = _state(knobs, now)
        total = self._spec.slots if knobs.slots is None else knobs.slots
        wait = knobs.wait_s
        if wait is None and opens_at is not None and availability is not Availability.ONLINE:
            wait = max(0.0, opens_at - now)
        taken_at = knobs.calibrated_at(now)
        known = self._read_calibration()
        return Observation(
            availability=availability,
            reason=reason,
            queue=knobs.queue,
            free_slots=knobs.capacity(self._spec.slots),
            total_slots=total,
            wait_s=wait,
            opens_at=opens_at,
            calibration=known if taken_at is None else known.model_copy(update={"taken_at": taken_at}),
        )

    def _check(self, payload: Mapping[str, object]) -> None:
        kind = payload.get("kind")
        if kind not in PAYLOADS:
            takes = ", ".join(sorted(PAYLOADS))
            raise QtandemError("bad-payload", f"The simulator takes {takes}, not {kind!r}")
        if find_spec("qiskit_aer") is None:
            raise QtandemError("no-provider", "Qiskit Aer is not installed", remedy="pip install 'qtandem[simulator]'")
        _engines().check({"op": "check", "payload": dict(payload), "options": self._engine_options()})

    def _engine_options(self) -> dict[str, object]:
        device = self._read_calibration()
        return {
            "backend": self._options.backend,
            "noise": self._options.noise,
            "seed": self._options.seed,
            "qubits": device.qubits,
            "max_shots": device.max_shots or self._options.max_shots,
        }

    def _read_calibration(self) -> Calibration:
        if self._calibration is None:
            options = self._options
            self._calibration = (
                calibration.ideal(options.qubits, options.max_shots)
                if options.backend == calibration.IDEAL
                else calibration.snapshot(options.backend, self.device.path)
            )
        return self._calibration

    def _tasks(self) -> Runner:
        if self._runner is None:
            self._runner = Runner(self.device, _engines(), self._engine_options())
        return self._runner


def _device(folder: Path, keep: Keep) -> SimulatedDevice:
    try:
        return SimulatedDevice(folder, keep=keep)
    except (OSError, sqlite3.Error) as error:
        raise QtandemError(
            "bad-config", f"The simulator cannot keep its state in {folder}", cause=str(error)
        ) from error


@cache
def _engines() -> Engines:
    """The engines of this worker, whatever number of devices it serves."""
    return Engines(max(2, os.cpu_count() or 1))


def _state(knobs: Knobs, now: float) -> tuple[Availability, str, float | None]:
    """Availability, reason and when it opens: a calibration window pauses a device that is else online."""
    availability = Availability(knobs.availability)
    window = knobs.window(now)
    if availability is Availability.ONLINE and window is not None:
        return Availability.PAUSED, "calibrating", window[1]
    return availability, knobs.reason, knobs.opens_at


def _log_line(entry: Mapping[str, object]) -> str:
    at = datetime.fromtimestamp(float(str(entry["at"])), UTC).isoformat(timespec="milliseconds")
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    return f"{at} {entry['event']}{reason}\n"


def _versions() -> dict[str, str]:
    found = {}
    for package in ("qiskit", "qiskit-aer", "qiskit-ibm-runtime"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""A resource behind the qrmi library. The lease is qtandem's own where the library only makes up a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.providers.base import Capabilities, ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.calibrations import Recent
from qtandem.core.providers.combine import observation
from qtandem.core.providers.passing import Asked
from qtandem.core.providers.qrmi import felis, iqm, oqtopus, pasqal
from qtandem.core.providers.qrmi.dialects import Dialect
from qtandem.core.providers.qrmi.gates import FelisGate, IqmGate, PasqalGate
from qtandem.core.providers.qrmi.wheel import nothing_made
from qtandem.core.providers.records import Records, folder


class QrmiProvider:
    """What all of them share: our keys are kept in records, because no vendor here finds a task by one.

    A refused submission can be made again; an interrupted one is told as such and never is.
    """

    capabilities: Capabilities

    def __init__(self, spec: ProviderSpec, speak: Dialect, clock: Callable[[], float] = time.monotonic) -> None:
        self._speak = speak
        self._records = Records(lambda: folder(spec.type, spec))
        self._calibration = Recent(speak.calibration, clock, ("bad-credentials", "policy", "bad-config"))

    def observe(self) -> Observation:
        return observation(self._speak.signals(), self._calibration.get())

    def acquire(self, key: str, slots: int) -> str:  # noqa: ARG002  there are no sessions
        """Opens nothing: looks whether the device takes tasks."""
        seen = observation(self._speak.signals())
        if seen.availability in (Availability.OFFLINE, Availability.PAUSED):
            why = f": {seen.reason}" if seen.reason else ""
            raise QtandemError("not-available", f"The device is {seen.availability}{why}")
        return key

    def release(self, token: str) -> None:
        """Cancels what the lease started and has not ended."""
        for task in self._records.of(token):
            self._cancel(task)
        self._records.forget(token)

    def find_session(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def target(self) -> str:
        return self._speak.wheel.target()

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        made = self._speak.payload(payload, key)
        return self._records.once(key, token, lambda: self._start(token, made), nothing_made)

    def find_task(self, key: str) -> str | None:
        """From our own records; raises `task-failed` for a submission that was interrupted."""
        return self._records.find(key)

    def task_status(self, task: str) -> TaskReport:
        return self._speak.report(task)

    def task_result(self, task: str) -> str:
        report = self._speak.report(task)
        if not report.state.final:
            raise QtandemError("task-not-ready", f"The task is {report.state}", retry_after=1.0)
        if report.state is not TaskState.COMPLETED:
            why = f": {report.reason}" if report.reason else ""
            raise QtandemError("task-failed", f"The task is {report.state}{why}")
        return self._speak.result(task)

    def task_logs(self, task: str) -> str:
        return self._speak.logs(task)

    def task_stop(self, task: str) -> None:
        try:
            if not self._speak.report(task).state.final:
                self._speak.stop(task)
        except QtandemError as error:
            # It ended meanwhile, or is gone.
            if error.code not in ("no-such-run", "task-failed"):
                raise

    def metadata(self) -> dict[str, str]:
        return {"qrmi": version("qrmi")} | self._speak.metadata()

    def _start(self, token: str, payload: object) -> str:  # noqa: ARG002
        return self._speak.wheel.start(payload)

    def _cancel(self, task: str) -> None:
        """Part of a release, which goes on where the vendor cannot cancel."""
        try:
            self.task_stop(task)
        except QtandemError as error:
            if error.code != "unsupported":
                raise


def _capabilities(kind: str, *, logs: bool, sessions: bool = False) -> Capabilities:
    return Capabilities(
        sessions=sessions, finds_sessions=False, finds_tasks=True, payloads=frozenset({kind}), logs=logs, stop=True
    )


class IqmProvider(QrmiProvider):
    capabilities = _capabilities(iqm.KIND, logs=True)

    def __init__(self, spec: ProviderSpec) -> None:
        speak = iqm.Iqm(spec)
        super().__init__(spec, speak)
        self._gate = IqmGate(iqm.VENDOR, speak.sender, self._records, speak.remote, iqm.machine_of)

    def forward(self, token: str, asked: Mapping[str, Any]) -> dict[str, object]:
        return self._gate.pass_on(token, Asked(**asked)).wire()


class FelisProvider(QrmiProvider):
    capabilities = _capabilities(felis.KIND, logs=False)

    def __init__(self, spec: ProviderSpec) -> None:
        speak = felis.Felis(spec)
        super().__init__(spec, speak)
        self._gate = FelisGate(felis.VENDOR, speak.sender, self._records, speak.remote, felis.target_of)

    def forward(self, token: str, asked: Mapping[str, Any]) -> dict[str, object]:
        return self._gate.pass_on(token, Asked(**asked)).wire()


class PasqalCloudProvider(QrmiProvider):
    capabilities = _capabilities(pasqal.KIND, logs=False)

    def __init__(self, spec: ProviderSpec) -> None:
        speak = pasqal.PasqalCloud(spec)
        super().__init__(spec, speak)
        self._gate = PasqalGate(pasqal.CLOUD, speak.sender, self._records, speak.remote, project=speak.project)

    def forward(self, token: str, asked: Mapping[str, Any]) -> dict[str, object]:
        return self._gate.pass_on(token, Asked(**asked)).wire()


class OqtopusProvider(QrmiProvider):
    capabilities = _capabilities(oqtopus.KIND, logs=False)

    def __init__(self, spec: ProviderSpec) -> None:
        super().__init__(spec, oqtopus.Oqtopus(spec))


class PasqalLocalProvider(QrmiProvider):
    """The one with sessions: the middleware opens them without limit of time, so that each is closed by its lease."""

    capabilities = _capabilities(pasqal.KIND, logs=True, sessions=True)

    def __init__(self, spec: ProviderSpec) -> None:
        self._local = pasqal.PasqalLocal(spec)
        super().__init__(spec, self._local)
        self._sessions = Records(lambda: folder(spec.type, spec, "sessions"))

    def acquire(self, key: str, slots: int) -> str:  # noqa: ARG002
        """A session whose opening was interrupted stays open at the middleware, idle; a new one is opened."""
        known = self.find_session(key)
        if known is not None:
            return known
        self._sessions.forget(key)
        return self._sessions.once(key, key, lambda: self._local.for_job(key).acquire(), nothing_made)

    def release(self, token: str) -> None:
        super().release(token)
        try:
            self._local.for_session(token).release(token)
        except QtandemError as error:
            if error.code != "no-such-run":
                raise
        self._sessions.drop(token)

    def find_session(self, key: str) -> str | None:
        """From our own records."""
        try:
            return self._sessions.find(key)
        except QtandemError:
            return None

    def _start(self, token: str, payload: object) -> str:
        return self._local.for_session(token).start(payload)

"""IBM Quantum Compute Service, through the REST layer of qiskit-ibm-runtime.

What that client would retry for long or wait for without end is bounded: its transport gets our own retries and
time-outs, and the worker's deadline holds for the two calls that bring their own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, TypeVar

from qiskit_ibm_runtime.api.rest.runtime import Runtime
from qiskit_ibm_runtime.api.session import RetrySession
from qiskit_ibm_runtime.exceptions import IBMNotAuthorizedError

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Calibration, Observation
from qtandem.core.providers.base import Capabilities, ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.calibrations import Recent, digest
from qtandem.core.providers.classify import Call, Meaning, unreadable
from qtandem.core.providers.combine import Signals, observation, seconds
from qtandem.core.providers.ended import Ended
from qtandem.core.providers.ibm import payloads, sessions
from qtandem.core.providers.ibm.forwarding import Gate
from qtandem.core.providers.ibm.http import TIMEOUT_S, IamAuth, adapter
from qtandem.core.providers.ibm.rest import base, tag, translated
from qtandem.core.providers.ibm.settings import BATCH, Settings
from qtandem.core.providers.parts import object_of, text_of
from qtandem.core.providers.passing import Asked

T = TypeVar("T")
VENDOR = "IBM Quantum"
# Tag of every job that we start: only such jobs are ever cancelled by a release.
OURS = "qtandem"
PREFIXES = {"qiskit-runtime-service": "QRMI_IBM_QRS_"}
PROGRAMS = {
    "sampler": "sampler",
    "estimator": "estimator",
    "noiselearner": "noise-learner",
    "noise-learner": "noise-learner",
    "executor": "executor",
}
STATES = {
    "queued": TaskState.QUEUED,
    "running": TaskState.RUNNING,
    "completed": TaskState.COMPLETED,
    "failed": TaskState.FAILED,
    "cancelled": TaskState.CANCELLED,
    "cancelled - ran too long": TaskState.FAILED,
}
_RAN_TOO_LONG = 1305
_PAGE = 200
_NO_SESSIONS = Meaning("policy", "Set SESSION_MODE=batch for this resource: the plan permits no dedicated session.")


class ComputeProvider:
    """One backend of one instance."""

    capabilities = Capabilities(
        sessions=True, finds_sessions=True, finds_tasks=True, payloads=payloads.KINDS, logs=True, stop=True
    )

    def __init__(self, spec: ProviderSpec, clock: Callable[[], float] = time.monotonic) -> None:
        settings = Settings(spec, PREFIXES.get(spec.type, "QRMI_IBM_QCS_"))
        account = settings.account()
        self._backend = settings.backend
        self._mode, self._ttl_s = settings.session_mode(), settings.session_ttl_s()
        self._job_limit_s = settings.job_limit_s()
        self._auth = IamAuth(account)
        # The client would walk the whole stack for every request, to tell IBM what called it.
        os.environ.setdefault("USAGE_DATA_OPT_OUT", "True")
        self._session = RetrySession(base_url=base(account.endpoint), auth=self._auth, timeout=TIMEOUT_S)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter())
        self._api = Runtime(self._session)
        self._gate = Gate(self._auth, base(account.endpoint), self._backend, OURS)
        self._opened: dict[str, str] = {}
        self._ended = Ended()
        self._configuration: dict[str, Any] = {}
        self._calibration = Recent(self._read_calibration, clock)

    def observe(self) -> Observation:
        device = self._device()
        if device is None:
            why = f"{self._backend} is not among the backends of this instance"
            return Observation(availability=Availability.FORBIDDEN, reason=why)
        status = self._status()
        listed = object_of(device.get("status"))
        signals = Signals(
            words=(listed.get("name"), status.get("status")),
            operational=status.get("state"),
            queues=(device.get("queue_length"), status.get("length_queue")),
            reason=text_of(listed.get("reason")) or text_of(status.get("message")),
        )
        return observation(signals, self._calibration.get())

    def acquire(self, key: str, slots: int) -> str:  # noqa: ARG002  IBM's sessions are not divided
        found = self.find_session(key)
        if found is not None:
            return found
        meanings = {} if self._mode == BATCH else {"1352": _NO_SESSIONS}
        call = Call(VENDOR, f"open a {self._mode} session on {self._backend}", missing="bad-config", meanings=meanings)
        life = sessions.life_s(key, self._ttl_s)
        made = self._ask(
            call, lambda: self._api.runtime_session().create(backend=self._backend, max_time=life, mode=self._mode)
        )
        token = made.get("id")
        if not isinstance(token, str) or not token:
            raise unreadable(call, json.dumps(made))
        self._opened[key] = token
        return token

    def release(self, token: str) -> None:
        details = self._details(token)
        if details is None:
            return
        if sessions.is_open(details):
            self._ask(Call(VENDOR, "close a session"), lambda: self._api.runtime_session(token).close(), empty=True)
        for job in self._jobs(session_id=token, pending=True, job_tags=[OURS]):
            self._cancel(str(job.get("id")))
        self._opened = {key: other for key, other in self._opened.items() if other != token}

    def find_session(self, key: str) -> str | None:
        mine, life = self._opened.get(key), sessions.life_s(key, self._ttl_s)
        others = set(self._opened.values()) - {mine}
        call = Call(VENDOR, "list the sessions", missing="unsupported")
        listing = sessions.listed(
            lambda **query: self._ask(call, lambda: self._api.workloads_get(**query)), self._mode, self._backend
        )
        for id in [mine] if mine is not None else listing:
            details = self._details(id) if id not in others else None
            if details is not None and sessions.is_ours(details, self._mode, self._backend, life):
                return id
        return None

    def target(self) -> str:
        configuration = self._read_configuration()
        return json.dumps({"configuration": configuration, "properties": self._properties()})

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        return self.find_task(key) or self.task_send(token, key, payload)

    def task_send(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        shots = self._read_configuration().get("max_shots") if payload.get("kind") == "qasm3" else None
        program = payloads.read(payload, PROGRAMS, shots if isinstance(shots, int) else None)
        limit = payloads.timeout_s(payload) or self._job_limit_s
        call = Call(VENDOR, "start a task", submits=True, missing="bad-payload")
        try:
            made = self._ask(
                call,
                lambda: self._api.program_run(
                    program_id=program.id,
                    backend_name=self._backend,
                    params=dict(program.params),
                    session_id=token,
                    job_tags=[tag(key), OURS],
                    max_execution_time=limit,
                ),
            )
        except QtandemError as error:
            if error.code in ("bad-payload", "policy"):
                self._explain_closed(token, error)
            raise
        task = made.get("id")
        if not isinstance(task, str) or not task:
            raise unreadable(call, json.dumps(made))
        return task

    def find_task(self, key: str) -> str | None:
        for job in self._jobs(limit=1, job_tags=[tag(key)]):
            if isinstance(job.get("id"), str):
                return str(job["id"])
        return None

    def task_status(self, task: str) -> TaskReport:
        found = self._ended.get(task)
        if found is None:
            found = self._report(task, self._job(task))
        if found.more:
            found = replace(found, usage_s=self.task_usage(task), more=False)
            if found.usage_s is not None:
                self._ended.keep(task, found)
        return found

    def task_usage(self, task: str) -> float | None:
        try:
            call = Call(VENDOR, "tell the usage of a task")
            told = self._ask(call, lambda: self._api.program_job(task).metadata())
        except QtandemError:
            return None
        return _charged(told)

    def task_statuses(self, tasks: Sequence[str]) -> dict[str, TaskReport]:
        """From one page of our newest jobs."""
        rows = {str(job.get("id")): job for job in self._page_of_jobs(self._listing(job_tags=[OURS]))}
        return {task: self._ended.get(task) or self._report(task, rows[task]) for task in tasks if task in rows}

    def _report(self, task: str, job: Mapping[str, Any]) -> TaskReport:
        state = object_of(job.get("state"))
        word = text_of(state.get("status") or job.get("status")).lower()
        if word not in STATES:
            raise unreadable(Call(VENDOR, "tell the state of a task"), f"the state is {word[:40]!r}")
        found = STATES[word]
        if found is TaskState.CANCELLED and state.get("reason_code") == _RAN_TOO_LONG:
            found = TaskState.FAILED
        usage = _charged(job) if found.final else None
        report = TaskReport(found, text_of(state.get("reason")), usage, more=found.final and usage is None)
        if found.final:
            self._ended.keep(task, report)
        return report

    def task_result(self, task: str) -> str:
        report = self._ended.get(task) or self._report(task, self._job(task))
        if not report.state.final:
            raise QtandemError("task-not-ready", f"The task is {report.state}", retry_after=1.0)
        if report.state is not TaskState.COMPLETED:
            why = f": {report.reason}" if report.reason else ""
            raise QtandemError("task-failed", f"The task is {report.state}{why}")
        call = Call(VENDOR, "give a result")
        text = self._ask_text(call, task, "results")
        if not text:
            raise QtandemError("task-not-ready", "IBM has not stored the result yet", retry_after=1.0)
        return text

    def task_logs(self, task: str) -> str:
        return self._ask_text(Call(VENDOR, "give the log of a task"), task, "logs")

    def task_stop(self, task: str) -> None:
        self._cancel(task)

    def metadata(self) -> dict[str, str]:
        return {
            "backend_name": self._backend,
            "session_mode": self._mode,
            "qiskit-ibm-runtime": version("qiskit-ibm-runtime"),
        }

    def forward(self, token: str, asked: Mapping[str, Any]) -> dict[str, object]:
        return self._gate.pass_on(token, Asked(**asked)).wire()

    def discover(self, details: bool) -> list[dict[str, object]]:
        return [self._found(each, details) for each in self._devices() if isinstance(each.get("name"), str)]

    def _found(self, device: Mapping[str, Any], details: bool) -> dict[str, object]:
        row = {key: device.get(key) for key in ("name", "qubits")} | {"simulator": device.get("is_simulator")}
        row |= {"queue": device.get("queue_length"), "status": object_of(device.get("status")).get("name")}
        if details:
            call = Call(VENDOR, f"describe {row['name']}", missing="policy")
            found = self._ask(call, lambda: self._api.backend(str(row["name"])).configuration())
            row["max_shots"] = found.get("max_shots")
        return row

    def _device(self) -> Mapping[str, Any] | None:
        return next((each for each in self._devices() if each.get("name") == self._backend), None)

    def _devices(self) -> list[Mapping[str, Any]]:
        call = Call(VENDOR, "list its backends")
        answer = self._ask(call, lambda: self._api.backends(timeout=TIMEOUT_S[1]))
        devices = answer.get("devices")
        if not isinstance(devices, list):
            raise unreadable(call, json.dumps(answer))
        return list(map(object_of, devices))

    def _status(self) -> dict[str, Any]:
        # The client's own `status()` makes zero of a queue that is not said.
        url = self._api.backend(self._backend).get_url("status")
        call = Call(VENDOR, f"tell the status of {self._backend}", missing="policy")
        return self._ask(call, lambda: self._session.get(url).json())

    def _read_configuration(self) -> dict[str, Any]:
        if not self._configuration:
            call = Call(VENDOR, f"describe {self._backend}", missing="policy")
            self._configuration = self._ask(call, lambda: self._api.backend(self._backend).configuration())
        return self._configuration

    def _properties(self) -> dict[str, Any] | None:
        """None where the backend has none, as simulators do."""
        call = Call(VENDOR, f"give the calibration of {self._backend}", missing="unsupported")
        try:
            return self._ask(call, lambda: self._api.backend(self._backend).properties())
        except QtandemError as error:
            if error.code != "unsupported":
                raise
            return None

    def _read_calibration(self) -> Calibration | None:
        return digest({"configuration": self._read_configuration(), "properties": self._properties()})

    def _details(self, token: str) -> dict[str, Any] | None:
        try:
            return self._ask(Call(VENDOR, "show a session"), lambda: self._api.runtime_session(token).details())
        except QtandemError as error:
            if error.code != "no-such-run":
                raise
            return None

    def _job(self, task: str) -> dict[str, Any]:
        call = Call(VENDOR, "tell the state of a task")
        return self._ask(call, lambda: self._api.program_job(task).get(exclude_params=True))

    def _jobs(self, limit: int = _PAGE, **query: Any) -> Iterator[Mapping[str, Any]]:
        """Our credential's jobs on the backend, page by page."""
        query, skip = self._listing(limit, **query), 0
        while True:
            rows = self._page_of_jobs(query | {"skip": skip})
            yield from map(object_of, rows)
            skip += len(rows)
            if len(rows) < _PAGE:
                return

    def _listing(self, limit: int = _PAGE, **query: Any) -> dict[str, Any]:
        return {**query, "limit": limit, "backend_name": self._backend}

    def _page_of_jobs(self, query: Mapping[str, Any]) -> list[Any]:
        call = Call(VENDOR, "list the tasks")
        answer = self._ask(call, lambda: self._api.jobs_get(**query))
        rows = answer.get("jobs")
        if not isinstance(rows, list):
            raise unreadable(call, json.dumps(answer))
        return rows

    def _cancel(self, task: str) -> None:
        """A job that has ended, or is gone, is no error."""
        call = Call(VENDOR, "stop a task", conflict="task-failed")
        try:
            self._ask(call, lambda: self._api.program_job(task).cancel(), empty=True)
        except QtandemError as error:
            if error.code not in ("task-failed", "no-such-run"):
                raise

    def _explain_closed(self, token: str, error: QtandemError) -> None:
        """Raise `no-lease` where a submission failed because the session closed by itself."""
        details = self._details(token)
        if details is None or not sessions.is_open(details):
            why = text_of(object_of(details).get("state_reason"))
            raise QtandemError(
                "no-lease",
                f"IBM has closed the session{f': {why}' if why else ''}",
                remedy="Submit the job again, or set a longer SESSION_MAX_TTL.",
                cause=error.cause,
            ) from error

    def _ask(self, call: Call, work: Callable[[], Any], *, empty: bool = False) -> dict[str, Any]:
        """The object that `work` gets; `empty`: the vendor answers nothing."""
        answer = self._try(call, work)
        if empty:
            return {}
        if not isinstance(answer, dict):
            raise unreadable(call, json.dumps(answer, default=str))
        return answer

    def _ask_text(self, call: Call, task: str, what: str) -> str:
        """As IBM stored it: IBM's client takes text that names no character set for Latin-1."""
        url = self._api.program_job(task).get_url(what)
        return self._try(call, lambda: str(self._session.get(url).content, "utf-8", "replace"))

    def _try(self, call: Call, work: Callable[[], T]) -> T:
        try:
            return translated(call, work)
        except QtandemError as error:
            if error.code != "bad-credentials" or not isinstance(error.__cause__, IBMNotAuthorizedError):
                raise
        self._auth.renew()
        return translated(call, work)


def _charged(row: Mapping[str, Any]) -> float | None:
    return seconds(object_of(row.get("usage")).get("qpu_charge_time_seconds"))

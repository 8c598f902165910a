"""A device or on-demand simulator of Braket, through the SDK's session and task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from braket.aws import AwsQuantumTask
from braket.ir.openqasm import Program

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Observation
from qtandem.core.providers.base import Capabilities, ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.braket import facts
from qtandem.core.providers.braket.payloads import ACTION, KINDS, Work, read
from qtandem.core.providers.braket.session import VENDOR, Session, ask, opened, token_of
from qtandem.core.providers.braket.settings import REGIONS, Settings
from qtandem.core.providers.classify import Call, Meaning, unreadable
from qtandem.core.providers.combine import observation

# Tags of every task that we start.
LEASE, TASK = "qtandem:lease", "qtandem:task"
_LIVE = ("CREATED", "QUEUED", "RUNNING")
_SEARCHED_S = 7 * 86_400.0
_DESCRIBED_S = 600.0
STATES = {
    "CREATED": TaskState.QUEUED,
    "QUEUED": TaskState.QUEUED,
    "RUNNING": TaskState.RUNNING,
    "CANCELLING": TaskState.RUNNING,
    "COMPLETED": TaskState.COMPLETED,
    "FAILED": TaskState.FAILED,
    "CANCELLED": TaskState.CANCELLED,
}
_NO_TASK = {"ValidationException": Meaning("no-such-run")}


class CloudProvider:
    """One device of one account."""

    capabilities = Capabilities(
        sessions=False, finds_sessions=False, finds_tasks=True, payloads=KINDS, logs=False, stop=True
    )

    def __init__(self, spec: ProviderSpec, settings: Settings, clock: Callable[[], float] = time.time) -> None:  # noqa: ARG002
        self._settings = settings
        self._clock = clock
        self._session: Session | None = None
        self._arn = ""
        self._described: Mapping[str, Any] = {}
        self._described_at: float | None = None
        self._started: dict[str, list[str]] = {}

    def observe(self) -> Observation:
        device = self._device()
        said = facts.signals(device, self._clock(), self._settings.reservation)
        return observation(said, facts.calibration(self._described))

    def acquire(self, key: str, slots: int) -> str:  # noqa: ARG002  Braket has no sessions
        """Opens nothing: looks whether the device may be used, so that a wrong key fails now."""
        self._device()
        return key

    def release(self, token: str) -> None:
        """Cancels the lease's tasks that have not ended."""
        session, arn = self._place()
        found = set(self._started.get(token, ()))
        call = Call(VENDOR, "list the tasks")
        for state in _LIVE:
            one = {"name": "status", "operator": "EQUAL", "values": [state]}
            found.update(ask(call, lambda one=one: [*_tagged(session.tasks(arn, one), LEASE, token)]))  # type: ignore[misc]
        for task in found:
            self.task_stop(task)
        self._started.pop(token, None)

    def find_session(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def target(self) -> str:
        device = self._device()
        kept = {key: device.get(key) for key in ("deviceArn", "deviceName", "providerName", "deviceType")}
        return json.dumps(kept | {"deviceCapabilities": self._described})

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        session, arn = self._place()
        work = read(payload, facts.shots_range(self._description(), self._settings.reservation is not None))
        if not self._settings.bucket:
            raise QtandemError("bad-config", "Tasks need a bucket for their results", remedy="Set s3_bucket.")
        call = Call(VENDOR, "start a task", submits=True, missing="bad-payload", conflict="bad-payload")
        session.token = token_of(key)
        task = ask(call, lambda: self._submit(session, arn, work, {LEASE: token, TASK: key}))
        self._started.setdefault(token, []).append(task)
        return task

    def find_task(self, key: str) -> str | None:
        """By its tag, among the tasks of the last week."""
        session, arn = self._place()
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock() - _SEARCHED_S))
        recent = {"name": "createdAt", "operator": "GTE", "values": [since]}
        call = Call(VENDOR, "list the tasks")
        return ask(call, lambda: next(_tagged(session.tasks(arn, recent), TASK, key), None))

    def task_status(self, task: str) -> TaskReport:
        said = self._task(task)
        word = str(said.get("status", ""))
        if word not in STATES:
            raise unreadable(Call(VENDOR, "tell the state of a task"), f"the state is {word[:40]!r}")
        state = STATES[word]
        if state is not TaskState.COMPLETED:
            return TaskReport(state, _reason(said))
        shots = _shots(said)
        return TaskReport(state, shots=shots, cost=self._cost(shots))

    def task_result(self, task: str) -> str:
        said = self._task(task)
        state = STATES.get(str(said.get("status")), TaskState.RUNNING)
        if not state.final:
            raise QtandemError("task-not-ready", f"The task is {state}", retry_after=1.0)
        if state is not TaskState.COMPLETED:
            why = _reason(said)
            raise QtandemError("task-failed", f"The task is {state}{f': {why}' if why else ''}")
        bucket, key = str(said["outputS3Bucket"]), f"{said['outputS3Directory']}/{AwsQuantumTask.RESULTS_FILENAME}"
        call = Call("Amazon S3", "give a result", missing="task-not-ready")
        content = ask(call, lambda: self._place()[0].result(bucket, key))
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise unreadable(call, content) from error

    def task_logs(self, task: str) -> str:
        """Braket keeps none; the task must be there all the same."""
        self._task(task)
        return ""

    def task_stop(self, task: str) -> None:
        call = Call(VENDOR, "stop a task", conflict="task-failed", meanings=_NO_TASK)
        try:
            ask(call, lambda: self._place()[0].cancel_quantum_task(task))
        except QtandemError as error:
            if error.code not in ("task-failed", "no-such-run"):
                raise

    def metadata(self) -> dict[str, str]:
        found = {"amazon-braket-sdk": version("amazon-braket-sdk"), "device": self._settings.device}
        if self._settings.reservation is not None:
            found["reservation"] = self._settings.reservation.arn
        price = facts.price(self._description())
        if price is not None:
            found |= {"price": f"{price.amount:g}", "price_unit": price.unit, "currency": "USD"}
        if self._settings.task_price is not None:
            found["task_price"] = f"{self._settings.task_price:g}"
        return found

    def _cost(self, shots: int | None) -> float | None:
        """By the device's own price; None in a reservation, which is paid by the hour."""
        price = facts.price(self._description())
        if price is None or self._settings.reservation is not None:
            return None
        return price.task(shots, self._settings.task_price)

    def _submit(self, session: Session, arn: str, work: Work, tags: Mapping[str, str]) -> str:
        reservation = self._settings.reservation
        if work.kind == ACTION:
            return session.create_quantum_task(
                deviceArn=arn,
                action=json.dumps(work.action),
                deviceParameters=json.dumps(work.parameters),
                outputS3Bucket=self._settings.bucket,
                outputS3KeyPrefix=self._settings.prefix,
                shots=work.shots,
                tags=dict(tags),
                **({"associations": [_association(reservation.arn)]} if reservation else {}),
            )
        made = AwsQuantumTask.create(
            session,
            arn,
            Program(source=work.program, inputs=dict(work.inputs) or None),
            (self._settings.bucket, self._settings.prefix),
            work.shots,
            device_parameters=dict(work.parameters),
            disable_qubit_rewiring=work.verbatim,
            tags=dict(tags),
            reservation_arn=reservation.arn if reservation else None,
            quiet=True,
        )
        return str(made.id)

    def _task(self, task: str) -> Mapping[str, Any]:
        # The SDK's own `get_quantum_task` asks up to three times for a task that is not there.
        call = Call(VENDOR, "tell the state of a task", meanings=_NO_TASK)
        session = self._place()[0]
        return ask(
            call,
            lambda: session.braket_client.get_quantum_task(quantumTaskArn=task, additionalAttributeNames=["QueueInfo"]),
        )

    def _device(self) -> Mapping[str, Any]:
        session, arn = self._place()
        call = _about(self._settings.device)
        device: Mapping[str, Any] = ask(call, lambda: session.get_device(arn))
        if "deviceStatus" not in device:
            # What is no JSON reaches us as an answer without fields.
            raise unreadable(call, "an answer without a status")
        self._described = facts.capabilities(device) or self._described
        self._described_at = self._clock()
        return device

    def _description(self) -> Mapping[str, Any]:
        """The device's capabilities, read again when they are old."""
        if self._described_at is None or self._clock() - self._described_at >= _DESCRIBED_S:
            self._device()
        return self._described

    def _place(self) -> tuple[Session, str]:
        """The session in the device's region, and the device's ARN; looked for once."""
        if self._session is None:
            self._session, self._arn = _located(self._settings)
        return self._session, self._arn


def devices(settings: Settings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every device of the account's regions that is not retired, with its region; simulators come once a region."""
    for region in [settings.region] if settings.region else REGIONS:
        session = opened(settings, region)
        call = Call(VENDOR, f"list its devices in {region}")
        for device in ask(call, session.search_devices):
            yield region, device


def _located(settings: Settings) -> tuple[Session, str]:
    if settings.device.startswith("arn:"):
        if settings.region or settings.on_demand_simulator:
            return opened(settings, settings.region or REGIONS[0]), settings.device
        return _region_with(settings)
    wanted = settings.device.casefold()
    for region, device in devices(settings):
        if wanted == str(device.get("deviceName", "")).casefold():
            return opened(settings, region), str(device["deviceArn"])
    raise QtandemError(
        "bad-config",
        f"No region of Braket has a device named {settings.device!r}",
        remedy="Give its ARN or its name as device.",
    )


def _region_with(settings: Settings) -> tuple[Session, str]:
    """For an ARN that names no region."""
    for region in REGIONS:
        session = opened(settings, region)
        try:
            ask(_about(settings.device), lambda session=session: session.get_device(settings.device))  # type: ignore[misc]
        except QtandemError as error:
            if error.code != "bad-config":
                raise
        else:
            return session, settings.device
    raise QtandemError("bad-config", f"No region of Braket has the device {settings.device}")


def _about(device: str) -> Call:
    return Call(
        VENDOR, f"describe {device}", missing="bad-config", meanings={"ValidationException": Meaning("bad-config")}
    )


def _association(arn: str) -> dict[str, str]:
    return {"arn": arn, "type": "RESERVATION_TIME_WINDOW_ARN"}


def _tagged(rows: Iterator[Mapping[str, Any]], tag: str, value: str) -> Iterator[str]:
    return (str(row["quantumTaskArn"]) for row in rows if (row.get("tags") or {}).get(tag) == value)


def _reason(said: Mapping[str, Any]) -> str:
    """Why it failed, or where it stands in the queue as far as Braket says."""
    if said.get("failureReason"):
        return str(said["failureReason"])
    queue = said.get("queueInfo") or {}
    if said.get("status") != "QUEUED" or not queue:
        return ""
    if queue.get("position") not in (None, "", "None"):
        return f"position {queue['position']} in the {str(queue.get('queuePriority', 'normal')).lower()} queue"
    return str(queue.get("message") or "")


def _shots(said: Mapping[str, Any]) -> int | None:
    for key in ("numSuccessfulShots", "shots"):
        value = said.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None

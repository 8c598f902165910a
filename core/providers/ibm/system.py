"""IBM Quantum System API: a machine with execution lanes, inputs and results by object storage.

The machine has no sessions and no queue of ours: a job takes a lane from its submission until it is *deleted*, so a
finished job is deleted once its result was read, and its last state is kept in the bucket as `ended_KEY.json`.

The client chooses a job's id. Ours are UUIDs made of a mark, the lease and the task's key, so that a job is found
by its key, a second submission is refused by the vendor, and a release knows which jobs are its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration, Observation
from qtandem.core.providers.base import Capabilities, ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.calibrations import Recent, digest
from qtandem.core.providers.classify import Call, unreadable
from qtandem.core.providers.combine import Signals, count, observation, seconds
from qtandem.core.providers.ibm import payloads
from qtandem.core.providers.ibm.http import Http, IamAuth
from qtandem.core.providers.ibm.settings import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, Settings
from qtandem.core.providers.ibm.storage import Storage
from qtandem.core.providers.parts import object_of, text_of

VENDOR = "IBM Quantum System"
PREFIX = "QRMI_IBM_QS_"
PROGRAMS = {"sampler": "sampler", "estimator": "estimator"}
STATES = {
    "running": TaskState.RUNNING,
    "completed": TaskState.COMPLETED,
    "failed": TaskState.FAILED,
    "cancelled": TaskState.CANCELLED,
}
_MARK = b"qtmd"
# A task may wait for a paused machine before it begins: its addresses last longer than its run.
_WAIT_S = 86_400
_DUPLICATE = "already-exists"


# The part of an id that is the key's: its last 8 bytes, and the dash between them.
_TAIL = 17


class SystemProvider:
    """One backend of one system."""

    capabilities = Capabilities(
        sessions=False, finds_sessions=False, finds_tasks=True, payloads=payloads.KINDS, logs=True, stop=True
    )

    def __init__(self, spec: ProviderSpec, clock: Callable[[], float] = time.monotonic) -> None:
        settings = Settings(spec, PREFIX)
        account = settings.account()
        self._backend = settings.backend
        self._limit_s = min(settings.job_limit_s() or DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S)
        self._http = Http(VENDOR, account.endpoint, IamAuth(account))
        self._bucket, self._no_bucket = settings.bucket(), settings.missing_for_bucket()
        self._storage: Storage | None = None
        self._configuration: dict[str, Any] = {}
        self._calibration = Recent(self._read_calibration, clock)

    def observe(self) -> Observation:
        details = self._details()
        total = count(object_of(self._lanes().get("hpc_workload_manager")).get("lanes"))
        occupied = sum(1 for job in self._jobs() if self._occupies(job))
        signals = Signals(
            words=(details.get("status"),),
            locked=details.get("locked"),
            free=() if total is None else (max(0, total - occupied),),
            total=total,
            reason=text_of(details.get("message")),
        )
        return observation(signals, self._calibration.get())

    def acquire(self, key: str, slots: int) -> str:  # noqa: ARG002  the machine has no sessions: the lease is ours
        """`key`, once the machine has shown that it knows us; a job need not start to learn that it does not."""
        self._details()
        return key

    def release(self, token: str) -> None:
        """Stop the jobs of the lease, and free the lanes of those that ended."""
        head = _head(token)
        for job in list(self._jobs()):
            id = text_of(job.get("id"))
            if _of(id) == head:
                self._end(id)

    def find_session(self, key: str) -> str | None:  # noqa: ARG002  there are none
        return None

    def target(self) -> str:
        return json.dumps({"configuration": self._read_configuration(), "properties": self._properties()})

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        return self.find_task(key) or self.task_send(token, key, payload)

    def task_send(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        shots = self._read_configuration().get("max_shots") if payload.get("kind") == "qasm3" else None
        program = payloads.read(payload, PROGRAMS, shots if isinstance(shots, int) else None)
        limit = min(payloads.timeout_s(payload) or self._limit_s, MAX_TIMEOUT_S)
        storage, id = self._store(), _id(token, key)
        storage.put(_input(id), json.dumps(program.params).encode())
        job = {
            "id": id,
            "backend": self._backend,
            "program_id": program.id,
            "log_level": "info",
            "timeout_secs": limit,
            "storage": {
                "input": _address(storage, "GET", _input(id), limit),
                "results": _address(storage, "PUT", _results(id), limit),
                "logs": _address(storage, "PUT", _logs(id), limit),
            },
        }
        self._submit(job)
        return id

    def find_task(self, key: str) -> str | None:
        tail = _tail(key)
        for job in self._jobs():
            id = text_of(job.get("id"))
            if _of(id) is not None and id.endswith(tail):
                return id
        ended = self._read_ended(tail)
        return text_of(ended.get("id")) or None if ended is not None else None

    def task_status(self, task: str) -> TaskReport:
        return _report(self._job(task))

    def task_statuses(self, tasks: Sequence[str]) -> dict[str, TaskReport]:
        rows = {text_of(job.get("id")): job for job in self._jobs()}
        return {task: _report(rows[task]) for task in tasks if task in rows}

    def task_result(self, task: str) -> str:
        report = self.task_status(task)
        if not report.state.final:
            raise QtandemError("task-not-ready", f"The task is {report.state}", retry_after=1.0)
        if report.state is not TaskState.COMPLETED:
            self._end(task)
            why = f": {report.reason}" if report.reason else ""
            raise QtandemError("task-failed", f"The task is {report.state}{why}")
        content = self._store().get(_results(task))
        if content is None:
            raise QtandemError("vendor-error", "The result of the task is not in the bucket")
        # The result is there whatever becomes of the lane, which is freed later if not now.
        with contextlib.suppress(QtandemError):
            self._end(task)
        return _decoded("give a result", content)

    def task_logs(self, task: str) -> str:
        self._job(task)
        content = self._store().get(_logs(task))
        return "" if content is None else _decoded("give a log", content)

    def task_stop(self, task: str) -> None:
        self._end(task)

    def metadata(self) -> dict[str, str]:
        return {"backend_name": self._backend}

    def _submit(self, job: Mapping[str, object]) -> None:
        """Send a job; where all lanes are taken, free those of our ended jobs and try once more."""
        try:
            self._send(job)
        except QtandemError as error:
            if error.code != "not-available" or not self._free_lanes():
                raise
            self._send(job)

    def _send(self, job: Mapping[str, object]) -> None:
        """That the id exists already means that the vendor has the job."""
        call = Call(VENDOR, "start a task", submits=True, missing="bad-config", conflict=_DUPLICATE)
        try:
            self._http.call(call, "POST", "/v1/jobs", job)
        except QtandemError as error:
            if error.code != _DUPLICATE:
                raise

    def _free_lanes(self) -> int:
        """Delete our jobs that ended and whose results are in the bucket; how many."""
        freed = 0
        for job in list(self._jobs()):
            id = text_of(job.get("id"))
            if _of(id) is None or not _report(job).state.final:
                continue
            if _report(job).state is not TaskState.COMPLETED or self._store().has(_results(id)):
                self._end(id)
                freed += 1
        return freed

    def _end(self, task: str) -> None:
        """Cancel a job that runs, keep its last state in the bucket, and delete it. Gone already is no error.

        A completed job whose result the vendor has not stored yet stays.
        """
        job = self._live_job(task)
        if job is None:
            return
        if not _report(job).state.final:
            call = Call(VENDOR, "stop a task", conflict="task-failed")
            self._quietly(call, "POST", f"/v1/jobs/{task}/cancel")
            job = self._live_job(task)
            if job is None or not _report(job).state.final:
                return
        if _of(task) is None:
            return
        storage = self._store()
        if _report(job).state is TaskState.COMPLETED and not storage.has(_results(task)):
            return
        kept = {key: value for key, value in job.items() if key != "storage"}
        storage.put(_ended(task[-_TAIL:]), json.dumps(kept).encode())
        self._quietly(Call(VENDOR, "delete a task", conflict="task-failed"), "DELETE", f"/v1/jobs/{task}")
        storage.delete(_input(task))

    def _quietly(self, call: Call, method: str, path: str) -> None:
        try:
            self._http.call(call, method, path)
        except QtandemError as error:
            if error.code not in ("task-failed", "no-such-run"):
                raise

    def _job(self, task: str) -> Mapping[str, Any]:
        job = self._live_job(task)
        if job is None and _of(task) is not None:
            ended = self._read_ended(task[-_TAIL:])
            job = ended if ended is not None and ended.get("id") == task else None
        if job is None:
            raise QtandemError("no-such-run", f"IBM knows no task {task[:64]!r}")
        return job

    def _live_job(self, task: str) -> dict[str, Any] | None:
        if not task.replace("-", "").isalnum():
            return None
        try:
            return self._get(f"/v1/jobs/{task}", "tell the state of a task", "no-such-run")
        except QtandemError as error:
            if error.code != "no-such-run":
                raise
            return None

    def _jobs(self) -> Iterator[Mapping[str, Any]]:
        """The jobs on the backend that are not deleted, of everybody who uses our credential."""
        answer = self._get("/v1/jobs", "list the tasks", "no-such-run")
        rows = answer.get("jobs")
        if not isinstance(rows, list):
            raise unreadable(Call(VENDOR, "list the tasks"), json.dumps(answer))
        return (job for job in map(object_of, rows) if job.get("backend") == self._backend)

    def _occupies(self, job: Mapping[str, Any]) -> bool:
        """Whether a job takes a lane that no lease of ours accounts for: all but ours that run."""
        ours = _of(text_of(job.get("id"))) is not None
        return not (ours and text_of(job.get("status")).lower() == TaskState.RUNNING.value)

    def discover(self, details: bool) -> list[dict[str, object]]:  # noqa: ARG002  the machine's list names no qubits
        rows = self._get("/v1/backends", "list its backends", "unsupported").get("backends")
        if not isinstance(rows, list):
            raise unreadable(Call(VENDOR, "list its backends"), json.dumps(rows))
        return [self._found(str(each["name"]), each) for each in map(object_of, rows) if each.get("name")]

    def _found(self, name: str, row: Mapping[str, Any]) -> dict[str, object]:
        found = self._get(f"/v1/backends/{name}/configuration", f"describe {name}", "policy")
        kinds = {"qubits": found.get("n_qubits"), "simulator": found.get("simulator")}
        return kinds | {"name": name, "status": row.get("status"), "max_shots": found.get("max_shots")}

    def _details(self) -> dict[str, Any]:
        return self._get(f"/v1/backends/{self._backend}", f"tell the status of {self._backend}", "policy")

    def _lanes(self) -> dict[str, Any]:
        try:
            return self._get(f"/v1/backends/{self._backend}/lanes", "tell its lanes", "unsupported")
        except QtandemError as error:
            if error.code != "unsupported":
                raise
            return {}

    def _read_configuration(self) -> dict[str, Any]:
        if not self._configuration:
            path = f"/v1/backends/{self._backend}/configuration"
            self._configuration = self._get(path, f"describe {self._backend}", "policy")
        return self._configuration

    def _properties(self) -> dict[str, Any] | None:
        path = f"/v1/backends/{self._backend}/properties"
        try:
            return self._get(path, f"give the calibration of {self._backend}", "unsupported")
        except QtandemError as error:
            if error.code != "unsupported":
                raise
            return None

    def _read_calibration(self) -> Calibration | None:
        return digest({"configuration": self._read_configuration(), "properties": self._properties()})

    def _read_ended(self, tail: str) -> dict[str, Any] | None:
        if self._bucket is None:
            return None
        content = self._store().get(_ended(tail))
        if content is None:
            return None
        try:
            kept = json.loads(content)
        except ValueError:
            return None
        return kept if isinstance(kept, dict) else None

    def _get(self, path: str, what: str, missing: str) -> dict[str, Any]:
        return self._http.call(Call(VENDOR, what, missing=missing), "GET", path)

    def _store(self) -> Storage:
        if self._bucket is None:
            keys = ", ".join(self._no_bucket)
            raise QtandemError("bad-config", "Tasks need object storage", remedy=f"Set {keys}.")
        if self._storage is None:
            self._storage = Storage(self._bucket)
        return self._storage


def _id(token: str, key: str) -> str:
    """A version 4 UUID: 4 bytes of mark, 28 bits of the lease, 62 bits of the key."""
    raw = _MARK + hashlib.sha256(token.encode()).digest()[:4] + hashlib.sha256(key.encode()).digest()[:8]
    return str(uuid.UUID(bytes=raw, version=4))


def _head(token: str) -> str:
    return _id(token, "")[:-_TAIL]


def _tail(key: str) -> str:
    return _id("", key)[-_TAIL:]


def _of(id: str) -> str | None:
    """The part of an id that names its lease; None if it is not one of ours."""
    return id[:-_TAIL] if len(id) == 36 and id.startswith(_MARK.hex()) else None


def _report(job: Mapping[str, Any]) -> TaskReport:
    word = text_of(job.get("status")).lower()
    if word not in STATES:
        raise unreadable(Call(VENDOR, "tell the state of a task"), f"the state is {word[:40]!r}")
    nanoseconds = seconds(object_of(job.get("usage")).get("quantum_nanoseconds"))
    said = (text_of(job.get("reason_message")), text_of(job.get("reason_solution")))
    return TaskReport(STATES[word], " ".join(filter(None, said)), None if nanoseconds is None else nanoseconds * 1e-9)


def _address(storage: Storage, method: str, key: str, limit_s: int) -> dict[str, str]:
    return {"type": "s3_compatible", "presigned_url": storage.address(method, key, limit_s + _WAIT_S)}


def _input(id: str) -> str:
    return f"input_{id}.json"


def _results(id: str) -> str:
    return f"results_{id}.json"


def _logs(id: str) -> str:
    return f"logs_{id}.json"


def _ended(tail: str) -> str:
    return f"ended_{tail}.json"


def _decoded(what: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise unreadable(Call(VENDOR, what), content) from None

"""QRMI's verbs on the lease that a job or a claim holds."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from qtandem.core.client.calls import as_object, as_rows, as_text, find_resource, wait_for_task
from qtandem.core.client.environment import RUN, get_job_qpu_resources_and_types, job_type
from qtandem.core.client.errors import EnvVarNotSetError, QrmiError, as_qrmi
from qtandem.core.client.transport import DEADLINE_S, Daemon
from qtandem.core.client.types import (
    Payload,
    ResourceCapacity,
    ResourceStatus,
    ResourceStatusCode,
    ResourceType,
    Target,
    TaskResult,
    TaskStatus,
)
from qtandem.core.errors import QtandemError

_CODES = {"online": ResourceStatusCode.Online, "paused": ResourceStatusCode.Paused}
# How long a job bears with a daemon that is being restarted.
PATIENCE_S = 120.0


class QuantumResource:
    """One QPU or simulator, by its configured or its native name, spoken to through the daemon.

    In a job the lease is the run's, which the hooks begin and end; elsewhere it is that of a claim. Methods
    raise `QrmiError` or a subclass. The type is looked up where it is not given.
    """

    def __init__(
        self, resource_id: str, resource_type: ResourceType | str | None = None, *, daemon: Daemon | None = None
    ) -> None:
        self._id = resource_id
        self._type = None if resource_type is None else ResourceType.of(resource_type)
        self._daemon = daemon or Daemon(patience_s=PATIENCE_S if RUN in os.environ else 0.0)
        self._lease: str | None = None

    @classmethod
    def from_config(
        cls, resource_id: str, resource_type: ResourceType | str, config: Mapping[str, str]
    ) -> QuantumResource:
        """As QRMI's; endpoints and keys in `config` are not used, for the daemon has the site's own.

        A `QRMI_JOB_ACQUISITION_TOKEN` in it names the lease.
        """
        resource = cls(resource_id, resource_type)
        lowered = {key.lower(): value for key, value in config.items()}
        resource._lease = lowered.get("qrmi_job_acquisition_token") or None
        return resource

    def __repr__(self) -> str:
        return f"QuantumResource({self._id!r})"

    def resource_id(self) -> str:
        return self._id

    @as_qrmi()
    def resource_type(self) -> ResourceType:
        if self._type is None:
            self._type = ResourceType.of(job_type(self._id) or str(self._row()["type"]))
        return self._type

    @as_qrmi()
    def is_accessible(self) -> bool:
        return self.status().status is ResourceStatusCode.Online

    @as_qrmi()
    def status(self) -> ResourceStatus:
        """From the daemon's newest fact; no vendor is called."""
        row = self._row()
        online = row["availability"] == "online"
        return ResourceStatus(
            status=_CODES.get(row["availability"], ResourceStatusCode.Offline),
            status_reason=row["reason"] or (None if online else row["why"]),
            healthy=online,
            busy=online and row["free"] == 0,
            capacity=ResourceCapacity(row["free"], row["slots"]),
            pending_job_count=row["queue"],
        )

    @as_qrmi()
    def acquire(self) -> str:
        """The id of the held lease: the run's in a job, else that of one of the caller's claims."""
        self._lease = self._find_lease()
        return self._lease

    @as_qrmi()
    def release(self, id: str) -> None:
        """Stop what is still under way on the lease. The lease itself ends with the job or the claim."""
        for task in as_rows(self._daemon.get("tasks", lease=id), "tasks"):
            if not TaskStatus.of(task["state"]).final:
                self._daemon.post("tasks", task["id"], "stop", body={})
        self._lease = None

    @as_qrmi()
    def task_start(self, payload: Payload) -> str:
        """Start one task on the held lease and return its id."""
        body = {
            "resource": self._id,
            "lease": self._lease or "",
            "payload": {"kind": payload.kind, **payload.fields()},
            "key": uuid.uuid4().hex,
        }
        return str(as_object(self._daemon.post("tasks", body=body, deadline_s=2 * DEADLINE_S))["id"])

    @as_qrmi(about_task=True)
    def task_stop(self, task_id: str) -> None:
        self._daemon.post("tasks", task_id, "stop", body={})

    @as_qrmi(about_task=True)
    def task_status(self, task_id: str) -> TaskStatus:
        return TaskStatus.of(str(as_object(self._daemon.get("tasks", task_id))["state"]))

    @as_qrmi(about_task=True)
    def task_result(self, task_id: str) -> TaskResult:
        """TaskNotReadyError before the task has completed."""
        return TaskResult(as_text(self._daemon.get("tasks", task_id, "result", deadline_s=2 * DEADLINE_S)))

    @as_qrmi(about_task=True)
    def task_logs(self, task_id: str) -> str:
        return as_text(self._daemon.get("tasks", task_id, "logs", deadline_s=2 * DEADLINE_S))

    @as_qrmi()
    def target(self) -> Target:
        return Target(as_text(self._daemon.get("resources", self._id, "target", deadline_s=2 * DEADLINE_S)))

    @as_qrmi()
    def metadata(self) -> dict[str, str]:
        answer = as_object(self._daemon.get("resources", self._id, "metadata", deadline_s=2 * DEADLINE_S))
        return {str(key): str(value) for key, value in answer.items()}

    @as_qrmi(about_task=True)
    def task_wait(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until the task has ended or `timeout` seconds are over, and say how it stands."""
        return TaskStatus.of(str(wait_for_task(self._daemon, task_id, timeout)["state"]))

    def run(self, payload: Payload, timeout: float | None = None) -> TaskResult:
        """Start a task, wait for it, and return its result; a task that did not complete raises QrmiError.

        When the wait is broken off, by time or by a signal, the task is stopped.
        """
        task = self.task_start(payload)
        try:
            status = self.task_wait(task, timeout)
            if not status.final:
                raise QrmiError(f"Task {task} did not end within {timeout:g} s")
        except BaseException:
            with suppress(QrmiError):
                self.task_stop(task)
            raise
        if status is not TaskStatus.Completed:
            raise QrmiError(self._ended(task, status))
        return self.task_result(task)

    @as_qrmi(about_task=True)
    def _ended(self, task: str, status: TaskStatus) -> str:
        reason = as_object(self._daemon.get("tasks", task)).get("reason")
        return f"Task {task} {status.name.lower()}" + (f": {reason}" if reason else "")

    def _row(self) -> dict[str, Any]:
        return find_resource(self._daemon, self._id)

    def _find_lease(self) -> str:
        """Of the caller's held leases on this resource: the run's in a job, else a claim's, else the only one."""
        mine = [lease for lease in as_rows(self._daemon.get("leases", mine="1"), "leases") if lease["state"] == "held"]
        held = [lease for lease in mine if lease["resource"] == self._id]
        if not held:
            name = self._row()["name"]
            held = [lease for lease in mine if lease["resource"] == name]
        run = os.environ.get(RUN)
        of_run = [lease for lease in held if run and lease["owner"] == f"run {run}"]
        of_claim = [lease for lease in held if lease["owner"].startswith("claim ")]
        chosen = of_run or of_claim or (held if len(held) == 1 and not run else [])
        if not chosen:
            where = f"Run {run}" if run else "Neither a job nor a claim of yours"
            raise QtandemError("no-lease", f"{where} holds {'no' if run else 'a'} lease on {self._id}")
        return str(chosen[0]["id"])


@contextmanager
def acquire(
    resource_id: str | None = None, resource_type: ResourceType | str | None = None
) -> Iterator[QuantumResource]:
    """`with acquire("ibm_fez") as qpu:`, the resource while its lease is used; without a name the job's first."""
    if resource_id is None:
        names, types = get_job_qpu_resources_and_types()
        if not names:
            raise EnvVarNotSetError("The job has no QPU; submit it with --qpu=NAME")
        resource_id, resource_type = names[0], types[0]
    resource = QuantumResource(resource_id, resource_type)
    lease = resource.acquire()
    try:
        yield resource
    finally:
        resource.release(lease)

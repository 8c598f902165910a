"""QRMI's verbs on the lease that a job or a claim holds, as coroutines over any dialogue with the daemon."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from qtandem.core.client.calls import as_object, as_rows, as_text, awaited_task, found_resource
from qtandem.core.client.dialogue import DEADLINE_S, Dialogue
from qtandem.core.client.environment import CLAIM, RUN, job_type
from qtandem.core.client.errors import QrmiError, async_as_qrmi
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


def patience_s() -> float:
    """Seconds that a program bears with a daemon that does not answer: only in a job, or on a claim."""
    return PATIENCE_S if RUN in os.environ or CLAIM in os.environ else 0.0


def ended(task: str, status: TaskStatus, reason: str) -> str:
    """The sentence on a task that did not complete."""
    return f"Task {task} {status.name.lower()}" + (f": {reason}" if reason else "")


class Verbs:
    """One QPU or simulator, by its configured or its native name, spoken to through the daemon.

    In a job the lease is the run's, which the hooks begin and end; elsewhere it is that of a claim. Methods
    raise `QrmiError` or a subclass. The type is looked up where it is not given.
    """

    def __init__(self, resource_id: str, resource_type: ResourceType | str | None, dialogue: Dialogue) -> None:
        self._id = resource_id
        self._type = None if resource_type is None else ResourceType.of(resource_type)
        self._dialogue = dialogue
        self._lease: str | None = None

    def use_lease(self, config: Mapping[str, str]) -> None:
        """Take the lease that `QRMI_JOB_ACQUISITION_TOKEN` in `config` names, if it names one."""
        lowered = {key.lower(): value for key, value in config.items()}
        self._lease = lowered.get("qrmi_job_acquisition_token") or None

    def __repr__(self) -> str:
        return f"QuantumResource({self._id!r})"

    def resource_id(self) -> str:
        return self._id

    @async_as_qrmi()
    async def resource_type(self) -> ResourceType:
        if self._type is None:
            self._type = ResourceType.of(job_type(self._id) or str((await self._row())["type"]))
        return self._type

    async def is_accessible(self) -> bool:
        return (await self.status()).status is ResourceStatusCode.Online

    @async_as_qrmi()
    async def status(self) -> ResourceStatus:
        """From the daemon's newest fact; no vendor is called."""
        row = await self._row()
        online = row["availability"] == "online"
        return ResourceStatus(
            status=_CODES.get(row["availability"], ResourceStatusCode.Offline),
            status_reason=row["reason"] or (None if online else row["why"]),
            healthy=online,
            busy=online and row["free"] == 0,
            capacity=ResourceCapacity(row["free"], row["slots"]),
            pending_job_count=row["queue"],
        )

    @async_as_qrmi()
    async def acquire(self) -> str:
        """The id of the held lease: the run's in a job, else that of one of the caller's claims."""
        self._lease = await self._find_lease()
        return self._lease

    @async_as_qrmi()
    async def release(self, id: str) -> None:
        """Stop what is still under way on the lease. The lease itself ends with the job or the claim."""
        for task in as_rows(await self._dialogue.get("tasks", lease=id), "tasks"):
            if not TaskStatus.of(task["state"]).final:
                await self._dialogue.post("tasks", task["id"], "stop", body={})
        self._lease = None

    @async_as_qrmi()
    async def task_start(self, payload: Payload) -> str:
        """Start one task on the held lease and return its id."""
        body = {
            "resource": self._id,
            "lease": self._lease or "",
            "claim": "" if self._lease or RUN in os.environ else os.environ.get(CLAIM, ""),
            "payload": {"kind": payload.kind, **payload.fields()},
            "key": uuid.uuid4().hex,
        }
        return str(as_object(await self._dialogue.post("tasks", body=body, deadline_s=2 * DEADLINE_S))["id"])

    @async_as_qrmi(about_task=True)
    async def task_stop(self, task_id: str) -> None:
        await self._dialogue.post("tasks", task_id, "stop", body={})

    @async_as_qrmi(about_task=True)
    async def task_status(self, task_id: str) -> TaskStatus:
        return TaskStatus.of(str(as_object(await self._dialogue.get("tasks", task_id))["state"]))

    @async_as_qrmi(about_task=True)
    async def task_result(self, task_id: str) -> TaskResult:
        """TaskNotReadyError before the task has completed."""
        return TaskResult(as_text(await self._dialogue.get("tasks", task_id, "result", deadline_s=2 * DEADLINE_S)))

    @async_as_qrmi(about_task=True)
    async def task_logs(self, task_id: str) -> str:
        return as_text(await self._dialogue.get("tasks", task_id, "logs", deadline_s=2 * DEADLINE_S))

    @async_as_qrmi()
    async def target(self) -> Target:
        return Target(as_text(await self._dialogue.get("resources", self._id, "target", deadline_s=2 * DEADLINE_S)))

    @async_as_qrmi()
    async def metadata(self) -> dict[str, str]:
        answer = as_object(await self._dialogue.get("resources", self._id, "metadata", deadline_s=2 * DEADLINE_S))
        return {str(key): str(value) for key, value in answer.items()}

    @async_as_qrmi(about_task=True)
    async def task_wait(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until the task has ended or `timeout` seconds are over, and say how it stands."""
        return TaskStatus.of(str((await awaited_task(self._dialogue, task_id, timeout))["state"]))

    async def run(self, payload: Payload, timeout: float | None = None) -> TaskResult:
        """Start a task, wait for it, and return its result; a task that did not complete raises QrmiError.

        When the wait is broken off, by time or by a signal, the task is stopped.
        """
        task = await self.task_start(payload)
        try:
            status = await self.task_wait(task, timeout)
            if not status.final:
                raise QrmiError(f"Task {task} did not end within {timeout:g} s")
        except BaseException:
            with suppress(QrmiError):
                await self.task_stop(task)
            raise
        if status is not TaskStatus.Completed:
            raise QrmiError(ended(task, status, await self.task_reason(task)))
        return await self.task_result(task)

    @async_as_qrmi(about_task=True)
    async def task_reason(self, task_id: str) -> str:
        """Why a task failed or was cancelled; empty where nothing is known."""
        return str(as_object(await self._dialogue.get("tasks", task_id)).get("reason") or "")

    async def _row(self) -> dict[str, Any]:
        return await found_resource(self._dialogue, self._id)

    async def _find_lease(self) -> str:
        """Of the caller's held leases on this resource: the run's in a job, else the claim's that `QTANDEM_CLAIM`
        names, else any claim's, else the only one."""
        leases = as_rows(await self._dialogue.get("leases", mine="1"), "leases")
        mine = [lease for lease in leases if lease["state"] == "held"]
        held = [lease for lease in mine if lease["resource"] == self._id]
        if not held:
            name = (await self._row())["name"]
            held = [lease for lease in mine if lease["resource"] == name]
        run = os.environ.get(RUN)
        of_run = [lease for lease in held if run and lease["owner"] == f"run {run}"]
        claim = os.environ.get(CLAIM)
        of_claim = [
            lease
            for lease in held
            if (lease["owner"] == f"claim {claim}" if claim else lease["owner"].startswith("claim "))
        ]
        chosen = of_run or of_claim or (held if len(held) == 1 and not run else [])
        if not chosen:
            where = f"Run {run}" if run else "Neither a job nor a claim of yours"
            raise QtandemError("no-lease", f"{where} holds {'no' if run else 'a'} lease on {self._id}")
        return str(chosen[0]["id"])

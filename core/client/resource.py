"""QRMI's verbs for programs that wait for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from qtandem.core.client.dialogue import now
from qtandem.core.client.environment import get_job_qpu_resources_and_types
from qtandem.core.client.errors import EnvVarNotSetError
from qtandem.core.client.transport import Daemon
from qtandem.core.client.types import Payload, ResourceStatus, ResourceType, Target, TaskResult, TaskStatus
from qtandem.core.client.verbs import Verbs, patience_s


class QuantumResource:
    """One QPU or simulator, by its configured or its native name, spoken to through the daemon.

    In a job the lease is the run's, which the hooks begin and end; elsewhere it is that of a claim. Methods
    raise `QrmiError` or a subclass. The type is looked up where it is not given.
    """

    def __init__(
        self, resource_id: str, resource_type: ResourceType | str | None = None, *, daemon: Daemon | None = None
    ) -> None:
        self._verbs = Verbs(resource_id, resource_type, (daemon or Daemon(patience_s=patience_s())).dialogue)

    @classmethod
    def from_config(
        cls, resource_id: str, resource_type: ResourceType | str, config: Mapping[str, str]
    ) -> QuantumResource:
        """As QRMI's; endpoints and keys in `config` are not used, for the daemon has the site's own.

        A `QRMI_JOB_ACQUISITION_TOKEN` in it names the lease.
        """
        resource = cls(resource_id, resource_type)
        resource._verbs.use_lease(config)
        return resource

    def __repr__(self) -> str:
        return repr(self._verbs)

    def resource_id(self) -> str:
        return self._verbs.resource_id()

    def resource_type(self) -> ResourceType:
        return now(self._verbs.resource_type())

    def is_accessible(self) -> bool:
        return now(self._verbs.is_accessible())

    def status(self) -> ResourceStatus:
        """From the daemon's newest fact; no vendor is called."""
        return now(self._verbs.status())

    def acquire(self) -> str:
        """The id of the held lease: the run's in a job, else that of one of the caller's claims."""
        return now(self._verbs.acquire())

    def release(self, id: str) -> None:
        """Stop what is still under way on the lease. The lease itself ends with the job or the claim."""
        now(self._verbs.release(id))

    def task_start(self, payload: Payload) -> str:
        """Start one task on the held lease and return its id."""
        return now(self._verbs.task_start(payload))

    def task_stop(self, task_id: str) -> None:
        now(self._verbs.task_stop(task_id))

    def task_status(self, task_id: str) -> TaskStatus:
        return now(self._verbs.task_status(task_id))

    def task_result(self, task_id: str) -> TaskResult:
        """TaskNotReadyError before the task has completed."""
        return now(self._verbs.task_result(task_id))

    def task_logs(self, task_id: str) -> str:
        return now(self._verbs.task_logs(task_id))

    def target(self) -> Target:
        return now(self._verbs.target())

    def metadata(self) -> dict[str, str]:
        return now(self._verbs.metadata())

    def task_wait(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until the task has ended or `timeout` seconds are over, and say how it stands."""
        return now(self._verbs.task_wait(task_id, timeout))

    def task_reason(self, task_id: str) -> str:
        """Why a task failed or was cancelled; empty where nothing is known."""
        return now(self._verbs.task_reason(task_id))

    def run(self, payload: Payload, timeout: float | None = None) -> TaskResult:
        """Start a task, wait for it, and return its result; a task that did not complete raises QrmiError.

        When the wait is broken off, by time or by a signal, the task is stopped.
        """
        return now(self._verbs.run(payload, timeout))


def of_the_job(
    resource_id: str | None, resource_type: ResourceType | str | None
) -> tuple[str, ResourceType | str | None]:
    """The resource that is named, or the job's first; raises EnvVarNotSetError where there is none."""
    if resource_id is not None:
        return resource_id, resource_type
    names, types = get_job_qpu_resources_and_types()
    if not names:
        raise EnvVarNotSetError("The job has no QPU; submit it with --qpu=NAME")
    return names[0], types[0]


@contextmanager
def acquire(
    resource_id: str | None = None, resource_type: ResourceType | str | None = None
) -> Iterator[QuantumResource]:
    """`with acquire("ibm_fez") as qpu:`, the resource while its lease is used; without a name the job's first."""
    resource = QuantumResource(*of_the_job(resource_id, resource_type))
    lease = resource.acquire()
    try:
        yield resource
    finally:
        resource.release(lease)

"""The provider port: what qtandem needs of one vendor's API.

Providers run only in worker processes (`worker.py`), one call at a time, and may block: the deadline is kept
from outside. A provider raises `QtandemError` with a code that says whose fault it was; anything else is
taken for a fault of the provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from qtandem.core.facts import Observation


class TaskState(StrEnum):
    """QRMI's task states, and `submitting` for a task whose submission the vendor has not confirmed."""

    SUBMITTING = "submitting"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """State of one vendor task; `usage_s` is the vendor's own count of QPU seconds, `shots` what it ran.

    `cost` is what the vendor's own price makes of it, in the vendor's currency. `more`: the vendor tells the usage in
    another call, which is `task_usage`.
    """

    state: TaskState
    reason: str = ""
    usage_s: float | None = None
    shots: int | None = None
    cost: float | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider does for real. `sessions`: acquire opens something at the vendor.

    `finds_tasks` / `finds_sessions`: a lost submission or acquisition can be found again by our key. Where a vendor
    cannot, but the provider keeps records, `find_task` gives what they say and raises `task-failed` for a submission
    that was interrupted: None always means that sending it is safe.
    """

    sessions: bool
    finds_sessions: bool
    finds_tasks: bool
    payloads: frozenset[str]
    logs: bool = True
    stop: bool = True


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """What a worker needs to speak for one resource. `settings` may hold secrets: never log or print it."""

    resource: str
    type: str
    settings: Mapping[str, str] = field(repr=False)
    slots: int = 1


class Provider(Protocol):
    """One resource at one vendor, constructed as `Class(spec)` inside a worker."""

    capabilities: Capabilities

    def observe(self) -> Observation:
        """Read availability, queue and calibration. Must not change anything at the vendor."""

    def acquire(self, key: str, slots: int) -> str:
        """Open what the vendor calls a session for our `key` and return its token.

        The same key returns the same session while it is open. A vendor without sessions returns `key`.
        """

    def release(self, token: str) -> None:
        """Close the session; an unknown or closed one is no error."""

    def find_session(self, key: str) -> str | None:
        """The token of the open session that `acquire(key)` made, if the vendor can tell."""

    def target(self) -> str:
        """The vendor's description of the device as JSON text, as QRMI's `target()` gives it."""

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        """Submit one task and return the vendor's id; the same key never starts a second one.

        `payload` has a `kind`: `qasm2`, `qasm3` (with `program`, `shots`) or `qiskit-primitive`
        (with `program_id`, `input`).
        """

    def find_task(self, key: str) -> str | None:
        """The vendor's id of the task started with `key`, if the vendor can tell."""

    def task_status(self, task: str) -> TaskReport: ...

    def task_result(self, task: str) -> str:
        """The result as the vendor's own JSON text; `task-not-ready` before it is there."""

    def task_logs(self, task: str) -> str: ...

    def task_stop(self, task: str) -> None:
        """Cancel if still possible; an ended task is no error."""

    def metadata(self) -> dict[str, str]: ...


class Sender(Protocol):
    """What a provider can do besides that has to ask its vendor whether a key was sent before."""

    def task_send(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        """As `task_start`, for a key that was surely never sent."""


class Lister(Protocol):
    """What a provider can do besides whose vendor tells the states of many tasks in one answer."""

    def task_usage(self, task: str) -> float | None:
        """QPU seconds of a task that has ended, where its report says that there is `more`."""

    def task_statuses(self, tasks: Sequence[str]) -> Mapping[str, TaskReport]:
        """The reports on those of the tasks that the answer has; the others are asked for one by one."""


class Discoverer(Protocol):
    """What a provider of a type in `DISCOVERS` can do besides."""

    def discover(self, details: bool) -> list[dict[str, object]]:
        """All devices that the credential reaches; must not change anything at the vendor.

        Rows of `name`, and of `qubits`, `simulator`, `queue`, `status`, `max_shots` as far as the vendor says them;
        with `details`, also what takes a call for each device.
        """


class Forwarder(Protocol):
    """What a provider can do besides whose vendor's own protocol programs may speak through the proxy."""

    def forward(self, token: str, asked: Mapping[str, object]) -> dict[str, object]:
        """Pass on a call of a run whose session is `token`; the fields of `passing.Asked` and `passing.Passed`.

        Raises `not-allowed` for anything but the run's own work on this resource.
        """


DISCOVERS = ("ibm-quantum-compute-service", "qiskit-runtime-service", "ibm-quantum-system")

# In-tree providers by type; entry points of the group `qtandem.providers` come second.
PROVIDERS: dict[str, str] = {
    "simulator": "qtandem.core.providers.simulator.provider:SimulatorProvider",
    "ibm-quantum-compute-service": "qtandem.core.providers.ibm.compute:ComputeProvider",
    "qiskit-runtime-service": "qtandem.core.providers.ibm.compute:ComputeProvider",
    "ibm-quantum-system": "qtandem.core.providers.ibm.system:SystemProvider",
    "braket": "qtandem.core.providers.braket.provider:BraketProvider",
    "iqm-server": "qtandem.core.providers.qrmi.provider:IqmProvider",
    "alice-bob-felis": "qtandem.core.providers.qrmi.provider:FelisProvider",
    "pasqal-cloud": "qtandem.core.providers.qrmi.provider:PasqalCloudProvider",
    "pasqal-local": "qtandem.core.providers.qrmi.provider:PasqalLocalProvider",
    "oqtopus": "qtandem.core.providers.qrmi.provider:OqtopusProvider",
}

# In-tree types at whose vendors nothing keeps other people's work from coming between two tasks.
SESSIONLESS = frozenset({"ibm-quantum-system", "braket", "iqm-server", "alice-bob-felis", "pasqal-cloud", "oqtopus"})

# What installs a provider's own client: `pip install 'qtandem[EXTRA]'`.
EXTRAS: dict[str, str] = {
    "simulator": "simulator",
    "ibm-quantum-compute-service": "ibm",
    "qiskit-runtime-service": "ibm",
    "ibm-quantum-system": "ibm-system",
    "braket": "braket",
    "iqm-server": "qrmi",
    "alice-bob-felis": "qrmi",
    "pasqal-cloud": "qrmi",
    "pasqal-local": "qrmi",
    "oqtopus": "qrmi",
}

# Types of QRMI 0.26, and the spellings that were retired.
QRMI_TYPES = (
    "ibm-quantum-system",
    "ibm-quantum-compute-service",
    "qiskit-runtime-service",
    "pasqal-cloud",
    "pasqal-local",
    "alice-bob-felis",
    "iqm-server",
    "oqtopus",
)
RETIRED_TYPES = {"direct-access": "ibm-quantum-system", "quantum-system": "ibm-quantum-system"}

"""QRMI's values: enums, status, results and payloads, by QRMI's names and numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import ClassVar

from qtandem.core.client.errors import UnsupportedResourceTypeError


class _Enum(IntEnum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ResourceType(_Enum):
    """Numbers are QRMI's; `Simulator` and `Braket` are our own."""

    IBMQuantumSystem = 0
    IBMQiskitRuntimeService = 1
    IBMQuantumComputeService = 2
    PasqalCloud = 3
    PasqalLocal = 4
    AliceBobFelis = 5
    IQMServer = 6
    OQTOPUS = 7
    Simulator = 1000
    Braket = 1001

    @property
    def text(self) -> str:
        """The spelling of configuration files, for example `ibm-quantum-system`."""
        return _TYPE_TEXT[self]

    @classmethod
    def of(cls, value: object) -> ResourceType:
        """From a member, a text, a number, or a member of QRMI's own enum; raises UnsupportedResourceTypeError."""
        if isinstance(value, str):
            found = next((member for member, text in _TYPE_TEXT.items() if text == value), None)
            if found is not None:
                return found
        elif hasattr(value, "__int__"):
            number = int(value)
            if number in cls._value2member_map_:
                return cls(number)
        raise UnsupportedResourceTypeError(f"{value!r} is not a resource type")


_TYPE_TEXT = {
    ResourceType.IBMQuantumSystem: "ibm-quantum-system",
    ResourceType.IBMQiskitRuntimeService: "qiskit-runtime-service",
    ResourceType.IBMQuantumComputeService: "ibm-quantum-compute-service",
    ResourceType.PasqalCloud: "pasqal-cloud",
    ResourceType.PasqalLocal: "pasqal-local",
    ResourceType.AliceBobFelis: "alice-bob-felis",
    ResourceType.IQMServer: "iqm-server",
    ResourceType.OQTOPUS: "oqtopus",
    ResourceType.Simulator: "simulator",
    ResourceType.Braket: "braket",
}


class TaskStatus(_Enum):
    """A task's state under QRMI's names."""

    Queued = 0
    Running = 1
    Completed = 2
    Failed = 3
    Cancelled = 4

    @property
    def final(self) -> bool:
        return self >= TaskStatus.Completed

    @classmethod
    def of(cls, state: str) -> TaskStatus:
        """From one of `TaskState`; a task that is being submitted is queued."""
        return _TASK_STATES[state]


_TASK_STATES = {
    "submitting": TaskStatus.Queued,
    "queued": TaskStatus.Queued,
    "running": TaskStatus.Running,
    "completed": TaskStatus.Completed,
    "failed": TaskStatus.Failed,
    "cancelled": TaskStatus.Cancelled,
}


class ResourceStatusCode(_Enum):
    """A resource's state under QRMI's names."""

    Online = 0
    Offline = 1
    Paused = 2


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """Slots that are free now, and all."""

    available_slots: int
    max_slots: int


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """`busy` is None where it is not known; `pending_job_count` is the vendor's queue."""

    status: ResourceStatusCode
    status_reason: str | None = None
    healthy: bool | None = None
    busy: bool | None = None
    capacity: ResourceCapacity | None = None
    pending_job_count: int | None = None

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "status": self.status.name}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The vendor's own text."""

    value: str


@dataclass(frozen=True, slots=True)
class Target:
    """The vendor's description of the device, JSON text."""

    value: str


class Payload:
    """What a task executes; one nested class a kind."""

    kind: ClassVar[str]

    QiskitPrimitive: ClassVar[type[_QiskitPrimitive]]
    PasqalCloud: ClassVar[type[_PasqalCloud]]
    AliceBobFelis: ClassVar[type[_AliceBobFelis]]
    IQMServer: ClassVar[type[_IQMServer]]
    Oqtopus: ClassVar[type[_Oqtopus]]
    QASM2: ClassVar[type[_QASM2]]
    QASM3: ClassVar[type[_QASM3]]

    def fields(self) -> dict[str, object]:
        """The content as the daemon takes it, without `kind`."""
        return dict(vars(self))


@dataclass
class _QiskitPrimitive(Payload):
    """`input` is JSON text; `program_id` `sampler`, `estimator` or what else the vendor has."""

    input: str
    program_id: str
    kind = "qiskit-primitive"


@dataclass
class _PasqalCloud(Payload):
    sequence: str
    job_runs: int
    kind = "pasqal-cloud"


@dataclass
class _AliceBobFelis(Payload):
    human_qir: str
    input_params: str
    kind = "alice-bob-felis"


@dataclass
class _IQMServer(Payload):
    iqmjson: str
    job_type: str
    use_timeslot: bool = False
    tag: str | None = None
    kind = "iqm-server"


@dataclass
class _Oqtopus(Payload):
    job_spec: str
    kind = "oqtopus"


@dataclass
class _QASM2(Payload):
    """OpenQASM 2 text. QRMI has no such kind."""

    program: str
    shots: int = 1024
    kind = "qasm2"


@dataclass
class _QASM3(Payload):
    """OpenQASM 3 text. QRMI has no such kind."""

    program: str
    shots: int = 1024
    kind = "qasm3"


Payload.QiskitPrimitive = _QiskitPrimitive
Payload.PasqalCloud = _PasqalCloud
Payload.AliceBobFelis = _AliceBobFelis
Payload.IQMServer = _IQMServer
Payload.Oqtopus = _Oqtopus
Payload.QASM2 = _QASM2
Payload.QASM3 = _QASM3


def qasm(program: str, shots: int) -> Payload:
    """An OpenQASM payload of the version that the text declares; 3 where it declares none."""
    for line in program.splitlines():
        words = line.split("//")[0].replace(";", " ").split()
        if words:
            version2 = words[0] == "OPENQASM" and len(words) > 1 and words[1].startswith("2")
            return _QASM2(program, shots) if version2 else _QASM3(program, shots)
    return _QASM3(program, shots)

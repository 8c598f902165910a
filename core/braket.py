"""Amazon Braket code in a job: the device, over the lease that the job holds.

A program for AWS changes one import:

    from qtandem.core.braket import AwsDevice

Imported by jobs only; needs the extra `qtandem[braket]`. The site's own credentials and bucket are used, in the daemon.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, ClassVar

from braket.ahs.analog_hamiltonian_simulation import AnalogHamiltonianSimulation
from braket.circuits import Circuit
from braket.circuits.circuit_helpers import validate_circuit_and_shots
from braket.circuits.noise_model import NoiseModel
from braket.circuits.serialization import (
    IRType,
    OpenQASMSerializationProperties,
    QubitReferenceType,
    SerializableProgram,
)
from braket.devices import Device
from braket.ir.ahs import Program as AHSProgram
from braket.ir.openqasm import Program as OpenQASMProgram
from braket.ir.openqasm.program_set_v1 import ProgramSet as OpenQASMProgramSet
from braket.program_sets import ProgramSet
from braket.pulse import PulseSequence
from braket.schema_common import BraketSchemaBase
from braket.task_result import AnalogHamiltonianSimulationTaskResult, GateModelTaskResult
from braket.task_result.program_set_task_result_v1 import ProgramSetTaskResult
from braket.tasks import GateModelQuantumTaskResult
from braket.tasks.analog_hamiltonian_simulation_quantum_task_result import AnalogHamiltonianSimulationQuantumTaskResult
from braket.tasks.program_set_quantum_task_result import ProgramSetQuantumTaskResult
from braket.tasks.quantum_task import QuantumTask
from braket.tasks.quantum_task_batch import QuantumTaskBatch

from qtandem.core.client.environment import get_job_qpu_resources_and_types
from qtandem.core.client.errors import QrmiError, ResourceNotFoundError, UnsupportedFunctionError
from qtandem.core.client.resource import QuantumResource, of_the_job
from qtandem.core.client.types import Payload, TaskStatus
from qtandem.core.client.verbs import ended

__all__ = ["AwsDevice", "QtandemDevice", "QtandemTask", "QtandemTaskBatch"]

# As the SDK has it: a simulator computes exactly unless it is told how often to sample.
DEFAULT_SHOTS, DEFAULT_SHOTS_SIMULATOR = 1000, 0
_STATES = {
    TaskStatus.Queued: "QUEUED",
    TaskStatus.Running: "RUNNING",
    TaskStatus.Completed: "COMPLETED",
    TaskStatus.Failed: "FAILED",
    TaskStatus.Cancelled: "CANCELLED",
}


class QtandemDevice(Device):
    """One of the job's devices of Braket, by its name or its ARN; without a name the first one."""

    def __init__(
        self,
        name: str | None = None,
        *,
        resource: QuantumResource | None = None,
        noise_model: NoiseModel | None = None,
    ) -> None:
        self.resource = resource or _chosen(name)
        super().__init__(name=self.resource.resource_id(), status="ONLINE")
        self._description: Mapping[str, Any] | None = None
        self._lease = ""
        if noise_model is not None:
            self._validate_device_noise_model_support(noise_model)
        self._noise_model = noise_model

    def __repr__(self) -> str:
        return f"QtandemDevice({self.name!r})"

    @property
    def status(self) -> str:
        """ONLINE or OFFLINE, by the daemon's newest fact."""
        return "ONLINE" if self.resource.is_accessible() else "OFFLINE"

    @property
    def arn(self) -> str:
        """Braket's own name; empty for a simulator of the SDK."""
        return str(self._described().get("deviceArn") or "")

    @property
    def type(self) -> str:
        return "QPU" if self._described().get("deviceType") == "QPU" else "SIMULATOR"

    @property
    def properties(self) -> Any:
        """Braket's description in the SDK's class; raises UnsupportedFunctionError for one that it does not know."""
        try:
            return BraketSchemaBase.parse_raw_schema(json.dumps(self._described()["deviceCapabilities"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedFunctionError(f"The description of {self.name} is none of Braket's") from error

    def run(
        self,
        task_specification: Any,
        shots: int | None = None,
        inputs: Mapping[str, float] | None = None,
        *_: Any,
        **options: Any,
    ) -> QtandemTask:
        """Start a circuit, program, program set, pulse sequence or Hamiltonian as one task.

        Options are `device_parameters`, `disable_qubit_rewiring` and `gate_definitions`; what AWS's own device takes
        besides is the site's to say. Raises ValueError for what the SDK refuses.
        """
        return self._start(task_specification, shots, inputs, options)

    def _start(
        self, task_specification: Any, shots: int | None, inputs: Mapping[str, float] | None, options: Mapping[str, Any]
    ) -> QtandemTask:
        if self._noise_model is not None:
            task_specification = self._noise_model.apply(task_specification)
        work = Work(self._shots(task_specification, shots), inputs or {}, options)
        if not self._lease:
            self._lease = self.resource.acquire()
        task = self.resource.task_start(payload_of(task_specification, work))
        return QtandemTask(self, task, task_specification)

    def run_batch(
        self,
        task_specifications: Any,
        shots: int | Sequence[int] | None = None,
        max_parallel: int | None = None,  # noqa: ARG002  the lease's slots decide
        inputs: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
        *_: Any,
        **options: Any,
    ) -> QtandemTaskBatch:
        """Start all of them; as many run at once as the lease has slots, the others wait in the daemon."""
        many = [task_specifications] if not isinstance(task_specifications, list | tuple) else task_specifications
        count = max(len(many), len(inputs) if isinstance(inputs, list | tuple) else 1)
        columns = [_column(each, count) for each in (many, shots, inputs)]
        rows = zip(*columns, strict=True)
        return QtandemTaskBatch([self._start(task, number, values, options) for task, number, values in rows])

    def _described(self) -> Mapping[str, Any]:
        if self._description is None:
            found = json.loads(self.resource.target().value)
            self._description = found if isinstance(found, dict) else {}
        return self._description

    def _shots(self, specification: Any, shots: int | None) -> int:
        if shots is not None:
            return shots
        if isinstance(specification, ProgramSet) and specification.shots_per_executable:
            return int(specification.total_shots)
        if isinstance(specification, ProgramSet | OpenQASMProgramSet):
            raise ValueError("Say how many shots the program set takes")
        return DEFAULT_SHOTS if self.type == "QPU" else DEFAULT_SHOTS_SIMULATOR


class AwsDevice(QtandemDevice):
    """`QtandemDevice` with the arguments of AWS's class: `AwsDevice(ARN)`, `run(circuit, s3_folder, shots=1000)`.

    Session and folder are not used, for the daemon has the site's own.
    """

    def __init__(
        self,
        arn: str | None = None,
        aws_session: object = None,  # noqa: ARG002
        noise_model: NoiseModel | None = None,
    ) -> None:
        super().__init__(arn, noise_model=noise_model)

    @classmethod
    def get_devices(cls, *_: Any, names: Sequence[str] | None = None, **__: Any) -> list[AwsDevice]:
        """The devices that the job holds."""
        held = [cls(name) for name in get_job_qpu_resources_and_types()[0]]
        return [device for device in held if names is None or device.name in names]

    def run(  # type: ignore[override]  # as AWS has it
        self,
        task_specification: Any,
        s3_destination_folder: object = None,  # noqa: ARG002
        shots: int | None = None,
        *_: Any,
        inputs: Mapping[str, float] | None = None,
        **options: Any,
    ) -> QtandemTask:
        return self._start(task_specification, shots, inputs, options)

    def run_batch(  # type: ignore[override]
        self,
        task_specifications: Any,
        s3_destination_folder: object = None,  # noqa: ARG002
        shots: int | Sequence[int] | None = None,
        *_: Any,
        inputs: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
        **options: Any,
    ) -> QtandemTaskBatch:
        return super().run_batch(task_specifications, shots, None, inputs, **options)


class QtandemTask(QuantumTask):
    """A task as the SDK shows its own."""

    def __init__(self, device: QtandemDevice, task: str, specification: Any = None) -> None:
        self._resource, self._task, self._specification = device.resource, task, specification
        self._read: Any = None

    def __repr__(self) -> str:
        return f"QtandemTask({self._task!r})"

    @property
    def id(self) -> str:
        return self._task

    def state(self, use_cached_value: bool = False) -> str:  # noqa: ARG002
        """QUEUED, RUNNING, COMPLETED, FAILED or CANCELLED."""
        return _STATES[self._resource.task_status(self._task)]

    def cancel(self) -> None:
        self._resource.task_stop(self._task)

    def result(self) -> Any:
        """Wait for the result; raises QrmiError, with the reason, for a task that did not complete."""
        if self._read is None:
            status = self._resource.task_wait(self._task)
            if status is not TaskStatus.Completed:
                raise QrmiError(ended(self._task, status, self._resource.task_reason(self._task)))
            text = self._resource.task_result(self._task).value
            self._read = result_of(text, self._specification)
        return self._read

    def async_result(self) -> asyncio.Task[Any]:
        """The result as a task of the running event loop."""
        return asyncio.get_running_loop().create_task(asyncio.to_thread(self.result))

    def metadata(self, use_cached_value: bool = False) -> dict[str, Any]:
        return {"quantumTaskArn": self._task, "status": self.state(use_cached_value)}


class QtandemTaskBatch(QuantumTaskBatch):
    """Tasks that were started together."""

    def __init__(self, tasks: Sequence[QtandemTask]) -> None:
        self.tasks = list(tasks)

    def results(self, *_: Any, **__: Any) -> list[Any]:
        """In their order; raises as `QtandemTask.result` for the first that did not complete."""
        return [task.result() for task in self.tasks]


@dataclass(frozen=True, slots=True)
class Work:
    """What goes with a specification into its task."""

    shots: int
    inputs: Mapping[str, float]
    options: Mapping[str, Any]

    def parameters(self) -> dict[str, Any]:
        given = self.options.get("device_parameters") or {}
        return dict(given) if isinstance(given, Mapping) else dict(json.loads(given.json(exclude_none=True)))

    @property
    def verbatim(self) -> bool:
        return bool(self.options.get("disable_qubit_rewiring"))


@dataclass
class _Program(Payload):
    """OpenQASM in Braket's dialect."""

    program: str
    shots: int
    inputs: dict[str, Any]
    device_parameters: dict[str, Any]
    disable_qubit_rewiring: bool
    kind: ClassVar[str] = "qasm3"


@dataclass
class _Action(Payload):
    """An action in Braket's own JSON."""

    action: str
    shots: int
    device_parameters: dict[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "braket-action"


@singledispatch
def payload_of(specification: Any, work: Work) -> Payload:  # noqa: ARG001
    """The task's content; raises ValueError for what is no task of Braket."""
    raise ValueError(f"{type(specification).__name__} cannot be run on a device of Braket")


@payload_of.register
def _(specification: Circuit, work: Work) -> Payload:
    unbound = {parameter.name for parameter in specification.parameters} - set(work.inputs)
    if unbound:
        raise ValueError(f"The circuit has parameters without a value: {', '.join(sorted(unbound))}")
    validate_circuit_and_shots(specification, work.shots)
    physical = OpenQASMSerializationProperties(qubit_reference_type=QubitReferenceType.PHYSICAL)
    program = specification.to_ir(
        ir_type=IRType.OPENQASM,
        serialization_properties=physical if work.verbatim else None,
        gate_definitions=work.options.get("gate_definitions"),
    )
    return payload_of(program, work)


@payload_of.register
def _(specification: OpenQASMProgram, work: Work) -> Payload:
    inputs = {**(specification.inputs or {}), **work.inputs}
    return _Program(specification.source, work.shots, inputs, work.parameters(), work.verbatim)


@payload_of.register
def _(specification: PulseSequence, work: Work) -> Payload:
    return payload_of(OpenQASMProgram(source=specification.to_ir()), work)


@payload_of.register
def _(specification: AnalogHamiltonianSimulation, work: Work) -> Payload:
    return payload_of(specification.to_ir(), work)


@payload_of.register
def _(specification: ProgramSet, work: Work) -> Payload:
    return payload_of(specification.to_ir(gate_definitions=work.options.get("gate_definitions")), work)


@payload_of.register(AHSProgram)
@payload_of.register(OpenQASMProgramSet)
def _(specification: Any, work: Work) -> Payload:
    return _Action(specification.json(), work.shots, work.parameters())


@payload_of.register
def _(specification: SerializableProgram, work: Work) -> Payload:
    return payload_of(OpenQASMProgram(source=specification.to_ir(ir_type=IRType.OPENQASM)), work)


def result_of(text: str, specification: Any = None) -> Any:
    """The SDK's result of its JSON; raises QrmiError for a text that is none."""
    try:
        read = BraketSchemaBase.parse_raw_schema(text)
    except (KeyError, TypeError, ValueError) as error:
        raise QrmiError("The result of the task is not one of Braket's") from error
    if isinstance(read, GateModelTaskResult):
        GateModelQuantumTaskResult.cast_result_types(read)
        return GateModelQuantumTaskResult.from_object(read)
    if isinstance(read, ProgramSetTaskResult):
        known = specification if isinstance(specification, ProgramSet) else None
        return ProgramSetQuantumTaskResult.from_object(read, program_set=known)
    if isinstance(read, AnalogHamiltonianSimulationTaskResult):
        return AnalogHamiltonianSimulationQuantumTaskResult.from_object(read)
    raise QrmiError(f"A result of the kind {type(read).__name__} is not known")


def _chosen(name: str | None) -> QuantumResource:
    if name is None or not name.startswith("arn:"):
        return QuantumResource(*of_the_job(name, None))
    names, types = get_job_qpu_resources_and_types()
    for held, kind in zip(names, types, strict=True):
        resource = QuantumResource(held, kind)
        if json.loads(resource.target().value).get("deviceArn") == name:
            return resource
    raise ResourceNotFoundError(f"This job holds {', '.join(names) or 'no QPU'}, none of which is {name}")


def _column(given: Any, count: int) -> Sequence[Any]:
    """One value for each of `count` tasks; raises ValueError where there are more or fewer."""
    many = given if isinstance(given, list | tuple) else [given]
    if len(many) == 1:
        return list(many) * count
    if len(many) != count:
        raise ValueError(f"{len(many)} values are given for {count} tasks")
    return many

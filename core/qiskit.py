"""Qiskit code in a job: the backend and the primitives, over the lease that the job holds.

A program for IBM's machines changes one import:

    from qtandem.core.qiskit import QiskitRuntimeService, SamplerV2 as Sampler

Imported by jobs only; needs the extra `qtandem[qiskit]`. The site's own credentials are used, in the daemon.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from qiskit import QuantumCircuit
from qiskit.circuit.controlflow import ForLoopOp, IfElseOp, SwitchCaseOp, WhileLoopOp
from qiskit.circuit.library import get_standard_gate_name_mapping
from qiskit.primitives import BaseEstimatorV2, BasePrimitiveJob, BaseSamplerV2, PrimitiveResult
from qiskit.primitives.containers.estimator_pub import EstimatorPub
from qiskit.primitives.containers.sampler_pub import SamplerPub
from qiskit.providers import BackendV2, JobStatus, JobV1, Options
from qiskit.result import Result
from qiskit.transpiler import InstructionProperties, Target
from qiskit_ibm_runtime import RuntimeDecoder, RuntimeEncoder

from qtandem.core.client.environment import get_job_qpu_resources_and_types
from qtandem.core.client.errors import InvalidInputError, QrmiError, ResourceNotFoundError, UnsupportedFunctionError
from qtandem.core.client.resource import QuantumResource, of_the_job
from qtandem.core.client.types import Payload, TaskStatus
from qtandem.core.client.verbs import ended

__all__ = [
    "Batch",
    "Estimator",
    "EstimatorV2",
    "QiskitRuntimeService",
    "QtandemBackend",
    "Sampler",
    "SamplerV2",
    "Session",
]

DEFAULT_SHOTS, DEFAULT_PRECISION = 1024, 1 / 64
_CONTROL_FLOW = {"if_else": IfElseOp, "for_loop": ForLoopOp, "while_loop": WhileLoopOp, "switch_case": SwitchCaseOp}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_STATUS = {
    TaskStatus.Queued: JobStatus.QUEUED,
    TaskStatus.Running: JobStatus.RUNNING,
    TaskStatus.Completed: JobStatus.DONE,
    TaskStatus.Failed: JobStatus.ERROR,
    TaskStatus.Cancelled: JobStatus.CANCELLED,
}


class QtandemBackend(BackendV2):
    """One of the job's QPUs, by its name; without a name the first one."""

    def __init__(self, name: str | None = None, *, resource: QuantumResource | None = None) -> None:
        self.resource = resource or QuantumResource(*of_the_job(name, None))
        super().__init__(name=self.resource.resource_id())
        self._target: Target | None = None
        self._lease = ""

    @property
    def target(self) -> Target:
        """Gates, couplings and errors; raises UnsupportedFunctionError for a description that is not Qiskit's."""
        if self._target is None:
            self._target = target_of(self.resource.target().value, self.name)
        return self._target

    @property
    def max_circuits(self) -> None:
        return None

    @classmethod
    def _default_options(cls) -> Options:
        return Options(shots=DEFAULT_SHOTS, memory=False)

    def run(self, run_input: QuantumCircuit | Sequence[QuantumCircuit], **options: Any) -> CountsJob:
        """Run measured circuits, one task for all of them; options are `shots` and `memory`."""
        circuits = [run_input] if isinstance(run_input, QuantumCircuit) else list(run_input)
        shots = int(options.get("shots") or self.options.shots)
        task = self.start("sampler", {"pubs": [SamplerPub.coerce(circuit, shots) for circuit in circuits]})
        return CountsJob(self, task, circuits, memory=bool(options.get("memory", self.options.memory)))

    def start(self, program: str, content: Mapping[str, Any]) -> str:
        """Start a primitive on the held lease and return the task's id."""
        if not self._lease:
            self._lease = self.resource.acquire()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the encoder's advice is for users of that package
            text = json.dumps({**content, "version": 2, "supports_qiskit": True}, cls=RuntimeEncoder)
        return self.resource.task_start(Payload.QiskitPrimitive(text, program))


class _Followed:
    """A task as Qiskit's jobs show theirs."""

    def __init__(self, backend: QtandemBackend, task: str) -> None:
        self._resource, self._task = backend.resource, task
        self._read: Any = None

    def status(self) -> JobStatus:
        return _STATUS[self._resource.task_status(self._task)]

    def done(self) -> bool:
        return self.status() is JobStatus.DONE

    def running(self) -> bool:
        return self.status() is JobStatus.RUNNING

    def cancelled(self) -> bool:
        return self.status() is JobStatus.CANCELLED

    def in_final_state(self) -> bool:
        return self.status() in (JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELLED)

    def cancel(self) -> bool:
        """True if the task had not ended."""
        if self.in_final_state():
            return False
        self._resource.task_stop(self._task)
        return True

    def logs(self) -> str:
        return self._resource.task_logs(self._task)

    def _primitive_result(self, timeout: float | None) -> PrimitiveResult:
        if self._read is None:
            status = self._resource.task_wait(self._task, timeout)
            if not status.final:
                raise QrmiError(f"Task {self._task} did not end within {timeout:g} s")
            if status is not TaskStatus.Completed:
                raise QrmiError(ended(self._task, status, self._resource.task_reason(self._task)))
            self._read = _decode(self._resource.task_result(self._task).value)
        return self._read


class PrimitiveJob(_Followed, BasePrimitiveJob):
    """A task that runs a primitive."""

    def __init__(self, backend: QtandemBackend, task: str) -> None:
        BasePrimitiveJob.__init__(self, task)
        _Followed.__init__(self, backend, task)

    def result(self, timeout: float | None = None) -> PrimitiveResult:
        """Wait for it; raises QrmiError for a task that failed, or that did not end within `timeout` seconds."""
        return self._primitive_result(timeout)


class CountsJob(_Followed, JobV1):
    """A task of `QtandemBackend.run`."""

    def __init__(self, backend: QtandemBackend, task: str, circuits: Sequence[QuantumCircuit], *, memory: bool) -> None:
        JobV1.__init__(self, backend, task)
        _Followed.__init__(self, backend, task)
        self._circuits, self._memory = circuits, memory

    def submit(self) -> None:
        """It was started when it was made."""

    def result(self, timeout: float | None = None) -> Result:
        """Counts, and the memory if it was asked for; raises as `PrimitiveJob.result`."""
        pubs = self._primitive_result(timeout)
        return Result.from_dict(
            {
                "backend_name": self.backend().name,
                "backend_version": "",
                "qobj_id": "",
                "job_id": self.job_id(),
                "success": True,
                "results": [self._experiment(*pair) for pair in zip(self._circuits, pubs, strict=True)],
            }
        )

    def _experiment(self, circuit: QuantumCircuit, pub: Any) -> dict[str, Any]:
        bits = pub.join_data([register.name for register in circuit.cregs])
        counts = {hex(value): number for value, number in bits.get_int_counts().items()}
        shown = {"memory": [hex(int(shot, 2)) for shot in bits.get_bitstrings()]} if self._memory else {}
        header = {
            "name": circuit.name,
            "creg_sizes": [[register.name, register.size] for register in circuit.cregs],
            "memory_slots": circuit.num_clbits,
            "metadata": circuit.metadata,
        }
        return {
            "shots": bits.num_shots,
            "success": True,
            "status": "DONE",
            "data": {"counts": counts, **shown},
            "header": header,
        }


class PrimitiveOptions(dict[str, Any]):
    """The vendor's options by attribute or key, nested as deep as one likes: `options.twirling.enable_gates = True`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.setdefault(name, PrimitiveOptions())

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def set(self) -> dict[str, Any]:
        """Without the branches that were only looked at."""
        inner = {key: value.set() if isinstance(value, PrimitiveOptions) else value for key, value in self.items()}
        return {key: value for key, value in inner.items() if value != {}}


class Session:
    """IBM's session or batch by its interface; the lease that the job holds is the session."""

    def __init__(self, backend: QtandemBackend | None = None, **_: Any) -> None:
        self._backend = backend or QtandemBackend()

    def backend(self) -> str:
        return str(self._backend.name)

    def close(self) -> None:
        """The lease ends with the job."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Batch = Session


class _Primitive:
    def __init__(
        self,
        mode: QtandemBackend | Session | str | None = None,
        *,
        backend: QtandemBackend | None = None,
        options: Mapping[str, Any] | None = None,
        **defaults: Any,
    ) -> None:
        given = mode._backend if isinstance(mode, Session) else mode
        self._backend = backend or (given if isinstance(given, QtandemBackend) else QtandemBackend(given))
        self.options = PrimitiveOptions()
        for key, value in {**(options or {}), **defaults}.items():
            self.options[key] = _nested(value)

    def backend(self) -> QtandemBackend:
        return self._backend

    def _start(self, program: str, pubs: Sequence[Any]) -> PrimitiveJob:
        if not pubs:
            raise InvalidInputError("There is no pub to run")
        options = {key: value for key, value in self.options.set().items() if not key.startswith("default_")}
        above = {key: options.pop(key) for key in ("resilience_level",) if key in options}
        content = {"pubs": pubs, **above, **({"options": options} if options else {})}
        return PrimitiveJob(self._backend, self._backend.start(program, content))


class Sampler(_Primitive, BaseSamplerV2):
    """`Sampler(backend_or_name_or_session, default_shots=4096, options={...})`; without arguments the job's QPU."""

    def run(self, pubs: Iterable[Any], *, shots: int | None = None) -> PrimitiveJob:
        """One task for all pubs."""
        wanted = shots or self.options.get("default_shots") or DEFAULT_SHOTS
        return self._start("sampler", [SamplerPub.coerce(pub, wanted) for pub in pubs])


class Estimator(_Primitive, BaseEstimatorV2):
    """`Estimator(backend_or_name_or_session, default_precision=0.01, options={...})`."""

    def run(self, pubs: Iterable[Any], *, precision: float | None = None) -> PrimitiveJob:
        """One task for all pubs."""
        wanted = precision or self.options.get("default_precision") or self._precision_of_shots()
        return self._start("estimator", [EstimatorPub.coerce(pub, wanted) for pub in pubs])

    def _precision_of_shots(self) -> float:
        shots = self.options.get("default_shots")
        return float(shots) ** -0.5 if shots else DEFAULT_PRECISION


SamplerV2, EstimatorV2 = Sampler, Estimator


class QiskitRuntimeService:
    """IBM's service by its interface, with the QPUs of this job; channel, token and the like are not used."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._names = get_job_qpu_resources_and_types()[0]

    def backends(
        self,
        name: str | None = None,
        min_num_qubits: int = 0,
        filters: Callable[[QtandemBackend], bool] | None = None,
        **_: Any,
    ) -> list[QtandemBackend]:
        found = [QtandemBackend(each) for each in self._names if name in (None, each)]
        fit = [backend for backend in found if not min_num_qubits or backend.num_qubits >= min_num_qubits]
        return [backend for backend in fit if filters is None or filters(backend)]

    def backend(self, name: str | None = None, **_: Any) -> QtandemBackend:
        """Raises ResourceNotFoundError for a QPU that the job does not hold."""
        found = self.backends(name)
        if not found:
            raise ResourceNotFoundError(f"This job holds {', '.join(self._names) or 'no QPU'}, not {name}")
        return found[0]

    def least_busy(self, min_num_qubits: int = 0, **_: Any) -> QtandemBackend:
        """The first of the job's QPUs that is large enough: it waited for them when it was submitted."""
        found = self.backends(min_num_qubits=min_num_qubits)
        if not found:
            raise ResourceNotFoundError(f"This job holds no QPU with {min_num_qubits} qubits")
        return found[0]


def target_of(text: str, name: str = "the QPU") -> Target:
    """The target in a description of IBM's form, `{configuration, properties}`; parts out of order are left out."""
    try:
        description = json.loads(text)
        configuration, properties = description["configuration"], description.get("properties") or {}
        qubits, basis = int(configuration["n_qubits"]), list(configuration["basis_gates"])
    except (ValueError, TypeError, KeyError) as error:
        raise UnsupportedFunctionError(f"The description of {name} is not one that Qiskit can use") from error
    dt = configuration.get("dt")
    target = Target(num_qubits=qubits, dt=None if dt is None else dt * _SECONDS["ns"])
    known = get_standard_gate_name_mapping()
    where = {gate["name"]: gate.get("coupling_map") for gate in configuration.get("gates") or ()}
    measured = {(qubit,): _measurement(values) for qubit, values in enumerate(properties.get("qubits") or ())}
    gates = {(gate["gate"], tuple(gate["qubits"])): _of(gate["parameters"]) for gate in properties.get("gates") or ()}
    for each in dict.fromkeys([*basis, *(configuration.get("supported_instructions") or ("measure", "reset"))]):
        if each in _CONTROL_FLOW:
            target.add_instruction(_CONTROL_FLOW[each], name=each)
        elif each == "measure" and measured:
            target.add_instruction(known[each], {key: value for key, value in measured.items() if value})
        elif each in ("reset", "delay") or (each in known and not where.get(each)):
            target.add_instruction(known[each])
        elif each in known:
            entries = {tuple(place): gates.get((each, tuple(place)), InstructionProperties()) for place in where[each]}
            target.add_instruction(known[each], {key: value for key, value in entries.items() if value})
    return target


def _of(parameters: Sequence[Mapping[str, Any]]) -> InstructionProperties | None:
    """Duration and error of a gate; None if it is out of order."""
    values = {entry["name"]: entry["value"] * _SECONDS.get(entry.get("unit", ""), 1.0) for entry in parameters}
    if values.get("operational", 1) == 0:
        return None
    return InstructionProperties(duration=values.get("gate_length"), error=values.get("gate_error"))


def _measurement(parameters: Sequence[Mapping[str, Any]]) -> InstructionProperties | None:
    values = {entry["name"]: entry["value"] * _SECONDS.get(entry.get("unit", ""), 1.0) for entry in parameters}
    if values.get("operational", 1) == 0:
        return None
    return InstructionProperties(duration=values.get("readout_length"), error=values.get("readout_error"))


def _nested(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return PrimitiveOptions({key: _nested(inner) for key, inner in value.items()})


def _decode(text: str) -> PrimitiveResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = json.loads(text, cls=RuntimeDecoder)
    if not isinstance(result, PrimitiveResult):
        raise QrmiError("The result of the task is not one of Qiskit's primitives")
    return result

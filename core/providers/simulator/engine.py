"""The engine process: checks payloads and runs them on Qiskit Aer."""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

from qiskit import QuantumCircuit, transpile
from qiskit.circuit import library
from qiskit.exceptions import QiskitError
from qiskit.primitives.containers.estimator_pub import EstimatorPub
from qiskit.primitives.containers.sampler_pub import SamplerPub
from qiskit_aer import AerError, AerSimulator

from qtandem.core.errors import QtandemError
from qtandem.core.providers.frames import Channel, confine, die_with_parent
from qtandem.core.providers.simulator import payloads
from qtandem.core.providers.simulator.payloads import Circuit, Limits, Primitive

_KNOWN = (
    *(library.HGate, library.XGate, library.YGate, library.ZGate, library.SGate, library.SdgGate),
    *(library.TGate, library.TdgGate, library.SXGate, library.SXdgGate, library.IGate, library.PhaseGate),
    *(library.RXGate, library.RYGate, library.RZGate, library.UGate, library.U1Gate, library.U2Gate),
    *(library.U3Gate, library.CXGate, library.CYGate, library.CZGate, library.ECRGate, library.SwapGate),
    *(library.CPhaseGate, library.RXXGate, library.RYYGate, library.RZZGate, library.CCXGate),
    *(library.Measure, library.Barrier, library.Reset),
)
_MEMORY: dict[str, Any] = {"max_memory_mb": 2048}


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    confine(0)
    channel = Channel.claim_stdio()
    while (request := channel.read()) is not None:
        answer, text = answer_to(request[0])
        channel.write(answer, text)
    sys.stderr.flush()


def answer_to(message: Mapping[str, Any]) -> tuple[dict[str, object], str | None]:
    try:
        options = message["options"]
        task = payloads.read(message["payload"], Limits(options["qubits"], options["max_shots"]))
        if message["op"] == "check":
            return {"ok": True}, None
        started = time.monotonic()
        text, shots = run(task, options)
    except QtandemError as error:
        return {"ok": False, "error": error.to_wire()}, None
    except (QiskitError, AerError, MemoryError, ValueError) as error:
        failed = QtandemError("task-failed", "The circuit cannot be run", cause=_words(error))
        return {"ok": False, "error": failed.to_wire()}, None
    return {"ok": True, "shots": shots, "seconds": time.monotonic() - started}, text


def run(task: Circuit | Primitive, options: Mapping[str, Any]) -> tuple[str, int]:
    """The result as JSON text, and the shots that it took."""
    if isinstance(task, Circuit):
        return _run_circuit(task, options), task.shots
    if task.program == "sampler":
        return _sample(task, options)
    return _estimate(task, options)


def _run_circuit(task: Circuit, options: Mapping[str, Any]) -> str:
    circuit, backend = _compile(task.circuit, options)
    result = _with_room(partial(_aer, circuit, task.shots, options["seed"]), backend)
    width = circuit.num_clbits
    counts = {f"{int(bits, 16):0{width}b}": int(n) for bits, n in result.data()["counts"].items()}
    return json.dumps(
        {
            "counts": dict(sorted(counts.items())),
            "shots": task.shots,
            "registers": _registers(circuit),
            "backend": options["backend"],
            "noise": bool(options["noise"]),
            "seed": options["seed"],
            "method": result.results[0].metadata.get("method"),
        }
    )


def _aer(circuit: QuantumCircuit, shots: int, seed: int | None, backend: dict[str, Any]) -> Any:
    result = AerSimulator(**backend).run(circuit, shots=shots, seed_simulator=seed).result()
    if not result.success:
        words = [str(result.status), *(str(each.status) for each in result.results)]
        raise AerError("; ".join(dict.fromkeys(words)))
    return result


def _registers(circuit: QuantumCircuit) -> list[tuple[str, int]]:
    """Names and widths of what a bit string consists of, from its left; a bit outside registers is `bit<N>`."""
    names = []
    for number in reversed(range(circuit.num_clbits)):
        found = circuit.find_bit(circuit.clbits[number]).registers
        names.append(found[0][0].name if found else f"bit{number}")
    return [(name, len(list(bits))) for name, bits in groupby(names)]


def _sample(task: Primitive, options: Mapping[str, Any]) -> tuple[str, int]:
    from qiskit_aer.primitives import SamplerV2

    def sample(pub: SamplerPub, circuit: QuantumCircuit, backend: dict[str, Any]) -> Any:
        sampler = SamplerV2(seed=_seed(task, options), options={"backend_options": backend})
        return sampler.run([(circuit, pub.parameter_values, pub.shots)]).result()

    shots = sum(pub.shots * pub.parameter_values.size for pub in task.pubs)
    return _encode(_each(task, options, sample)), shots


def _estimate(task: Primitive, options: Mapping[str, Any]) -> tuple[str, int]:
    from qiskit_aer.primitives import EstimatorV2

    def estimate(pub: EstimatorPub, circuit: QuantumCircuit, backend: dict[str, Any]) -> Any:
        observables = pub.observables
        if circuit is not pub.circuit and circuit.layout is not None:
            observables = observables.apply_layout(circuit.layout)
        run_options = {"seed_simulator": _seed(task, options)}
        estimator = EstimatorV2(options={"backend_options": backend, "run_options": run_options})
        return estimator.run([(circuit, observables, pub.parameter_values)], precision=pub.precision).result()

    return _encode(_each(task, options, estimate)), sum(_shots_for(pub.precision) for pub in task.pubs)


def _each(task: Primitive, options: Mapping[str, Any], run_pub: Callable[..., Any]) -> list[Any]:
    results: list[Any] = []
    for pub in task.pubs:
        circuit, backend = _compile(pub.circuit, options)
        results += _with_room(partial(run_pub, pub, circuit), backend)
    return results


def _with_room(attempt: Callable[[dict[str, Any]], Any], backend: dict[str, Any]) -> Any:
    """The result by the method that Aer chooses, or by tensor networks where a state vector has no room."""
    try:
        return attempt(backend)
    except (QiskitError, AerError) as error:
        if "nsufficient memory" not in str(error):
            raise
    return attempt({**backend, "method": "matrix_product_state"})


def _compile(circuit: QuantumCircuit, options: Mapping[str, Any]) -> tuple[QuantumCircuit, dict[str, Any]]:
    """The circuit as the simulator runs it, and Aer's options for it."""
    if options["noise"]:
        from qtandem.core.providers.simulator import noise

        compiled = noise.compiled(circuit, options["backend"], options["seed"])
        return compiled, _MEMORY | {"noise_model": noise.model(compiled, options["backend"])}
    if _runs_as_it_is(circuit):
        return circuit, _MEMORY
    return transpile(circuit, AerSimulator(), optimization_level=0), _MEMORY


def _runs_as_it_is(circuit: QuantumCircuit) -> bool:
    """Whether Aer knows every instruction; the first compilation of a process costs 0.6 s."""
    return all(isinstance(item.operation, _KNOWN) for item in circuit.data)


def _seed(task: Primitive, options: Mapping[str, Any]) -> int | None:
    seed: int | None = options["seed"] if task.seed is None else task.seed
    return seed


def _shots_for(precision: float) -> int:
    """Shots with which a device would reach the precision."""
    return round(1 / precision**2) if precision else 0


def _encode(results: list[Any]) -> str:
    from qiskit.primitives import PrimitiveResult
    from qiskit_ibm_runtime import RuntimeEncoder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return json.dumps(PrimitiveResult(results, metadata={"version": 2}), cls=RuntimeEncoder)


def _words(error: Exception) -> str:
    return str(error).strip("'\" \n") or type(error).__name__

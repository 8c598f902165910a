"""The engine process: checks payloads and runs them on Qiskit Aer."""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

from qiskit import QuantumCircuit, transpile
from qiskit.circuit import library
from qiskit.exceptions import QiskitError
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
# Above this Aer chooses a method that needs less, or fails the task.
_MEMORY_MB = 2048


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
    circuit, noise = _compile(task.circuit, options)
    simulator = AerSimulator(max_memory_mb=_MEMORY_MB, **noise)
    result = simulator.run(circuit, shots=task.shots, seed_simulator=options["seed"]).result()
    if not result.success:
        raise QtandemError("task-failed", "The circuit cannot be run", cause=_status(result))
    counts = {bits.replace(" ", ""): int(n) for bits, n in result.get_counts().items()}
    return json.dumps(
        {
            "counts": dict(sorted(counts.items())),
            "shots": task.shots,
            # From the left of a bit string, as Qiskit orders them.
            "registers": [[register.name, register.size] for register in reversed(task.circuit.cregs)],
            "backend": options["backend"],
            "noise": bool(options["noise"]),
            "seed": options["seed"],
            "method": result.results[0].metadata.get("method"),
        }
    )


def _sample(task: Primitive, options: Mapping[str, Any]) -> tuple[str, int]:
    from qiskit_aer.primitives import SamplerV2

    results, shots = [], 0
    for pub in task.pubs:
        circuit, noise = _compile(pub.circuit, options)
        sampler = SamplerV2(
            default_shots=task.shots,
            seed=_seed(task, options),
            options={"backend_options": {"max_memory_mb": _MEMORY_MB, **noise}},
        )
        results += list(sampler.run([(circuit, pub.parameter_values, pub.shots)]).result())
        shots += pub.shots * pub.parameter_values.size
    return _encode(results), shots


def _estimate(task: Primitive, options: Mapping[str, Any]) -> tuple[str, int]:
    from qiskit_aer.primitives import EstimatorV2

    results, shots = [], 0
    for pub in task.pubs:
        circuit, noise = _compile(pub.circuit, options)
        observables = pub.observables
        if circuit.layout is not None and circuit is not pub.circuit:
            observables = observables.apply_layout(circuit.layout)
        estimator = EstimatorV2(
            options={
                "backend_options": {"max_memory_mb": _MEMORY_MB, **noise},
                "run_options": {"seed_simulator": _seed(task, options)},
            }
        )
        pub_results = estimator.run([(circuit, observables, pub.parameter_values)], precision=pub.precision)
        results += list(pub_results.result())
        shots += _shots_for(pub.precision)
    return _encode(results), shots


def _compile(circuit: QuantumCircuit, options: Mapping[str, Any]) -> tuple[QuantumCircuit, dict[str, Any]]:
    """The circuit as the simulator runs it, and Aer's options for it."""
    if options["noise"]:
        from qtandem.core.providers.simulator import noise

        compiled = noise.compiled(circuit, options["backend"], options["seed"])
        return compiled, {"noise_model": noise.model(compiled, options["backend"])}
    if _runs_as_it_is(circuit):
        return circuit, {}
    return transpile(circuit, AerSimulator(), optimization_level=0), {}


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


def _status(result: Any) -> str:
    return "; ".join({str(result.status), *(str(each.status) for each in result.results)})


def _words(error: Exception) -> str:
    return str(error).strip("'\" \n") or type(error).__name__

"""Reads what users send, trusting nothing: circuits as OpenQASM 2 or 3, or Qiskit's primitive payloads."""

from __future__ import annotations

import base64
import binascii
import json
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qiskit import QuantumCircuit, qasm2, qasm3
from qiskit.exceptions import QiskitError
from qiskit.primitives.containers.estimator_pub import EstimatorPub
from qiskit.primitives.containers.sampler_pub import SamplerPub

from qtandem.core.errors import QtandemError

DEFAULT_SHOTS = 1024
DEFAULT_PRECISION = 1 / 64
_MAX_UNPACKED = 64 << 20
# Older QPY holds expressions as text that Qiskit's reader evaluates (CVE-2025-2000).
_OLDEST_QPY = 13
_KEYS = frozenset({"pubs", "version", "options", "supports_qiskit", "shots", "precision", "resilience_level"})
_TYPES = frozenset(
    {"QuantumCircuit", "ndarray", "Parameter", "ObservablesArray", "BindingsArray", "complex", "set", "settings"}
)
_SETTINGS = frozenset({"SparsePauliOp", "PauliList", "Pauli", "SparseObservable"})


@dataclass(frozen=True, slots=True)
class Limits:
    qubits: int
    max_shots: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """An OpenQASM task."""

    circuit: QuantumCircuit
    shots: int


@dataclass(frozen=True, slots=True)
class Primitive:
    """A sampler or estimator task. `seed` is the job's own, if it set one."""

    program: str
    pubs: list[Any]
    shots: int
    seed: int | None


def read(payload: Mapping[str, Any], limits: Limits) -> Circuit | Primitive:
    """The task in a payload; raises `bad-payload` with what is wrong and `no-provider` without the QASM 3 reader."""
    kind = payload.get("kind")
    if kind in ("qasm2", "qasm3"):
        shots = _shots(payload.get("shots", DEFAULT_SHOTS), limits)
        circuit = from_qasm(payload.get("program"), kind)
        _fits(circuit, limits)
        _measures(circuit)
        return Circuit(circuit, shots)
    return _primitive(payload, limits)


def from_qasm(program: object, kind: str | None = None) -> QuantumCircuit:
    """A circuit from its text. Files cannot be included: a circuit is content."""
    if not isinstance(program, str) or not program.strip():
        raise _bad("The program is not a text")
    kind = kind or ("qasm3" if "OPENQASM 3" in program[:4096] else "qasm2")
    try:
        if kind == "qasm3":
            return qasm3.loads(program)
        return qasm2.loads(program, include_path=(), custom_instructions=qasm2.LEGACY_CUSTOM_INSTRUCTIONS)
    except ImportError as error:
        raise QtandemError(
            "no-provider", "OpenQASM 3 needs qiskit-qasm3-import", remedy="pip install 'qtandem[simulator]'"
        ) from error
    except Exception as error:
        # Parsers of three packages fail in as many ways, all of them for the text that the user sent.
        words = str(error).strip("'\"") or type(error).__name__
        raise _bad(f"This is not OpenQASM {kind[-1]} that the simulator can read", words) from error


def _primitive(payload: Mapping[str, Any], limits: Limits) -> Primitive:
    program = payload.get("program_id")
    if program not in ("sampler", "estimator"):
        raise _bad(f"The simulator runs the programs sampler and estimator, not {program!r}")
    content = _decode(payload.get("input"))
    options = content.get("options") or {}
    if not isinstance(options, dict):
        raise _bad("options is not an object")
    shots = _shots(content.get("shots") or options.get("default_shots") or DEFAULT_SHOTS, limits)
    pubs = content.get("pubs")
    if content.get("version", 2) != 2 or not isinstance(pubs, list) or not pubs:
        raise _bad('The input is not {"pubs": [...], "version": 2} with at least one pub')
    if program == "sampler":
        read_pubs: list[Any] = [_sampler_pub(pub, shots, limits) for pub in pubs]
    else:
        precision = content.get("precision") or options.get("default_precision") or DEFAULT_PRECISION
        read_pubs = [_estimator_pub(pub, precision, limits) for pub in pubs]
    return Primitive(program, read_pubs, shots, _own_seed(options))


def _sampler_pub(pub: Any, shots: int, limits: Limits) -> SamplerPub:
    try:
        read_pub = SamplerPub.coerce(_with_circuit(pub), shots)
    except (QiskitError, ValueError, TypeError) as error:
        raise _bad("A pub of the sampler cannot be read", str(error)) from error
    _fits(read_pub.circuit, limits)
    _measures(read_pub.circuit)
    _shots(read_pub.shots, limits)
    return read_pub


def _estimator_pub(pub: Any, precision: float, limits: Limits) -> EstimatorPub:
    try:
        read_pub = EstimatorPub.coerce(_with_circuit(pub), precision)
    except (QiskitError, ValueError, TypeError) as error:
        raise _bad("A pub of the estimator cannot be read", str(error)) from error
    _fits(read_pub.circuit, limits)
    return read_pub


def _with_circuit(pub: Any) -> Any:
    """The pub as a tuple whose circuit is one, also where the user sent OpenQASM."""
    if isinstance(pub, QuantumCircuit):
        return pub
    parts = [pub] if isinstance(pub, str) else pub
    if not isinstance(parts, list | tuple) or not parts:
        raise TypeError("a pub is a list that begins with a circuit")
    if isinstance(parts[0], QuantumCircuit):
        return parts
    if isinstance(parts[0], str):
        return (from_qasm(parts[0]), *parts[1:])
    raise TypeError("a circuit is a serialized QuantumCircuit or OpenQASM")


def _decode(content: object) -> dict[str, Any]:
    from qiskit_ibm_runtime import RuntimeDecoder

    text = content if isinstance(content, str) else json.dumps(content)
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.keys() - _KEYS:
            raise _bad(f"The input is not an object with the keys {', '.join(sorted(_KEYS))}")
        for value in _typed(plain):
            _harmless(value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            decoded: dict[str, Any] = json.loads(text, cls=RuntimeDecoder)
    except QtandemError:
        raise
    except Exception as error:
        # Decoders of many types fail in as many ways, all of them for the content that the user sent.
        raise _bad(
            "The input is not what Qiskit's RuntimeEncoder writes", f"{type(error).__name__}: {error}"
        ) from error
    return decoded


def _typed(node: object) -> Iterator[dict[str, Any]]:
    """Every object in plain JSON that asks to be decoded to something."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            if "__type__" in here:
                yield here
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)


def _harmless(value: Mapping[str, Any]) -> None:
    """Let nothing be decoded that could load a module of the sender's choice or evaluate text."""
    kind, content = value["__type__"], value.get("__value__")
    if kind not in _TYPES or (kind == "settings" and value.get("__class__") not in _SETTINGS):
        raise _bad(f"The simulator does not decode {value.get('__class__', kind)!r}")
    if kind == "QuantumCircuit":
        circuit = _unpack(content)
        if circuit[:6] != b"QISKIT" or len(circuit) < 7 or circuit[6] < _OLDEST_QPY:
            raise _bad(
                f"The circuit is not QPY version {_OLDEST_QPY} or later", "Serialize it with Qiskit 1.3 or later"
            )
    if kind == "ndarray" and isinstance(content, str):
        _unpack(content)


def _unpack(content: object) -> bytes:
    """Decompress within bounds, so that a small text cannot become a huge circuit."""
    if not isinstance(content, str):
        raise _bad("A serialized value is not a text")
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(content, validate=True), _MAX_UNPACKED)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise _bad("A serialized value is damaged", str(error)) from error
    if stream.unconsumed_tail:
        raise _bad(f"A serialized value is larger than {_MAX_UNPACKED >> 20} MiB")
    return data


def _own_seed(options: Mapping[str, Any]) -> int | None:
    simulator = options.get("simulator")
    seed = simulator.get("seed_simulator") if isinstance(simulator, dict) else None
    return seed if isinstance(seed, int) else None


def _shots(value: object, limits: Limits) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad(f"shots = {value!r} is not a whole number from 1 up")
    if value > limits.max_shots:
        raise _bad(f"{value} shots are more than the {limits.max_shots} that the device runs at once")
    return value


def _fits(circuit: QuantumCircuit, limits: Limits) -> None:
    if circuit.num_qubits > limits.qubits:
        raise _bad(f"The circuit has {circuit.num_qubits} qubits, the device {limits.qubits}")


def _measures(circuit: QuantumCircuit) -> None:
    if circuit.num_clbits == 0:
        raise _bad("The circuit measures nothing", "It has no classical bits")


def _bad(message: str, cause: str | None = None) -> QtandemError:
    return QtandemError("bad-payload", message, cause=cause)

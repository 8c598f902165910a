"""Compiles circuits to a fake backend and takes its errors, for the qubits of one circuit only.

The noise model of all 156 qubits of a Heron takes 3 s to build and 4 s to hand to Aer; that of five qubits 50 ms.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from qiskit import QuantumCircuit
from qiskit.transpiler import Target, generate_preset_pass_manager
from qiskit_aer.noise import NoiseModel
from qiskit_aer.noise.device.models import basic_device_gate_errors, basic_device_readout_errors
from qiskit_ibm_runtime import fake_provider

from qtandem.core.errors import QtandemError


@cache
def target(backend: str) -> Target:
    """The target of a fake backend by its name; raises `bad-config` for one without noise data."""
    wanted = backend.replace("_", "")
    for name in dir(fake_provider):
        # FakeFez, FakeMontrealV2: the class names differ from the backends' by case and a generation.
        if name.startswith("Fake") and name.lower().removesuffix("v2") == wanted:
            return getattr(fake_provider, name)().target
    raise QtandemError("bad-config", f"There is no noise data for the backend {backend!r}")


def compiled(circuit: QuantumCircuit, backend: str, seed: int | None) -> QuantumCircuit:
    """The circuit on the backend's qubits and gates; one that is already there stays as it is."""
    if _native(circuit, target(backend)):
        return circuit
    manager = generate_preset_pass_manager(
        optimization_level=1, target=target(backend), seed_transpiler=0 if seed is None else seed
    )
    return manager.run(circuit)


def model(circuit: QuantumCircuit, backend: str) -> NoiseModel:
    """Gate and readout errors of the qubits that a compiled circuit uses."""
    part = _part(target(backend), _active(circuit))
    noise = NoiseModel(basis_gates=list(part.operation_names))
    for qubits, error in basic_device_readout_errors(target=part):
        noise.add_readout_error(error, qubits)
    for name, qubits, error in basic_device_gate_errors(target=part):
        noise.add_quantum_error(error, name, qubits)
    return noise


def _part(whole: Target, qubits: set[int]) -> Target:
    part = Target(num_qubits=whole.num_qubits, qubit_properties=whole.qubit_properties, dt=whole.dt)
    for name in whole.operation_names:
        entries: dict[Any, Any] = whole[name] or {}
        kept = {where: entry for where, entry in entries.items() if where and set(where) <= qubits}
        if kept:
            part.add_instruction(whole.operation_from_name(name), kept)
    return part


def _active(circuit: QuantumCircuit) -> set[int]:
    used = (item.qubits for item in circuit.data if item.operation.name != "barrier")
    return {circuit.find_bit(qubit).index for qubits in used for qubit in qubits}


def _native(circuit: QuantumCircuit, whole: Target) -> bool:
    return circuit.num_qubits == whole.num_qubits and all(
        item.operation.name == "barrier"
        or whole.instruction_supported(
            item.operation.name, tuple(circuit.find_bit(qubit).index for qubit in item.qubits)
        )
        for item in circuit.data
    )

#!/usr/bin/env python3
#SBATCH --job-name=estimator
#SBATCH --qpu=ibm_fez
#SBATCH --time=10
"""Ordinary Qiskit: the estimator, one circuit with many parameters. `sbatch estimator.py` submits it."""

import numpy as np
from qiskit import QuantumCircuit, generate_preset_pass_manager
from qiskit.circuit import Parameter
from qiskit.quantum_info import SparsePauliOp

# from qiskit_ibm_runtime import EstimatorV2, QiskitRuntimeService
from qtandem.core.qiskit import EstimatorV2, QiskitRuntimeService

backend = QiskitRuntimeService().least_busy()
circuit = QuantumCircuit(2)
circuit.ry(Parameter("angle"), 0)
circuit.cx(0, 1)
circuit = generate_preset_pass_manager(1, backend=backend).run(circuit)
observable = SparsePauliOp(["ZI", "XX"]).apply_layout(circuit.layout)

angles = np.linspace(0, np.pi, 5)
values = EstimatorV2(mode=backend).run([(circuit, observable, angles)]).result()[0].data.evs
for angle, value in zip(angles, values, strict=True):
    print(f"{angle:.3f} {value:+.3f}")

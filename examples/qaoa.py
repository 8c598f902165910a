#!/usr/bin/env python3
#SBATCH --job-name=qaoa
#SBATCH --qpu=any:qubits=5
#SBATCH --array=0-15
#SBATCH --time=10
"""QAOA for the largest cut of a ring of five, fanned out: each element of the array tries one pair of angles.

sbatch qaoa.py                                  # then: sort -k2 -n slurm-*.out | tail -1
Each element is a job with a lease of its own, and starts as slots come free.
"""

import os

import numpy as np
from qiskit import QuantumCircuit, generate_preset_pass_manager

from qtandem.core.qiskit import QtandemBackend, SamplerV2

EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
SIDE = 4

element = int(os.environ.get("SLURM_ARRAY_TASK_ID", "3"))
gamma, beta = np.pi * ((element // SIDE) + 1) / 5, np.pi / 2 * ((element % SIDE) + 1) / 5

circuit = QuantumCircuit(5)
circuit.h(range(5))
for a, b in EDGES:
    circuit.rzz(gamma, a, b)
circuit.rx(2 * beta, range(5))
circuit.measure_all()

backend = QtandemBackend()
circuit = generate_preset_pass_manager(1, backend=backend).run(circuit)
counts = SamplerV2(backend).run([circuit], shots=1000).result()[0].data.meas.get_counts()
cut = sum(number * sum(bits[a] != bits[b] for a, b in EDGES) for bits, number in counts.items()) / 1000
print(f"{element} {cut:.3f} gamma={gamma:.3f} beta={beta:.3f}")

#!/usr/bin/env python3
#SBATCH --job-name=sampler
#SBATCH --qpu=ibm_fez
#SBATCH --time=10
"""Ordinary Qiskit: the sampler. Only the import is ours; `sbatch sampler.py` submits it."""

from qiskit import QuantumCircuit, generate_preset_pass_manager

# from qiskit_ibm_runtime import QiskitRuntimeService, SamplerV2
from qtandem.core.qiskit import QiskitRuntimeService, SamplerV2

backend = QiskitRuntimeService().least_busy()
circuit = QuantumCircuit(3)
circuit.h(0)
circuit.cx(0, 1)
circuit.cx(1, 2)
circuit.measure_all()
circuit = generate_preset_pass_manager(1, backend=backend).run(circuit)

job = SamplerV2(mode=backend).run([circuit], shots=1000)
print(backend.name, job.result()[0].data.meas.get_counts())

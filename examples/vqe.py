#!/usr/bin/env python3
#SBATCH --job-name=vqe
#SBATCH --qpu=ibm_fez
#SBATCH --time=60
"""The ground state of hydrogen by VQE: one lease, and as many tasks as the optimiser wants.

sbatch vqe.py
"""

from qiskit import generate_preset_pass_manager
from qiskit.circuit.library import n_local
from qiskit.quantum_info import SparsePauliOp
from scipy.optimize import minimize

from qtandem.core.qiskit import EstimatorV2, QtandemBackend

# H2 at 0.735 angstrom on two qubits; the exact energy is -1.857 hartree.
HAMILTONIAN = SparsePauliOp(
    ["II", "IZ", "ZI", "ZZ", "XX"], [-1.052373245, 0.397937424, -0.397937424, -0.011280104, 0.180931199]
)

backend = QtandemBackend()
ansatz = n_local(2, "ry", "cz", reps=1)
circuit = generate_preset_pass_manager(1, backend=backend).run(ansatz)
observable = HAMILTONIAN.apply_layout(circuit.layout)
estimator = EstimatorV2(backend, default_precision=0.01)
tasks = []


def energy(parameters: list[float]) -> float:
    task = estimator.run([(circuit, observable, parameters)])
    tasks.append(task.job_id())
    return float(task.result()[0].data.evs)


found = minimize(energy, [0.1] * circuit.num_parameters, method="COBYLA", options={"maxiter": 40})
print(f"{found.fun:.3f} hartree after {len(tasks)} tasks")

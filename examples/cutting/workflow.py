#!/usr/bin/env python3
"""Circuit cutting in three steps: `workflow.py cut DIR [CUTS]`, `workflow.py run DIR ELEMENT`, `workflow.py join DIR`.

A circuit of four qubits becomes two of two: each of the CUTS gates between them is replaced by six variants, so
there are 6^CUTS elements, 216 for three. `run` alone needs a QPU. Needs qiskit-addon-cutting.
"""

import json
import sys
from pathlib import Path

import numpy as np
from qiskit import QuantumCircuit, qpy
from qiskit.primitives import PrimitiveResult, StatevectorEstimator
from qiskit.quantum_info import PauliList, SparsePauliOp
from qiskit_addon_cutting import generate_cutting_experiments, partition_problem, reconstruct_expectation_values
from qiskit_addon_cutting.qpd import WeightType
from qiskit_ibm_runtime import RuntimeDecoder, RuntimeEncoder

OBSERVABLES = PauliList(["ZZII", "IZZI", "IIZZ"])
PARTS = "AABB"


def circuit(cuts: int) -> QuantumCircuit:
    whole = QuantumCircuit(4)
    for layer in range(cuts):
        for qubit in range(4):
            whole.ry(0.4 + 0.1 * qubit + 0.2 * layer, qubit)
        whole.cx([0, 1, 2], [1, 2, 3])
    return whole


def cut(folder: Path, cuts: int) -> None:
    """Write the experiments of both parts, and what each counts."""
    problem = partition_problem(circuit(cuts), PARTS, OBSERVABLES)
    experiments, weights = generate_cutting_experiments(problem.subcircuits, problem.subobservables, np.inf)
    folder.mkdir(parents=True, exist_ok=True)
    for part, circuits in experiments.items():
        with (folder / f"{part}.qpy").open("wb") as file:
            qpy.dump(circuits, file)
    plan = {"cuts": cuts, "weights": [[value, kind.name] for value, kind in weights]}
    (folder / "plan.json").write_text(json.dumps(plan))
    print(len(weights))


def run(folder: Path, element: int) -> None:
    """One task with the experiment of each part."""
    from qtandem.core.qiskit import SamplerV2

    pair = []
    for part in sorted(set(PARTS)):
        with (folder / f"{part}.qpy").open("rb") as file:
            pair.append(qpy.load(file)[element])
    result = SamplerV2().run(pair, shots=2000).result()
    (folder / f"{element}.json").write_text(json.dumps(result, cls=RuntimeEncoder))


def join(folder: Path) -> None:
    """Put the expectation values together, and beside them the exact ones."""
    plan = json.loads((folder / "plan.json").read_text())
    weights = [(value, WeightType[kind]) for value, kind in plan["weights"]]
    found = [json.loads((folder / f"{n}.json").read_text(), cls=RuntimeDecoder) for n in range(len(weights))]
    whole = circuit(plan["cuts"])
    problem = partition_problem(whole, PARTS, OBSERVABLES)
    results = {part: PrimitiveResult([each[n] for each in found]) for n, part in enumerate(sorted(set(PARTS)))}
    values = reconstruct_expectation_values(results, weights, problem.subobservables)
    exact = StatevectorEstimator().run([(whole, [SparsePauliOp(each) for each in OBSERVABLES])]).result()[0].data.evs
    for observable, value, true in zip(OBSERVABLES, values, exact, strict=True):
        print(f"{observable} {value:+.3f} exact {true:+.3f}")


if __name__ == "__main__":
    verb, folder, *rest = sys.argv[1:]
    if verb == "cut":
        cut(Path(folder), int(rest[0]) if rest else 3)
    elif verb == "run":
        run(Path(folder), int(rest[0]))
    else:
        join(Path(folder))

#!/usr/bin/env python3
"""One job, two QPUs, a task on each at the same time.

sbatch --qpu=ibm_fez+iqm_garnet --wrap 'python two_qpus.py'
"""

from concurrent.futures import ThreadPoolExecutor

from qtandem.core.client import Payload, QuantumResource, counts, get_job_qpu_resources_and_types

GHZ = """OPENQASM 3.0;
include "stdgates.inc";
qubit[3] q;
bit[3] c;
h q[0];
cx q[0], q[1];
cx q[1], q[2];
c = measure q;
"""


def ghz(name: str) -> dict[str, int]:
    return counts(QuantumResource(name).run(Payload.QASM3(GHZ, shots=500)).value)


names, _ = get_job_qpu_resources_and_types()
with ThreadPoolExecutor(len(names)) as pool:
    for name, found in zip(names, pool.map(ghz, names), strict=True):
        print(name, found)

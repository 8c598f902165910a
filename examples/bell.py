#!/usr/bin/env python3
"""A Bell state on the job's QPU.

sbatch --qpu=ibm_fez --wrap 'python bell.py'
"""

from qtandem.core.client import Payload, acquire, counts

BELL = """OPENQASM 3.0;
include "stdgates.inc";
qubit[2] q;
bit[2] c;
h q[0];
cx q[0], q[1];
c = measure q;
"""

with acquire() as qpu:
    result = qpu.run(Payload.QASM3(BELL, shots=1000))
    print(qpu.resource_id(), counts(result.value))

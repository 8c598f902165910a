#!/usr/bin/env python3
"""A program written for the `qrmi` package: only its import is another.

sbatch --qpu=ibm_fez --wrap 'python qrmi_verbs.py'
"""

# from qrmi import Payload, QRMIService, TaskStatus
from qtandem.core.client import Payload, QRMIService, TaskStatus

BELL = 'OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; bit[2] c; h q[0]; cx q[0], q[1]; c = measure q;'
SAMPLER_INPUT = '{"pubs": [["%s", null, 1000]], "version": 2}' % BELL.replace('"', '\\"')  # noqa: UP031

resources = QRMIService().resources()
if not resources:
    raise SystemExit("none of this job's QPUs is online")
qpu = resources[0]
token = qpu.acquire()
print(qpu.resource_id(), qpu.resource_type(), qpu.metadata())

task = qpu.task_start(Payload.QiskitPrimitive(input=SAMPLER_INPUT, program_id="sampler"))
# QRMI's programs ask again and again; task_wait(task) waits without asking.
while qpu.task_status(task) in (TaskStatus.Queued, TaskStatus.Running):
    qpu.task_wait(task, timeout=10)
print(qpu.task_status(task))
print(qpu.task_result(task).value)
qpu.release(token)

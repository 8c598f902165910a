#!/usr/bin/env python3
#SBATCH --job-name=braket
#SBATCH --qpu=iqm_garnet
#SBATCH --time=10
"""Ordinary Amazon Braket code. Only the import is ours; `sbatch on_braket.py` submits it."""

from braket.circuits import Circuit

# from braket.aws import AwsDevice
from qtandem.core.braket import AwsDevice

device = AwsDevice()
batch = device.run_batch([Circuit().h(0).cnot(0, 1), Circuit().h(0).cnot(0, 1).cnot(1, 2)], shots=1000)
for result in batch.results():
    print(device.name, dict(result.measurement_counts))

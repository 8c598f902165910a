#!/bin/sh
#SBATCH --job-name=bell
#SBATCH --qpu=ibm_fez
#SBATCH --time=10
# The same without Python: the command line runs a circuit on the job's lease.
qtandem task run bell.qasm --shots 1000 --json

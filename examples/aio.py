#!/usr/bin/env python3
#SBATCH --job-name=aio
#SBATCH --qpu=ibm_fez:2
#SBATCH --time=10
"""Ten tasks on two slots from one asyncio program. `sbatch aio.py` submits it."""

import asyncio

from qtandem.core.client import Payload, counts
from qtandem.core.client.aio import acquire


def flip(angle: float) -> str:
    return f'OPENQASM 3.0; include "stdgates.inc"; qubit q; bit c; ry({angle}) q; c = measure q;'


async def main() -> None:
    angles = [0.3 * step for step in range(10)]
    async with acquire() as qpu:
        results = await asyncio.gather(*(qpu.run(Payload.QASM3(flip(angle), shots=200)) for angle in angles))
    for angle, result in zip(angles, results, strict=True):
        print(f"{angle:.1f} {counts(result.value).get('1', 0) / 200:.3f}")


asyncio.run(main())

"""What the contract suite needs of each provider: a resource to drive, and a witness at the vendor's side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.providers.base import PROVIDERS, ProviderSpec
from qtandem.core.providers.pool import Workers
from qtandem.core.providers.simulator.device import SimulatedDevice

BELL = """OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; bit[2] c; h q[0]; cx q[0], q[1]; c = measure q;"""


@dataclass
class Rig:
    """One provider under test.

    `log` is the vendor's record of everything that changed there. `block` makes the vendor not answer;
    `slow` makes tasks take long. `payload` is a task that succeeds.
    """

    spec: ProviderSpec
    log: Callable[[], list[dict[str, Any]]]
    block: Callable[[bool], None]
    slow: Callable[[], None]
    payload: Mapping[str, Any]
    bad_payloads: list[Mapping[str, Any]] = field(default_factory=list)


def simulator(folder: Path) -> Rig:
    device = SimulatedDevice(folder)
    return Rig(
        spec=ProviderSpec("sim", "simulator", {"state_dir": str(folder), "qubits": "5", "max_shots": "5000"}, 3),
        log=lambda: [row for row in device.log() if row["event"] != "knobs"],
        block=lambda on: device.set(fault="hang" if on else ""),
        slow=lambda: device.set(task_s=600),
        payload={"kind": "qasm3", "program": BELL, "shots": 100},
        bad_payloads=[
            {"kind": "qasm3", "program": BELL, "shots": 5001},
            {"kind": "qasm2", "program": "OPENQASM 2.0; qreg q[6]; creg c[1]; measure q[0] -> c[0];"},
        ],
    )


RIGS = {"simulator": simulator}


@pytest.fixture(params=sorted(PROVIDERS))
def rig(request, tmp_path):
    assert request.param in RIGS, (
        f"{request.param} has no rig, so nothing proves that it keeps the contract"
    )
    return RIGS[request.param](tmp_path / "vendor")


@pytest.fixture
async def workers(rig):
    made = Workers({rig.spec.resource: rig.spec}, deadline_s=30)
    yield made
    await made.close()

"""What the contract suite needs of each provider: a resource to drive, and a witness at the vendor's side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.providers.base import PROVIDERS, ProviderSpec
from qtandem.core.providers.pool import Workers
from qtandem.core.providers.simulator.device import SimulatedDevice
from tests.fakes.nursery import Nursery
from tests.fakes.vendors import accounts
from tests.fakes.vendors.accounts import Account
from tests.fakes.vendors.braket import MAX_SHOTS as BRAKET_SHOTS
from tests.fakes.vendors.ibm import MAX_SHOTS
from tests.fakes.vendors.kit import FakeServer
from tests.fakes.vendors.oqtopus import job

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
    servers: tuple[FakeServer, ...] = ()
    close: Callable[[], None] = lambda: None


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


def _blocker(*servers: FakeServer) -> Callable[[bool], None]:
    return lambda on: [server.fault("hang") if on else server.heal() for server in servers]


def _rig(account: Account, payload: Mapping[str, Any], *bad: Mapping[str, Any], **more: str) -> Rig:
    fake = account.fake
    return Rig(
        spec=ProviderSpec(account.device, account.type, account.settings | more, 3),
        log=lambda: fake.log,
        block=_blocker(*account.servers),
        slow=lambda: setattr(fake, "task_s", 600),
        payload=payload,
        bad_payloads=[payload | each for each in bad],
        servers=account.servers,
        close=account.close,
    )


def _ibm(account: Account) -> Rig:
    primitive = {"kind": "qiskit-primitive", "program_id": "sampler"}
    return _rig(
        account,
        {"kind": "qasm3", "program": BELL, "shots": 100},
        {"shots": MAX_SHOTS + 1},
        {"shots": 0},
        primitive | {"input": "{"},
        primitive | {"input": {"pubs": []}},
        primitive | {"program_id": "fortune-teller", "input": {"pubs": [[BELL]]}},
    )


def ibm_compute(folder: Path) -> Rig:
    return _ibm(accounts.ibm_compute())


def ibm_runtime(folder: Path) -> Rig:
    return _ibm(accounts.ibm_runtime())


def ibm_system(folder: Path) -> Rig:
    return _ibm(accounts.ibm_system())


def braket(folder: Path) -> Rig:
    action = {"kind": "braket-action", "shots": 1}
    return _rig(
        accounts.braket(),
        {"kind": "qasm3", "program": "OPENQASM 3.0; bit[1] c; h $0; c[0] = measure $0;", "shots": 100},
        {"program": "OPENQASM 3.0;", "shots": BRAKET_SHOTS + 1},
        {"program": "OPENQASM 3.0; garbled", "shots": 1},
        action | {"action": {"braketSchemaHeader": {"name": "not.of.braket", "version": "1"}}},
        action | {"action": "{"},
    )


def iqm_server(folder: Path) -> Rig:
    payload = {"kind": "iqm-server", "iqmjson": '{"circuits": [], "shots": 10}', "job_type": "circuit"}
    bad = [{"iqmjson": "{"}, {"iqmjson": "{}"}, {"job_type": "fortune"}, {"tag": "x" * 51}, {"use_timeslot": "yes"}]
    return _rig(accounts.iqm_server(), payload, *bad, state_dir=str(folder))


def alice_bob_felis(folder: Path) -> Rig:
    payload = {"kind": "alice-bob-felis", "human_qir": "define void @main() {}", "input_params": "{}"}
    bad = [{"human_qir": ""}, {"input_params": "{"}, {"input_params": "[]"}]
    return _rig(accounts.alice_bob_felis(), payload, *bad, state_dir=str(folder))


_SEQUENCE = {"kind": "pasqal-cloud", "sequence": '{"version": "1"}', "job_runs": 10}
_BAD_SEQUENCES = (
    {"sequence": "{"},
    {"sequence": "{}"},
    {"job_runs": 0},
    {"sequence": '{"setup": 1, "hamiltonian": 2}'},
)


def pasqal_cloud(folder: Path) -> Rig:
    return _rig(accounts.pasqal_cloud(), _SEQUENCE, *_BAD_SEQUENCES, state_dir=str(folder))


def pasqal_local(folder: Path) -> Rig:
    return _rig(accounts.pasqal_local(), _SEQUENCE, *_BAD_SEQUENCES, state_dir=str(folder))


def oqtopus_cloud(folder: Path) -> Rig:
    bad = [{"job_spec": "{"}, {"job_spec": "[]"}, {"job_spec": "{}"}, {"job_spec": job("garbled")}]
    other = {"job_spec": {"program": ["x"], "device_id": "another"}}
    return _rig(accounts.oqtopus_cloud(), {"kind": "oqtopus", "job_spec": job()}, *bad, other, state_dir=str(folder))


RIGS = {
    "oqtopus": oqtopus_cloud,
    "iqm-server": iqm_server,
    "alice-bob-felis": alice_bob_felis,
    "pasqal-cloud": pasqal_cloud,
    "pasqal-local": pasqal_local,
    "braket": braket,
    "simulator": simulator,
    "ibm-quantum-compute-service": ibm_compute,
    "qiskit-runtime-service": ibm_runtime,
    "ibm-quantum-system": ibm_system,
}


@pytest.fixture(params=sorted(PROVIDERS))
def rig(request, tmp_path):
    assert request.param in RIGS, f"{request.param} has no rig, so nothing proves that it keeps the contract"
    made = RIGS[request.param](tmp_path / "vendor")
    yield made
    made.close()


@pytest.fixture(scope="session")
def nurseries():
    made = {}

    def of(type_):
        if type_ not in made:
            made[type_] = Nursery(type_)
        return made[type_]

    yield of
    for nursery in made.values():
        nursery.close()


@pytest.fixture
async def workers(rig, nurseries):
    made = Workers({rig.spec.resource: rig.spec}, deadline_s=30, launch=nurseries(rig.spec.type).launch)
    yield made
    await made.close()

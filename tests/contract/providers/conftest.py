"""What the contract suite needs of each provider: a resource to drive, and a witness at the vendor's side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.providers.base import PROVIDERS, ProviderSpec
from qtandem.core.providers.pool import Workers
from qtandem.core.providers.simulator.device import SimulatedDevice
from tests.fakes.vendors.braket import ACCESS_KEY, ARN, SECRET_KEY, FakeBraket
from tests.fakes.vendors.braket import MAX_SHOTS as BRAKET_SHOTS
from tests.fakes.vendors.felis import APIKEY as FELIS_KEY
from tests.fakes.vendors.felis import DEVICE as FELIS_DEVICE
from tests.fakes.vendors.felis import FakeFelis
from tests.fakes.vendors.ibm import APIKEY, BACKEND, CRN, MAX_SHOTS, FakeCompute, FakeSystem
from tests.fakes.vendors.iqm import TOKEN as IQM_TOKEN
from tests.fakes.vendors.iqm import FakeIqm
from tests.fakes.vendors.kit import FakeServer
from tests.fakes.vendors.pasqal import CLIENT, DEVICE, PROJECT, SECRET, FakePasqal, FakeWarden, munge_library
from tests.fakes.vendors.s3 import FakeS3

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


def _ibm_payloads() -> list[Mapping[str, Any]]:
    return [
        {"kind": "qasm3", "program": BELL, "shots": MAX_SHOTS + 1},
        {"kind": "qasm3", "program": BELL, "shots": 0},
        {"kind": "qiskit-primitive", "program_id": "sampler", "input": "{"},
        {"kind": "qiskit-primitive", "program_id": "sampler", "input": {"pubs": []}},
        {"kind": "qiskit-primitive", "program_id": "fortune-teller", "input": {"pubs": [[BELL]]}},
    ]


def ibm_compute(folder: Path, type_: str = "ibm-quantum-compute-service", prefix: str = "QRMI_IBM_QCS_") -> Rig:
    fake = FakeCompute()
    account = {"ENDPOINT": fake.endpoint, "IAM_ENDPOINT": fake.url, "IAM_APIKEY": APIKEY, "SERVICE_CRN": CRN}
    return Rig(
        spec=ProviderSpec(BACKEND, type_, {prefix + key: value for key, value in account.items()}, 3),
        log=lambda: fake.log,
        block=_blocker(fake),
        slow=lambda: setattr(fake, "task_s", 600),
        payload={"kind": "qasm3", "program": BELL, "shots": 100},
        bad_payloads=_ibm_payloads(),
        close=fake.close,
    )


def ibm_runtime(folder: Path) -> Rig:
    return ibm_compute(folder, "qiskit-runtime-service", "QRMI_IBM_QRS_")


def ibm_system(folder: Path) -> Rig:
    fake, store = FakeSystem(), FakeS3()
    settings = {
        "ENDPOINT": fake.url,
        "IAM_ENDPOINT": fake.url,
        "IAM_APIKEY": APIKEY,
        "SERVICE_CRN": CRN,
        "S3_ENDPOINT": store.url,
        "S3_BUCKET": store.bucket,
        "S3_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": store.access_key,
        "AWS_SECRET_ACCESS_KEY": "secret-0123456789",
    }
    return Rig(
        spec=ProviderSpec(
            BACKEND, "ibm-quantum-system", {f"QRMI_IBM_QS_{key}": value for key, value in settings.items()}, 3
        ),
        log=lambda: fake.log,
        block=_blocker(fake, store),
        slow=lambda: setattr(fake, "task_s", 600),
        payload={"kind": "qasm3", "program": BELL, "shots": 100},
        bad_payloads=_ibm_payloads(),
        close=lambda: [each.close() for each in (fake, store)] and None,
    )


def braket(folder: Path) -> Rig:
    fake = FakeBraket()
    settings = {
        "device": ARN,
        "endpoint": fake.url,
        "s3_endpoint": fake.store.url,
        "s3_bucket": fake.store.bucket,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
    }
    action = {"braketSchemaHeader": {"name": "not.of.braket", "version": "1"}}
    return Rig(
        spec=ProviderSpec("braket_fake", "braket", settings, 3),
        log=lambda: fake.log,
        block=_blocker(fake, fake.store),
        slow=lambda: setattr(fake, "task_s", 600),
        payload={"kind": "qasm3", "program": "OPENQASM 3.0; bit[1] c; h $0; c[0] = measure $0;", "shots": 100},
        bad_payloads=[
            {"kind": "qasm3", "program": "OPENQASM 3.0;", "shots": BRAKET_SHOTS + 1},
            {"kind": "qasm3", "program": "OPENQASM 3.0; garbled", "shots": 1},
            {"kind": "braket-action", "action": action, "shots": 1},
            {"kind": "braket-action", "action": "{", "shots": 1},
        ],
        close=fake.close,
    )


def _qrmi(fake: Any, spec: ProviderSpec, payload: Mapping[str, Any], *bad: Mapping[str, Any]) -> Rig:
    return Rig(
        spec=spec,
        log=lambda: fake.log,
        block=_blocker(fake),
        slow=lambda: setattr(fake, "task_s", 600),
        payload=payload,
        bad_payloads=[payload | each for each in bad],
        close=fake.close,
    )


def iqm_server(folder: Path) -> Rig:
    fake = FakeIqm()
    settings = {"QRMI_IQM_ISA_ENDPOINT": fake.url, "QRMI_IQM_ISA_TOKEN": IQM_TOKEN, "state_dir": str(folder)}
    payload = {"kind": "iqm-server", "iqmjson": '{"circuits": [], "shots": 10}', "job_type": "circuit"}
    bad = [{"iqmjson": "{"}, {"iqmjson": "{}"}, {"job_type": "fortune"}, {"tag": "x" * 51}, {"use_timeslot": "yes"}]
    return _qrmi(fake, ProviderSpec("garnet_mock", "iqm-server", settings, 3), payload, *bad)


def alice_bob_felis(folder: Path) -> Rig:
    fake = FakeFelis()
    settings = {
        "QRMI_AB_FELIS_API_KEY": FELIS_KEY,
        "QRMI_AB_FELIS_BASE_ENDPOINT": fake.url,
        "state_dir": str(folder),
    }
    payload = {"kind": "alice-bob-felis", "human_qir": "define void @main() {}", "input_params": "{}"}
    bad = [{"human_qir": ""}, {"input_params": "{"}, {"input_params": "[]"}]
    return _qrmi(fake, ProviderSpec(FELIS_DEVICE, "alice-bob-felis", settings, 3), payload, *bad)


_SEQUENCE = {"kind": "pasqal-cloud", "sequence": '{"version": "1"}', "job_runs": 10}
_BAD_SEQUENCES = (
    {"sequence": "{"},
    {"sequence": "{}"},
    {"job_runs": 0},
    {"sequence": '{"setup": 1, "hamiltonian": 2}'},
)


def pasqal_cloud(folder: Path) -> Rig:
    fake = FakePasqal()
    settings = {
        "QRMI_PASQAL_CLOUD_PROJECT_ID": PROJECT,
        "QRMI_PASQAL_CLOUD_CLIENT_ID": CLIENT,
        "QRMI_PASQAL_CLOUD_CLIENT_SECRET": SECRET,
        "QRMI_PASQAL_CLOUD_AUTH_ENDPOINT": f"{fake.url}/oauth/token",
        "QRMI_PASQAL_CLOUD_BASE_URL": fake.url,
        "state_dir": str(folder),
    }
    return _qrmi(fake, ProviderSpec(DEVICE, "pasqal-cloud", settings, 3), _SEQUENCE, *_BAD_SEQUENCES)


def pasqal_local(folder: Path) -> Rig:
    fake = FakeWarden()
    settings = {"QRMI_WARDEN_URL": fake.url, "munge_library": munge_library(), "state_dir": str(folder)}
    return _qrmi(fake, ProviderSpec("fresnel_here", "pasqal-local", settings, 3), _SEQUENCE, *_BAD_SEQUENCES)


RIGS = {
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


@pytest.fixture
async def workers(rig):
    made = Workers({rig.spec.resource: rig.spec}, deadline_s=30)
    yield made
    await made.close()

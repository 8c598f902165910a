"""A working account at each fake vendor: the settings of a resource that speaks to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.vendors.braket import ACCESS_KEY, ARN, SECRET_KEY, FakeBraket
from tests.fakes.vendors.felis import APIKEY as FELIS_KEY
from tests.fakes.vendors.felis import DEVICE as FELIS_DEVICE
from tests.fakes.vendors.felis import FakeFelis
from tests.fakes.vendors.ibm import APIKEY, BACKEND, CRN, FakeCompute, FakeSystem
from tests.fakes.vendors.iqm import TOKEN as IQM_TOKEN
from tests.fakes.vendors.iqm import FakeIqm
from tests.fakes.vendors.kit import FakeServer
from tests.fakes.vendors.oqtopus import DEVICE as OQTOPUS_DEVICE
from tests.fakes.vendors.oqtopus import TOKEN as OQTOPUS_TOKEN
from tests.fakes.vendors.oqtopus import FakeOqtopus, bridge_library
from tests.fakes.vendors.pasqal import CLIENT, DEVICE, PROJECT, SECRET, FakePasqal, FakeWarden, munge_library
from tests.fakes.vendors.s3 import FakeS3


@dataclass
class Account:
    """A type of resource, the name of a device there, its settings, and the servers behind it."""

    type: str
    device: str
    settings: dict[str, str]
    servers: tuple[FakeServer, ...]

    @property
    def fake(self) -> Any:
        return self.servers[0]

    def close(self) -> None:
        for server in self.servers:
            server.close()


def ibm_compute(type_: str = "ibm-quantum-compute-service", prefix: str = "QRMI_IBM_QCS_") -> Account:
    fake = FakeCompute()
    account = {"ENDPOINT": fake.endpoint, "IAM_ENDPOINT": fake.url, "IAM_APIKEY": APIKEY, "SERVICE_CRN": CRN}
    return Account(type_, BACKEND, _prefixed(prefix, account), (fake,))


def ibm_runtime() -> Account:
    return ibm_compute("qiskit-runtime-service", "QRMI_IBM_QRS_")


def ibm_system() -> Account:
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
    return Account("ibm-quantum-system", BACKEND, _prefixed("QRMI_IBM_QS_", settings), (fake, store))


def braket() -> Account:
    fake = FakeBraket()
    settings = {
        "device": ARN,
        "endpoint": fake.url,
        "s3_endpoint": fake.store.url,
        "s3_bucket": fake.store.bucket,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
    }
    return Account("braket", "braket_fake", settings, (fake, fake.store))


def iqm_server() -> Account:
    fake = FakeIqm()
    settings = {"QRMI_IQM_ISA_ENDPOINT": fake.url, "QRMI_IQM_ISA_TOKEN": IQM_TOKEN}
    return Account("iqm-server", "garnet_mock", settings, (fake,))


def alice_bob_felis() -> Account:
    fake = FakeFelis()
    settings = {"QRMI_AB_FELIS_API_KEY": FELIS_KEY, "QRMI_AB_FELIS_BASE_ENDPOINT": fake.url}
    return Account("alice-bob-felis", FELIS_DEVICE, settings, (fake,))


def pasqal_cloud() -> Account:
    fake = FakePasqal()
    settings = {
        "PROJECT_ID": PROJECT,
        "CLIENT_ID": CLIENT,
        "CLIENT_SECRET": SECRET,
        "AUTH_ENDPOINT": f"{fake.url}/oauth/token",
        "BASE_URL": fake.url,
    }
    return Account("pasqal-cloud", DEVICE, _prefixed("QRMI_PASQAL_CLOUD_", settings), (fake,))


def pasqal_local() -> Account:
    fake = FakeWarden()
    settings = {"QRMI_WARDEN_URL": fake.url, "munge_library": munge_library()}
    return Account("pasqal-local", "fresnel_here", settings, (fake,))


def oqtopus_cloud() -> Account:
    fake = FakeOqtopus()
    settings = {
        "QRMI_OQTOPUS_URL": fake.url,
        "QRMI_OQTOPUS_API_TOKEN": OQTOPUS_TOKEN,
        "bridge_library": bridge_library(),
        # Any library will do where Python is no library of its own: this bridge needs none.
        "python_library": bridge_library(),
    }
    return Account("oqtopus", OQTOPUS_DEVICE, settings, (fake,))


ACCOUNTS: Mapping[str, Callable[[], Account]] = {
    "ibm-quantum-compute-service": ibm_compute,
    "qiskit-runtime-service": ibm_runtime,
    "ibm-quantum-system": ibm_system,
    "braket": braket,
    "iqm-server": iqm_server,
    "alice-bob-felis": alice_bob_felis,
    "pasqal-cloud": pasqal_cloud,
    "pasqal-local": pasqal_local,
    "oqtopus": oqtopus_cloud,
}


def _prefixed(prefix: str, values: Mapping[str, str]) -> dict[str, str]:
    return {prefix + key: value for key, value in values.items()}

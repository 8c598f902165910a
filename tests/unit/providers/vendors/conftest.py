"""Fakes of vendors, and providers on them in this process."""

import functools

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import ProviderSpec
from tests.fakes.vendors.ibm import APIKEY, BACKEND, CRN, FakeCompute, FakeSystem
from tests.fakes.vendors.s3 import FakeS3


@pytest.fixture(scope="session", autouse=True)
def service_models_once():
    """boto reads megabytes of JSON for each session that is opened; here it is read once."""
    try:
        from botocore.loaders import JSONFileLoader
    except ImportError:
        yield
        return
    read = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cloud():
    with FakeCompute() as fake:
        yield fake


@pytest.fixture
def machine():
    with FakeSystem() as fake:
        yield fake


@pytest.fixture
def store():
    with FakeS3() as fake:
        yield fake


@pytest.fixture
def compute(cloud, clock):
    """Makes providers of the cloud; settings are added to the account's."""
    from qtandem.core.providers.ibm.compute import ComputeProvider

    def make(**more):
        account = {"ENDPOINT": cloud.endpoint, "IAM_ENDPOINT": cloud.url, "IAM_APIKEY": APIKEY, "SERVICE_CRN": CRN}
        settings = {f"QRMI_IBM_QCS_{key}": value for key, value in (account | more).items()}
        return ComputeProvider(ProviderSpec(BACKEND, "ibm-quantum-compute-service", settings), clock)

    return make


@pytest.fixture
def system(machine, store, clock):
    """Makes providers of the machine on site."""
    from qtandem.core.providers.ibm.system import SystemProvider

    def make(without=(), **more):
        settings = {
            "QRMI_IBM_QS_ENDPOINT": machine.url,
            "QRMI_IBM_QS_IAM_ENDPOINT": machine.url,
            "QRMI_IBM_QS_IAM_APIKEY": APIKEY,
            "QRMI_IBM_QS_SERVICE_CRN": CRN,
            "QRMI_IBM_QS_S3_ENDPOINT": store.url,
            "QRMI_IBM_QS_S3_BUCKET": store.bucket,
            "QRMI_IBM_QS_S3_REGION": "us-east-1",
            "QRMI_IBM_QS_AWS_ACCESS_KEY_ID": store.access_key,
            "QRMI_IBM_QS_AWS_SECRET_ACCESS_KEY": "secret",
        } | more
        return SystemProvider(
            ProviderSpec(
                BACKEND, "ibm-quantum-system", {key: value for key, value in settings.items() if key not in without}
            ),
            clock,
        )

    return make


@pytest.fixture
def refused():
    """What a call is refused with."""

    def refused(call, *args):
        with pytest.raises(QtandemError) as caught:
            call(*args)
        return caught.value

    return refused

from collections.abc import Iterator

import pytest

from tests.fakes.daemon import FakeDaemon, resource


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    for name in ("QTANDEM_RUN", "QRMI_JOB_QPU_RESOURCES", "QRMI_JOB_QPU_TYPES", "QRMI_LIST_DELIMITER"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeDaemon({"GET /resources": {"resources": [resource("fez"), resource("ibm-x", native="ibm_x")]}})
    monkeypatch.setenv("QTANDEM_SOCKET", str(fake.path))
    yield fake.start()
    fake.close()

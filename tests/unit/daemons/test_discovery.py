"""The daemon finds the devices behind a dynamic resource by the vendor's real client, and keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.qtandemd import Qtandemd
from tests.fakes.vendors.ibm import APIKEY, BACKEND, CRN, FakeCompute


@pytest.fixture
def cloud() -> Iterator[FakeCompute]:
    with FakeCompute() as fake:
        yield fake


@pytest.fixture
def qtandemd(cloud: FakeCompute, tmp_path: Path) -> Iterator[Qtandemd]:
    (tmp_path / "key").write_text(APIKEY)
    (tmp_path / "key").chmod(0o600)
    prefix = "QRMI_IBM_QCS_"
    dynamic = {
        "type": "ibm-quantum-compute-service",
        "dynamic": True,
        "filter": "name=*fake",
        "settings": {
            f"{prefix}ENDPOINT": cloud.endpoint,
            f"{prefix}IAM_ENDPOINT": cloud.url,
            f"{prefix}SERVICE_CRN": CRN,
        },
        "secrets": {f"{prefix}IAM_APIKEY": str(tmp_path / "key")},
        "slots": 3,
    }
    made = Qtandemd({"ibm": dynamic})
    yield made
    made.close()


def until(condition: Callable[[], Any], timeout: float = 40.0) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


@pytest.mark.timeout(120)
def test_devices_become_resources_and_outlive_the_daemon_and_the_vendor(qtandemd: Qtandemd, cloud: FakeCompute) -> None:
    daemon = qtandemd.start().daemon
    [row] = until(lambda: daemon.get("resources")["resources"])
    assert (row["name"], row["qubits"], row["slots"]) == (BACKEND, 3, 3)
    until(lambda: daemon.get("resources")["resources"][0]["availability"] == "online")
    devices = {each["name"]: each for each in daemon.get("discovered")["devices"]}
    assert devices[BACKEND]["resource"] == BACKEND
    assert "not name=*fake" in devices["ibm_other"]["why"]
    assert not cloud.writes()
    qtandemd.stop()
    cloud.fail(500)
    qtandemd.start()
    assert [row["name"] for row in daemon.get("resources")["resources"]] == [BACKEND]
    until(lambda: any("not looked up" in each for each in daemon.get("healthz")["problems"]))
    qtandemd.stop()
    assert APIKEY not in qtandemd.said()
    for path in (path for path in qtandemd.folder.rglob("*") if path.is_file()):
        assert APIKEY.encode() not in path.read_bytes(), path

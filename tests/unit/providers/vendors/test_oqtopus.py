"""OQTOPUS through the qrmi library and a bridge of our own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qtandem.core.config import load
from qtandem.core.facts import Availability
from qtandem.core.providers.base import ProviderSpec
from tests.fakes.vendors import accounts
from tests.fakes.vendors.oqtopus import job

pytest.importorskip("qrmi", reason="the qrmi library is not installed")
ROOT = str(Path(__file__).parents[4] / ".dev")


@pytest.fixture
def site(tmp_path):
    account = accounts.oqtopus_cloud()
    yield account
    account.close()


@pytest.fixture
def provider(site, tmp_path):
    from qtandem.core.providers.qrmi.provider import OqtopusProvider

    return OqtopusProvider(ProviderSpec(site.device, site.type, site.settings | {"state_dir": str(tmp_path)}))


def test_a_fact_has_what_the_device_says(site, provider):
    seen = provider.observe()
    assert (seen.availability, seen.queue, seen.free_slots) == (Availability.ONLINE, 4, None)
    assert (seen.calibration.qubits, seen.calibration.basis_gates) == (64, ("sx", "rz", "cx"))
    assert seen.calibration.taken_at == 1767323045
    assert site.fake.writes() == []


@pytest.mark.parametrize(
    ("change", "availability", "queue"),
    [
        ({"status": "unavailable"}, Availability.OFFLINE, 4),
        ({"status": "on leave"}, Availability.UNKNOWN, 4),
        ({"status": None, "pending": None}, Availability.UNKNOWN, None),
        ({"pending": -1}, Availability.ONLINE, None),
    ],
)
def test_what_is_not_said_is_not_known(site, provider, change, availability, queue):
    for name, value in change.items():
        setattr(site.fake, name, value)
    seen = provider.observe()
    assert (seen.availability, seen.queue) == (availability, queue)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "bad-credentials"), (403, "policy"), (404, "policy"), (429, "not-available"), (500, "vendor-error")],
)
def test_a_status_in_the_bridge_s_sentence_is_classified(site, provider, refused, status, code):
    site.fake.fail(status)
    error = refused(provider.observe)
    assert error.code == code
    assert "scripted" in error.cause


def test_a_connection_that_ends_and_an_answer_that_is_none_are_outages(site, provider, refused):
    for kind in ("drop", "malformed", "garbage"):
        site.fake.fault(kind, times=1)
        assert refused(provider.observe).code == "vendor-error"


def test_a_submission_whose_answer_got_lost_is_told_and_never_sent_twice(site, provider, refused):
    payload = {"kind": "oqtopus", "job_spec": job()}
    site.fake.fault("drop", method="POST", after=True, times=1)
    assert refused(provider.task_start, "lease", "task-1", payload).code == "vendor-error"
    assert refused(provider.task_start, "lease", "task-1", payload).code == "task-failed"
    assert len(site.fake.jobs) == 1


def test_without_a_bridge_the_user_is_told_what_to_build(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from qtandem.core.errors import QtandemError\n"
        "from qtandem.core.providers.base import ProviderSpec\n"
        "from qtandem.core.providers.qrmi.provider import OqtopusProvider\n"
        "settings = {'QRMI_OQTOPUS_URL': 'http://x', 'QRMI_OQTOPUS_API_TOKEN': 't', 'state_dir': sys.argv[2]}\n"
        "try:\n    OqtopusProvider(ProviderSpec('d', 'oqtopus', settings))\n"
        "except QtandemError as error:\n    print(error.code, error.remedy)\n"
    )
    argv = [sys.executable, "-c", program, ROOT, str(tmp_path)]
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False, env=plain)
    assert ran.stdout.startswith("bad-config Build liboqtopus_py_bridge.so"), ran.stdout + ran.stderr


def test_the_configuration_warns_without_one(tmp_path):
    qrmi, toml = tmp_path / "qrmi_config.json", tmp_path / "qtandem.toml"
    keys = {"QRMI_OQTOPUS_URL": "http://x", "QRMI_OQTOPUS_API_TOKEN": "t"}
    qrmi.write_text(json.dumps({"resources": [{"name": "anemone", "type": "oqtopus", "environment": keys}]}))
    qrmi.chmod(0o600)
    toml.write_text(f'[daemon]\nqrmi_config = "{qrmi}"\n')
    loaded = load(toml)
    assert [problem.fatal for problem in loaded.problems] == [False]
    assert "bridge_library" in str(loaded.problems[0])
    toml.write_text(f'[daemon]\nqrmi_config = "{qrmi}"\n[resources.anemone.settings]\nbridge_library = "/lib/b.so"\n')
    assert not load(toml).problems

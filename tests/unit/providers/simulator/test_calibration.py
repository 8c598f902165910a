import json
import subprocess
import sys
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.simulator import calibration

pytest.importorskip("qiskit_ibm_runtime", reason="the extra `simulator` is not installed")
ROOT = str(Path(__file__).parents[4] / ".dev")


@pytest.mark.parametrize(("backend", "qubits"), [("fake_fez", 156), ("fake_torino", 133), ("fake_lagos", 7)])
def test_a_snapshot_tells_medians_in_our_units(tmp_path, backend, qubits):
    seen = calibration.snapshot(backend, tmp_path)
    assert seen.qubits == qubits
    assert seen.coupling
    assert 1e-4 < seen.two_qubit_error < 0.1
    assert 1e-4 < seen.readout_error < 0.2
    assert 1e-5 < seen.t1_s < 1e-2
    assert 1e-5 < seen.t2_s < 1e-2
    assert 1e-8 < seen.gate_time_s < 1e-5
    assert seen.taken_at > 1_500_000_000
    assert seen.max_shots > 1000


def test_every_fake_backend_can_be_read():
    for backend in calibration.backends():
        assert calibration.digest(calibration.description(backend)).qubits > 0, backend


def test_a_snapshot_is_digested_once(tmp_path, monkeypatch):
    first = calibration.snapshot("fake_lagos", tmp_path)
    monkeypatch.setattr(calibration, "description", lambda backend: pytest.fail("read again"))
    assert calibration.snapshot("fake_lagos", tmp_path) == first


def test_a_damaged_cache_is_made_anew(tmp_path):
    (tmp_path / "calibration-fake_lagos.json").write_text("{")
    assert isinstance(calibration.snapshot("fake_lagos", tmp_path), Calibration)


@pytest.mark.parametrize("backend", ["fake_nowhere", "fez", "fake_../fez", "fake_"])
def test_an_unknown_backend_is_answered_with_the_known_ones(tmp_path, backend):
    with pytest.raises(QtandemError, match="No simulated backend") as caught:
        calibration.snapshot(backend, tmp_path)
    assert caught.value.code == "bad-config"
    assert "fake_fez" in caught.value.remedy


def test_reading_a_snapshot_imports_no_sdk(tmp_path):
    script = (
        f"import sys, json, pathlib; sys.path.insert(0, {ROOT!r})\n"
        "from qtandem.core.providers.simulator import calibration, provider\n"
        f"calibration.snapshot('fake_fez', pathlib.Path({str(tmp_path)!r}))\n"
        "print(json.dumps([name for name in sys.modules if name.startswith(('qiskit', 'numpy'))]))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], check=True, capture_output=True)
    assert json.loads(done.stdout) == []

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("qiskit_aer", reason="the demo runs circuits on Qiskit Aer")

COMMAND = [sys.executable, "-m", "qtandem.daemons.cli", "demo"]


@pytest.fixture
def start(tmp_path):
    def run(*options: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
        return subprocess.Popen(
            [*COMMAND, *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )

    return run


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder, among all processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{folder}/qtandem-".encode() in words:
            found.append(words.split(b"\0\0")[0].decode(errors="replace"))
    return found


def test_the_demo_keeps_its_word(start, tmp_path):
    out, err = start("--json").communicate(timeout=50)
    assert err == ""
    outcome = json.loads(out)
    assert set(outcome) == {"jobs", "leases_open", "leases_total"}
    assert (outcome["leases_open"], outcome["leases_total"]) == (0, len(outcome["jobs"]))
    assert len(outcome["jobs"]) >= 5
    for job in outcome["jobs"]:
        assert set(job) == {"id", "resource", "state", "waited_s", "shots", "counts"}
        assert job["state"] == "completed"
        assert sum(job["counts"].values()) == job["shots"] > 0
        assert all(set(bits) <= {"0", "1"} for bits in job["counts"])
    assert max(job["waited_s"] for job in outcome["jobs"]) > min(job["waited_s"] for job in outcome["jobs"])
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_ctrl_c_leaves_nothing_behind(start, tmp_path):
    demo = start()
    while "pending" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    demo.stdout.read()
    assert demo.wait(30) == 130
    assert demo.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []
    ends = time.monotonic() + 10
    while processes_of(tmp_path) and time.monotonic() < ends:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []

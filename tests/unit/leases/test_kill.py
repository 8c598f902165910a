"""After `kill -9` at any write a restart finishes or undoes what was under way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("kill_runner.py")


# Each kill costs a process, and each kill of the restart after it two more: all of them take a minute.
EVERY = "1" if os.environ.get("QTANDEM_SOAK") else "8"


PARTS = 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_leaks_whatever_step_it_is_killed_at(part):
    # A killed process loses nothing that it has handed to the kernel, so memory serves as disk.
    fast = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        outcome = run_part(folder, part)
    assert outcome["faults"] == {}
    assert outcome["kills"] > 100 / PARTS
    assert outcome["double_kills"] > 10 / PARTS


def run_part(folder, part):
    done = subprocess.run(
        [sys.executable, str(RUNNER), folder, EVERY, str(part), str(PARTS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

"""The server_dyn_res script as pbs_sched runs it: one number, soon, whatever the daemon does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(site: Any, tmp_path: Path) -> Path:
    path = tmp_path / "server_dyn_res"
    text = site.hook("server_dyn_res", DEADLINE_MS=500)
    path.write_text(text.replace("#!/usr/bin/python3", f"#!{sys.executable}", 1))
    path.chmod(0o755)
    return path


def printed(script: Path, *arguments: str) -> str:
    done = subprocess.run([script, *arguments], capture_output=True, text=True, timeout=20, check=True)
    assert done.stderr == ""
    return done.stdout


def test_it_prints_what_is_free(script: Path, daemon: Any) -> None:
    daemon.answers["/v1/resources"] = {"fez": {"free": 2, "why": "x\nibm_x.free=9"}, "ibm_x": {"free": 0}}
    assert [printed(script, native) for native in ("fez", "ibm_x", "ez", "nope")] == ["2\n", "0\n", "0\n", "0\n"]
    assert printed(script) == "0\n"


@pytest.mark.parametrize("shell", [[], ["/bin/sh", "-c"]], ids=["as itself", "by a shell"])
def test_what_was_started_has_ended_when_the_number_is_read(script: Path, daemon: Any, shell: list[str]) -> None:
    """Else pbs_sched sleeps a quarter of a second, for each QPU in each cycle."""
    daemon.answers["/v1/resources"] = {"fez": {"free": 2}}
    argv = [*shell, f"{script} fez"] if shell else [str(script), "fez"]
    for _ in range(20):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, process_group=0) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"2\n"
            assert process.poll() == 0


@pytest.mark.parametrize("answer", [(503, {"fez": {"free": 2}}), {"fez": {"free": "many"}}, {}])
def test_what_is_no_answer_is_0(script: Path, daemon: Any, answer: Any) -> None:
    daemon.answers["/v1/resources"] = answer
    assert printed(script, "fez") == "0\n"


def test_a_dead_daemon_is_0(script: Path) -> None:
    assert printed(script, "fez") == "0\n"


def test_a_hung_daemon_is_0_at_the_deadline(script: Path, silent: Callable[[], None]) -> None:
    began = time.monotonic()
    assert printed(script, "fez") == "0\n"
    assert time.monotonic() - began < 5

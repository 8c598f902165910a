"""elim.qpu as LIM runs it: a process that reports whole records, and closes by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon import FakeDaemon
from tests.fakes.lsf.lim import Lim, ProtocolError

FAR = 999999.0
WORDS = "qpu_ready qpu_qubits qpu_queue qpu_wait"
ALL = f"qpu_fez qpu_ibm_x {WORDS}"
SHUT = {"qpu_fez": 0, "qpu_ibm_x": 0, "qpu_ready": 0, "qpu_qubits": 0, "qpu_queue": FAR, "qpu_wait": FAR}
OPEN = {**SHUT, "qpu_fez": 2, "qpu_ibm_x": 1, "qpu_ready": 1}
PERIOD_S = 0.3
# Two periods of the elim under test, and time for a loaded machine.
TWO_INTERVALS_S = 2 * PERIOD_S + 6


def beat(folder: Path, healthy: bool = True, age: float = 0) -> None:
    path = folder / "heartbeat.lsf"
    path.write_text(json.dumps({"at": 1.0, "healthy": healthy}) + "\n")
    os.utime(path, (time.time() - age,) * 2)


@pytest.fixture
def started(hooks: Any) -> Iterator[Callable[..., Lim]]:
    made: list[Lim] = []
    (hooks.folder / "names").write_text("fez\tfez\t2\nibm-x\tibm_x\t1\n")
    (hooks.folder / "sensors.lsf").write_text("fez 2\nibm_x 1\n")
    beat(hooks.folder)
    hooks.write("qtandem_lsf.py")

    def start(resources: str = ALL, values: dict[str, object] | None = None, **options: Any) -> Lim:
        made.append(Lim(hooks.write("elim.qpu", **(values or {})), resources, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def becomes(lim: Lim, wanted: dict[str, float], within_s: float = TWO_INTERVALS_S) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if lim.read(within_s) == wanted:
            return
    pytest.fail(f"{lim.values} instead of {wanted} after {within_s} s")


def test_open_while_the_daemon_is_heard(hooks: Any, started: Any) -> None:
    lim = started()
    becomes(lim, OPEN)
    for change in ({"healthy": False}, {"age": 60.0}, {"age": -60.0}):
        beat(hooks.folder, **change)  # type: ignore[arg-type]
        becomes(lim, SHUT)
        beat(hooks.folder)
        becomes(lim, OPEN)


def test_what_the_daemon_closes_is_closed(hooks: Any, started: Any) -> None:
    lim = started()
    (hooks.folder / "sensors.lsf").write_text("fez 0\nibm_x 1\n")
    becomes(lim, {**OPEN, "qpu_fez": 0})
    (hooks.folder / "sensors.lsf").write_text("fez 0\nibm_x 0\n")
    becomes(lim, SHUT)
    (hooks.folder / "sensors.lsf").write_text("fez 2\nibm_x 1\n")
    becomes(lim, OPEN)


@pytest.mark.parametrize("text", ["", "{", "\0\0", "x" * 100_000, '"healthy": true\n'])
def test_a_heartbeat_that_is_none_closes(hooks: Any, started: Any, text: str) -> None:
    lim = started()
    path = hooks.folder / "heartbeat.lsf"
    path.write_text(text)
    if "true" in text:
        os.utime(path, (0, 0))
    becomes(lim, SHUT)


@pytest.mark.parametrize(
    "text",
    ["", "fez\n", "fez two\n", "fez 99999999999999999999\n", "fez -1\n", "fez 1;id\n", "$(id) 1\nfez 0\n", "\0\n"],
)
def test_values_of_another_form_are_closed(hooks: Any, started: Any, text: str) -> None:
    (hooks.folder / "sensors.lsf").write_text(text)
    becomes(started(), SHUT)


def test_more_slots_than_a_qpu_has_are_not_reported(hooks: Any, started: Any) -> None:
    (hooks.folder / "sensors.lsf").write_text("fez 9\nibm_x 1\n")
    becomes(started(), OPEN)


def test_names_that_are_gone_are_still_closed(hooks: Any, started: Any) -> None:
    lim = started(f"{ALL} qpu_new")
    (hooks.folder / "sensors.lsf").write_text("fez 2\nnew 3\n")
    (hooks.folder / "names").write_text("fez\tfez\t2\nnew\tnew\t3\n")
    becomes(lim, {**OPEN, "qpu_new": 3, "qpu_ibm_x": 0})
    (hooks.folder / "names").unlink()
    becomes(lim, {**SHUT, "qpu_new": 0})


def test_lines_of_another_form_get_into_no_record(hooks: Any, started: Any) -> None:
    (hooks.folder / "names").write_text("x\ty:z\t1\nfez\tfez\tmany\nibm-x\tibm_x\t1\n\n\t\t\n")
    becomes(started(), {**OPEN, "qpu_fez": 0})


def test_what_cannot_be_read_ends_no_sensor(hooks: Any, started: Any) -> None:
    lim = started()
    for name in ("heartbeat.lsf", "names", "sensors.lsf"):
        (hooks.folder / name).unlink()
        (hooks.folder / name).mkdir()
    becomes(lim, SHUT)
    becomes(lim, SHUT)


def test_an_index_that_lim_does_not_know_is_left_out(hooks: Any, started: Any) -> None:
    assert started("r1m qpu_fez qpu_ready").read() == {"qpu_fez": 2, "qpu_ready": 1}


def test_a_lim_that_wants_none_of_ours_is_told_so(started: Any) -> None:
    lim = started("r1m tmp2")
    assert lim.process.wait(10) == 97
    with pytest.raises(ProtocolError):
        lim.read(1)


def test_each_record_is_whole_and_no_faster_than_its_period(started: Any) -> None:
    lim = started()
    times = []
    for _ in range(4):
        lim.read()
        times.append(time.monotonic())
    assert len(lim.records) == 4
    assert min(after - before for before, after in pairwise(times)) > 0.9 * PERIOD_S


def test_what_is_new_is_reported_at_once(hooks: Any, started: Any) -> None:
    lim = started(values={"TICKS": 3600})
    assert lim.read(10) == OPEN
    (hooks.folder / "sensors.lsf").write_text("fez 0\nibm_x 1\n")
    assert lim.read(TWO_INTERVALS_S) == {**OPEN, "qpu_fez": 0}
    with pytest.raises(ProtocolError, match="no record"):
        lim.read(1)


# ---- words for no QPU in particular
@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    fake = FakeDaemon().start()
    fake.routes = {
        "GET /resources": {
            "resources": [
                {"native": "fez", "open": True, "qubits": 127, "queue": 4, "wait_s": 90.5},
                {"native": "ibm_x", "open": True, "qubits": 27, "queue": 0, "wait_s": None},
                {"native": "big", "open": False, "qubits": 1000, "queue": 0, "wait_s": 0},
            ]
        }
    }
    yield fake
    fake.stop()


@pytest.mark.parametrize("blocks", [False, True])
def test_words_are_those_of_the_best_open_qpu(started: Any, hooks: Any, daemon: FakeDaemon, blocks: bool) -> None:
    hooks.write("qtandem_lsf.py", SOCKET=str(daemon.path))
    becomes(started(blocks=blocks), {**OPEN, "qpu_qubits": 127, "qpu_queue": 0, "qpu_wait": 90})


@pytest.mark.parametrize(
    "answer", [{}, {"resources": "x"}, {"resources": [{"open": True, "qubits": "many"}]}, [], {"resources": [7]}]
)
def test_words_of_another_form_are_not_said(started: Any, hooks: Any, daemon: FakeDaemon, answer: Any) -> None:
    daemon.routes["GET /resources"] = answer
    hooks.write("qtandem_lsf.py", SOCKET=str(daemon.path))
    becomes(started(), OPEN)


def test_a_daemon_that_hangs_delays_no_sensor(started: Any, hooks: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="qt") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        hooks.write("qtandem_lsf.py", SOCKET=f"{folder}/s", CALL_S=60)
        lim = started()
        becomes(lim, OPEN)
        beat(hooks.folder, healthy=False)
        becomes(lim, SHUT)


# ---- a LIM that is late, stops, or goes
def test_a_lim_that_reads_one_record_at_a_time_never_finds_an_old_one(hooks: Any, started: Any) -> None:
    lim = started(one_at_a_time=True)
    lim.read()
    # As long as a LIM was stopped: the elim goes on.
    time.sleep(2)
    beat(hooks.folder, healthy=False)
    time.sleep(1)
    lim.read()
    assert lim.unread() == 0, "one record at most waits"
    becomes(lim, SHUT, 3)


@pytest.mark.parametrize("ignores_pipe", [False, True])
def test_an_elim_whose_lim_is_gone_ends(started: Any, ignores_pipe: bool) -> None:
    lim = started(ignores_pipe=ignores_pipe)
    lim.read()
    assert lim.process.stdout
    lim.process.stdout.close()
    lim.process.wait(10)


def test_an_elim_ends_at_sigterm_and_a_new_one_reports_at_once(started: Any) -> None:
    lim = started(values={"TICK": 3600})
    lim.read()
    os.kill(lim.process.pid, signal.SIGTERM)
    assert lim.process.wait(5) == -signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):
        os.killpg(lim.process.pid, signal.SIGKILL)
    lim.start()
    assert lim.read(10) == OPEN


def test_what_its_helper_does_wrong_harms_no_record(started: Any, hooks: Any) -> None:
    for text in ("raise SystemExit(1)", "print('qubits 5; queue x\\nqueue')", "import time; time.sleep(60)"):
        (hooks.folder / "qtandem_lsf.py").write_text(text)
        becomes(started(), OPEN, 12)


def test_no_python_means_no_words_and_no_end(started: Any) -> None:
    lim = started(values={"PYTHON": "/nowhere/python3"})
    becomes(lim, OPEN)
    becomes(lim, OPEN)


def test_it_costs_little(started: Any) -> None:
    """No busy loop, whatever fails: processor time of the elim and all that it started, over three periods."""
    lim = started(values={"PYTHON": "/nowhere/python3"})
    for _ in range(4):
        lim.read()
    ticks = Path(f"/proc/{lim.process.pid}/stat").read_text().rpartition(")")[2].split()
    used = sum(int(ticks[number]) for number in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")
    assert used < 1.0


def test_users_words_do_not_reach_it(started: Any, tmp_path: Path) -> None:
    """LIM's environment is the admin's, but a PATH of somebody's must not matter."""
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("date", "stat", "timeout", "sleep"):
        (evil / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (evil / name).chmod(0o755)
    becomes(started(env={"PATH": str(evil), "PYTHONPATH": str(evil)}), OPEN)
    assert not (tmp_path / "ran").exists()


def test_the_shell_needs_no_more_than_posix(hooks: Any) -> None:
    assert subprocess.run(["/bin/sh", "-n", hooks.write("elim.qpu")], check=False).returncode == 0


# ---- an elim that is stuck
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python3"])
def test_an_elim_that_is_stopped_is_ended_so_that_lim_forgets_its_values(
    hooks: Any, started: Any, blocks: bool, python: str
) -> None:
    lim = started(values={"PYTHON": python}, blocks=blocks)
    becomes(lim, OPEN)
    os.kill(lim.process.pid, signal.SIGSTOP)
    assert lim.process.wait(20) == -signal.SIGKILL
    with contextlib.suppress(ProtocolError):
        lim.read(5)
    with pytest.raises(ProtocolError, match="it ended"):
        lim.read(5)
    assert lim.values == {}
    beat(hooks.folder)
    lim.start()
    becomes(lim, OPEN)


@pytest.mark.parametrize("blocks", [False, True])
def test_its_watcher_is_there_again_when_it_was_killed_and_goes_with_it(started: Any, blocks: bool) -> None:
    lim = started(blocks=blocks)
    becomes(lim, OPEN)

    def children() -> list[int]:
        text = subprocess.run(
            ["pgrep", "-P", str(lim.process.pid), "-f", "elim.qpu"], capture_output=True, text=True, check=False
        )
        return [int(word) for word in text.stdout.split()]

    [first] = children()
    os.kill(first, signal.SIGKILL)
    until = time.monotonic() + TWO_INTERVALS_S
    while children() in ([], [first]) and time.monotonic() < until:
        time.sleep(0.05)
    [second] = children()
    assert second != first
    lim.process.kill()
    lim.process.wait(10)
    while Path(f"/proc/{second}").exists() and time.monotonic() < until + 10:
        time.sleep(0.05)
    assert not Path(f"/proc/{second}").exists()

"""Prolog, epilog, starter method and load sensor, as execd runs them."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from tests.fakes.daemon import FakeDaemon

RUN = "gridengine:lab:7.0"


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    fake = FakeDaemon().start()
    fake.routes = {
        "POST /start": {"verdict": "admit", "run": RUN},
        "POST /end": {"ended": 1},
        f"GET /runs/{RUN}/environment": {
            "run": RUN,
            "uid": os.getuid(),
            "env": {"QTANDEM_RUN": RUN, "fez_KEY": "a b'\"$c", "QTANDEM_SOCKET": "/s", "BAD": "a\nb"},
        },
    }
    yield fake
    fake.stop()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "active_jobs" / "7.1"
    folder.mkdir(parents=True)
    (folder / "config").write_text(f"job_id=7\njob_owner={getpass.getuser()}\nja_task_id=0\nqueue=main\n")
    (folder / "environment").write_text("JOB_ID=7\n")
    (folder / "trace").write_text("")
    return folder


@pytest.fixture
def hook(hooks: Any, daemon: FakeDaemon, spool: Path) -> Any:
    (hooks.folder / "runs").mkdir()
    hooks.values |= {"SOCKET": str(daemon.path), "PYTHON": sys.executable}
    for name in ("qtandem_gridengine.py", "prolog", "epilog"):
        hooks.write(name)

    def run(name: str, mark: str = "1", **environment: str) -> int:
        given = {"QTANDEM_QPU": mark, "SGE_JOB_SPOOL_DIR": str(spool), "PATH": "/nowhere", **environment}
        argv = [str(hooks.folder / name), "7", getpass.getuser()]
        return subprocess.run(argv, env=given, check=False, timeout=30).returncode

    return run


def said(daemon: FakeDaemon) -> list[str]:
    return [f"{call.method} {call.path}" for call in daemon.calls]


def test_a_start_that_is_admitted_leaves_the_environment_to_the_user_alone(hook: Any, hooks: Any, spool: Path) -> None:
    assert hook("prolog") == 0
    place = hooks.folder / "runs" / "gridengine-7"
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "environment").stat().st_mode & 0o777 == 0o600
    assert "fez_KEY=a b'\"$c\n" in (place / "environment").read_text()
    assert (spool / "environment").read_text() == f"JOB_ID=7\nQTANDEM_RUN={RUN}\nQTANDEM_SOCKET=/s\n"


def test_a_job_without_our_mark_costs_no_call(hook: Any, daemon: FakeDaemon) -> None:
    assert (hook("prolog", mark=""), hook("epilog", mark="")) == (0, 0)
    assert not daemon.calls


@pytest.mark.parametrize(
    "answer", [{"verdict": "hold", "message": "no"}, QtandemError("not-authorised", "no"), {"odd": 1}]
)
def test_a_start_that_is_not_admitted_has_the_job_wait(hook: Any, daemon: FakeDaemon, answer: Any) -> None:
    def route(_call: Any) -> Any:
        if isinstance(answer, QtandemError):
            raise answer
        return answer

    daemon.routes["POST /start"] = route
    assert hook("prolog") == 99


def test_a_daemon_that_is_gone_has_the_job_wait(hook: Any, daemon: FakeDaemon) -> None:
    daemon.stop()
    assert hook("prolog") == 99
    assert hook("epilog") == 0


def test_a_command_of_qrsh_is_told_why_it_does_not_start(
    hook: Any, hooks: Any, daemon: FakeDaemon, spool: Path, starter: Any
) -> None:
    config = spool / "config"
    own = f"script_file=QRSH\nstarter_method={hooks.folder}/starter_method\n"
    config.write_text(config.read_text() + own)
    daemon.routes["POST /start"] = {"verdict": "hold", "message": "fez is\nclosed [not-available]"}
    assert hook("prolog") == 0
    done = starter("echo ran", JOB_SCRIPT="QRSH", QTANDEM_QPU="1", QTANDEM_REFUSED="mine")
    assert (done.stdout, done.stderr) == ("", "qtandem: fez is closed [not-available]\n")
    assert done.returncode == 1
    config.write_text(config.read_text().replace(own, own.replace("starter_method=/", "starter_method=/site/")))
    assert hook("prolog") == 99, "a starter that is not ours would start it"


@pytest.mark.skipif(os.geteuid() != 0, reason="the prolog is root's")
@pytest.mark.parametrize("broken", [False, True])
def test_an_interactive_job_that_does_not_start_is_deleted(
    hook: Any, hooks: Any, daemon: FakeDaemon, spool: Path, broken: bool
) -> None:
    """Grid Engine would start it again and again, with nobody at the other end."""
    qdel = hooks.folder / "qdel"
    qdel.write_text(f'#!/bin/sh\necho "$*" $SGE_ROOT $SGE_CELL $(/usr/bin/id -un) >>{hooks.folder}/deleted\n')
    qdel.chmod(0o755)
    config = spool / "config"
    daemon.routes["POST /start"] = {"verdict": "hold", "message": "no"}
    if broken:
        (hooks.folder / "qtandem_gridengine.py").write_text("raise SystemExit(1)\n")
    assert hook("prolog") == 99
    assert not (hooks.folder / "deleted").exists()
    config.write_text(config.read_text() + "script_file=QLOGIN\n")
    assert hook("prolog") == 99
    assert (hooks.folder / "deleted").read_text() == f"7 /sge cell {getpass.getuser()}\n"


@pytest.mark.parametrize("fault", ["no config", "another job", "no hook"])
def test_whatever_is_wrong_the_prolog_says_99_and_the_epilog_0(hook: Any, hooks: Any, spool: Path, fault: str) -> None:
    if fault == "no config":
        (spool / "config").unlink()
    elif fault == "another job":
        (spool / "config").write_text("job_id=8\njob_owner=root\n")
    else:
        (hooks.folder / "qtandem_gridengine.py").write_text("raise SystemExit(100)\n")
    assert hook("prolog") == 99
    assert hook("epilog") == 0


def test_a_job_that_was_deleted_gives_back_what_was_under_way(hook: Any, daemon: FakeDaemon, spool: Path) -> None:
    def wait(_call: Any) -> Any:
        (spool / "trace").write_text("11/30/2026 01:34:50 [101:703]: queued signal KILL\n")
        return {"verdict": "wait"}

    daemon.routes["POST /start"] = wait
    assert hook("prolog") == 99
    assert said(daemon) == ["POST /start", "POST /end"]


def test_the_end_is_reported_with_the_jobs_status(hook: Any, hooks: Any, daemon: FakeDaemon) -> None:
    hook("prolog")
    assert hook("epilog", SGE_JOBEXIT_STAT="137") == 0
    assert daemon.calls[-1].body["exit_code"] == 137
    assert not (hooks.folder / "runs" / "gridengine-7").exists()


def test_an_element_of_an_array_has_a_place_of_its_own(hook: Any, hooks: Any, daemon: FakeDaemon, spool: Path) -> None:
    config = spool / "config"
    config.write_text(config.read_text().replace("ja_task_id=0", "ja_task_id=3"))
    assert hook("prolog") == 0
    assert daemon.calls[0].body["index"] == 3
    assert (hooks.folder / "runs" / "gridengine-7.3").is_dir()


# ---- starter method
@pytest.fixture
def starter(hooks: Any) -> Any:
    path = hooks.write("starter_method")
    place = hooks.folder / "runs" / "gridengine-7"
    place.mkdir(parents=True)
    (place / "environment").write_text("fez_KEY=a b'\"$HOME`id`\nQTANDEM_RUN=r\n")

    def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "PATH": os.environ["PATH"], **environment}
        return subprocess.run([path, *argv], env=given, capture_output=True, text=True, check=False, timeout=20)

    return run


UNIX = {"SGE_STARTER_SHELL_START_MODE": "unix_behavior"}


def test_the_starter_gives_the_environment_and_keeps_arguments_and_status(starter: Any) -> None:
    done = starter("/bin/sh", "-c", 'echo "$fez_KEY" "$1"; exit 7', "x", "a  b", QTANDEM_QPU="1", **UNIX)
    assert (done.stdout, done.returncode) == ("a b'\"$HOME`id` a  b\n", 7)


def test_the_starter_keeps_every_variable_of_the_job(starter: Any) -> None:
    """Names that a script may use for itself, that sh cannot have, and that a shell would run."""
    theirs = {
        **dict.fromkeys(("PYTHON", "SITE", "RUNS", "HOOKS", "run", "lines", "line", "was", "login", "ENV"), "mine"),
        "BASH_FUNC_module%%": "() {  echo hi\n}", "BASH_FUNC_exec%%": "() {  echo evil\n}", "a.b": "1", "x-y": "2",
        "EMPTY": "", "MANY": "a\nb", "BASH_ENV": "/dev/stdin",
    }  # fmt: skip
    for mark in ({}, {"QTANDEM_QPU": "1"}):
        done = starter("/usr/bin/env", "-0", **theirs, **mark, **UNIX)
        found = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
        assert {name: found.get(name) for name in theirs} == theirs, done.stderr
        assert "QTANDEM_QPU" not in found
        more = found.keys() - theirs.keys() - {"JOB_ID", "SGE_TASK_ID", "PATH", *UNIX}
        assert more - {"PWD", "SHLVL", "_"} == ({"fez_KEY", "QTANDEM_RUN"} if mark else set())


def test_a_job_with_a_qpu_but_no_environment_fails_with_a_reason(starter: Any) -> None:
    done = starter("/bin/true", QTANDEM_QPU="1", JOB_ID="8", **UNIX)
    assert done.returncode == 1
    assert "no environment" in done.stderr


def test_the_sites_own_starter_is_called_in_the_end(hooks: Any, starter: Any) -> None:
    site = hooks.folder / "site"
    site.write_text('#!/bin/sh\necho "site $fez_KEY $*"\n')
    site.chmod(0o755)
    hooks.write("starter_method", qtandem_site=str(site))
    assert starter("job", "x", QTANDEM_QPU="1").stdout == "site a b'\"$HOME`id` job x\n"


def test_a_task_of_a_parallel_job_asks_for_its_environment_where_no_prolog_ran(
    starter: Any, hooks: Any, daemon: FakeDaemon
) -> None:
    hooks.values |= {"SOCKET": str(daemon.path), "qtandem_python": sys.executable}
    hooks.write("qtandem_gridengine.py")
    hooks.write("starter_method")
    variables = {"QTANDEM_RUN": "r", "fez_KEY": "a * b'\"$HOME`id`"}
    daemon.routes["GET /runs/*/environment"] = {"run": "r", "uid": os.getuid(), "env": variables}
    task = {"JOB_ID": "8", "SGE_JOB_SPOOL_DIR": "/spool/active_jobs/8.1/1.c2", "QTANDEM_QPU": "1", **UNIX}
    done = starter("/bin/sh", "-c", 'echo "$fez_KEY" "$1"', "x", "a  b", **task)
    assert done.stdout == "a * b'\"$HOME`id` a  b\n", done.stderr
    starter("/bin/true", **{**task, "SGE_TASK_ID": "3"})
    asked = [call.path for call in daemon.calls]
    assert asked == [f"/runs/gridengine:lab:8{task}/environment" for task in ("", "_3")]
    daemon.stop()
    assert starter("/bin/true", **task).returncode == 1


# ---- load sensor
class Sensor:
    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"HOST": "c1", "PATH": "/nowhere"}
        )

    def report(self) -> dict[str, str]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "begin\n"
        lines = list(iter(self.process.stdout.readline, "end\n"))
        assert all(line.startswith("c1:qpu_") and line.count(":") == 2 for line in lines), lines
        return dict(line.rstrip("\n").split(":")[1:] for line in lines)

    def close(self) -> int:
        assert self.process.stdin
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        return self.process.wait(10)


@pytest.fixture
def sensor(hooks: Any) -> Iterator[Sensor]:
    (hooks.folder / "names").write_text("fez\tfez\t2\nibm-x\tibm_x\t1\n")
    beat(hooks.folder)
    made = Sensor(hooks.write("load_sensor"))
    yield made
    assert made.close() == 0


def beat(folder: Path, healthy: bool = True, age: float = 0) -> None:
    path = folder / "heartbeat.gridengine"
    path.write_text(json.dumps({"at": 1.0, "healthy": healthy}) + "\n")
    os.utime(path, (time.time() - age,) * 2)


OPEN, SHUT = {"qpu_fez": "2", "qpu_ibm_x": "1"}, {"qpu_fez": "0", "qpu_ibm_x": "0"}


def test_a_host_is_open_while_the_daemon_is_heard(hooks: Any, sensor: Sensor) -> None:
    assert sensor.report() == OPEN
    for change in ({"healthy": False}, {"age": 60.0}, {"age": -60.0}):
        beat(hooks.folder, **change)  # type: ignore[arg-type]
        assert sensor.report() == SHUT
    beat(hooks.folder)
    assert sensor.report() == OPEN


@pytest.mark.parametrize("text", ["", "{", "\0\0", "x" * 100_000, '"healthy": true\n'])
def test_a_heartbeat_that_is_none_closes(hooks: Any, sensor: Sensor, text: str) -> None:
    path = hooks.folder / "heartbeat.gridengine"
    path.write_text(text)
    if "true" in text:
        os.utime(path, (0, 0))
    assert sensor.report() == SHUT


def test_names_that_are_gone_are_still_closed(hooks: Any, sensor: Sensor) -> None:
    (hooks.folder / "names").write_text("fez\tfez\t2\nnew\tnew\t3\n")
    assert sensor.report() == {"qpu_fez": "2", "qpu_new": "3", "qpu_ibm_x": "0"}
    (hooks.folder / "names").unlink()
    assert sensor.report() == {"qpu_fez": "0", "qpu_new": "0", "qpu_ibm_x": "0"}


def test_lines_of_another_form_get_into_no_report(hooks: Any, sensor: Sensor) -> None:
    (hooks.folder / "names").write_text("x\ty:z\t1\nfez\tfez\tmany\nibm-x\tibm_x\t1\n\n\t\t\n")
    (hooks.folder / "gridengine.news").write_text(
        "qpu_queue_fez 3\nevil:1 2\nqpu_wait_fez $(id)\nend\nqpu_queue_ 1\nqpu_fez 9\nqpu_wait_fez\n"
    )
    assert sensor.report() == {"qpu_fez": "0", "qpu_ibm_x": "1", "qpu_queue_fez": "3"}


def test_what_cannot_be_read_ends_no_sensor(hooks: Any, sensor: Sensor) -> None:
    (hooks.folder / "heartbeat.gridengine").unlink()
    (hooks.folder / "heartbeat.gridengine").mkdir()
    (hooks.folder / "names").unlink()
    (hooks.folder / "names").mkdir()
    for _ in range(3):
        assert sensor.report() == SHUT


# ---- shepherd command
INTERACTIVE = "job_id=7\nadmin_user=sgeadmin\npty=2\nprolog=x\n"


@pytest.fixture
def shepherd(hooks: Any) -> Any:
    own = hooks.folder / "sge_shepherd"
    own.write_text('#!/bin/sh\necho "$*"\nexit 7\n')
    own.chmod(0o755)
    path = hooks.write("shepherd", SHEPHERDS=(str(hooks.folder / "none/sge_shepherd"), str(own)))

    def run(config: str) -> tuple[subprocess.CompletedProcess[str], str]:
        spool = hooks.folder / "spool"
        spool.mkdir(exist_ok=True)
        (spool / "config").write_text(config)
        done = subprocess.run([path], cwd=spool, capture_output=True, text=True, check=False, timeout=20)
        assert sorted(file.name for file in spool.iterdir() if file.name != "qtandem") == ["config"]
        return done, (spool / "config").read_text()

    return run


def test_the_shepherd_of_an_interactive_job_stays_root(shepherd: Any) -> None:
    done, config = shepherd(INTERACTIVE)
    assert (done.stdout, done.returncode) == ("-bg\n", 7)
    assert config == INTERACTIVE.replace("sgeadmin", "none")


@pytest.mark.parametrize("config", ["job_id=7\nadmin_user=sgeadmin\npty=0\n", "", "pty=21\nadmin_user=x\n"])
def test_the_shepherd_of_any_other_job_is_started_as_it_would_be_without_us(shepherd: Any, config: str) -> None:
    done, left = shepherd(config)
    assert (done.stdout, done.returncode, left) == ("-bg\n", 7, config)


def test_where_root_may_not_write_the_shepherd_is_left_alone(shepherd: Any, hooks: Any) -> None:
    """As on a file system of another host that takes root for nobody; here something is in the way."""
    (hooks.folder / "spool").mkdir()
    (hooks.folder / "spool/qtandem").symlink_to("/etc/qtandem-nowhere")
    done, left = shepherd(INTERACTIVE)
    assert (done.returncode, left) == (7, INTERACTIVE)

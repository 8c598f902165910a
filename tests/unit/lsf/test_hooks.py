"""pre_exec, post_exec and jobstarter.qpu as sbatchd runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from tests.fakes.daemon import FakeDaemon
from tests.fakes.lsf.sbatchd import Host, Job

RUN, JOB = "lsf:lab:7.0", "lsf:lab:7"
ASKS = "select[type == local && qpu_fez>=1] rusage[qpu_fez=1.00]"


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    fake = FakeDaemon().start()
    fake.routes = {
        "POST /start": {"verdict": "admit", "run": RUN},
        "POST /end": {"ended": 1},
        f"GET /runs/{JOB}/environment": {
            "run": RUN,
            "uid": os.getuid(),
            "env": {"QTANDEM_RUN": RUN, "fez_KEY": "a b'\"$c", "QTANDEM_SOCKET": "/s", "BAD": "a\nb"},
        },
    }
    yield fake
    fake.stop()


@pytest.fixture
def host(hooks: Any, daemon: FakeDaemon) -> Host:
    hooks.values |= {"SOCKET": str(daemon.path), "PYTHON": sys.executable}
    paths = {name: hooks.write(name) for name in ("qtandem_lsf.py", "pre_exec", "post_exec", "jobstarter.qpu")}
    return Host(str(paths["pre_exec"]), str(paths["post_exec"]), f". {paths['jobstarter.qpu']} ;")


def said(daemon: FakeDaemon) -> list[str]:
    return [f"{call.method} {call.path}" for call in daemon.calls]


# ---- a job's life
def test_a_job_runs_with_the_environment_of_its_run(host: Host, daemon: FakeDaemon, hooks: Any) -> None:
    job = Job("printenv fez_KEY QTANDEM_RUN; exit 3", ASKS)
    assert host.dispatch(job) == "EXIT"
    assert (job.output, job.status) == (f"a b'\"$c\n{RUN}\n", 3)
    assert said(daemon) == ["POST /start", f"GET /runs/{JOB}/environment", "POST /end"]
    start, _, end = daemon.calls
    assert start.body["manager"] == "lsf"
    assert (start.body["cluster"], start.body["job"], start.body["index"]) == ("lab", "7", None)
    assert end.body["exit_code"] == 3


def test_a_job_without_a_qpu_costs_no_call(host: Host, daemon: FakeDaemon) -> None:
    job = Job("exit 0", "select[type == local] rusage[mem=100.00]")
    assert host.dispatch(job) == "DONE"
    assert not daemon.calls


def test_with_job_include_postproc_it_runs_until_the_qpu_is_given_back(host: Host, daemon: FakeDaemon) -> None:
    job = Job("true", ASKS)
    seen: list[str] = []
    daemon.routes["POST /end"] = lambda _call: seen.append(job.states[-1]) or {"ended": 1}
    host.dispatch(job)
    assert (seen, job.states) == (["DONE"], ["PEND", "RUN", "DONE"]), "without it LSF gives the slot away before"
    host.include_postproc, again = True, Job("true", ASKS)
    daemon.routes["POST /end"] = lambda _call: seen.append(again.states[-1]) or {"ended": 1}
    host.dispatch(again)
    assert seen == ["DONE", "RUN"]


def test_an_element_of_an_array_has_a_run_of_its_own(host: Host, daemon: FakeDaemon) -> None:
    daemon.routes["GET /runs/lsf:lab:7_3/environment"] = {"run": "lsf:lab:7_3.0", "uid": 1, "env": {"HERE": "3"}}
    job = Job("echo $HERE", ASKS, index=3)
    assert host.dispatch(job) == "DONE"
    assert job.output == "3\n"
    assert [call.body["index"] for call in daemon.calls if call.method == "POST"] == [3, 3]


# ---- pre_exec: 0 or 75, and nothing else
@pytest.mark.parametrize(
    "answer",
    [
        {"verdict": "hold", "message": "no"}, QtandemError("not-authorised", "no"), {"odd": 1}, [], 7,
        QtandemError("internal", "broken"),
    ],
)  # fmt: skip
def test_a_start_that_is_not_admitted_has_the_job_wait(host: Host, daemon: FakeDaemon, answer: Any) -> None:
    def route(_call: Any) -> Any:
        if isinstance(answer, QtandemError):
            raise answer
        return answer

    daemon.routes["POST /start"] = route
    job = Job("true", ASKS)
    assert host.dispatch(job) == "PEND"
    assert job.preexec == 75
    assert job.status is None


def test_a_daemon_that_is_gone_has_the_job_wait_and_ends_what_runs(host: Host, daemon: FakeDaemon) -> None:
    daemon.stop()
    job = Job("true", ASKS)
    assert (host.dispatch(job), job.preexec) == ("PEND", 75)
    assert subprocess.run(host.post_exec, shell=True, env=host.variables(job), check=False).returncode == 0


def test_a_daemon_that_comes_back_in_time_is_asked_again(host: Host, daemon: FakeDaemon) -> None:
    tries = iter(
        [QtandemError("manager-unreachable", "not yet"), {"verdict": "wait"}, {"verdict": "admit", "run": RUN}]
    )

    def route(_call: Any) -> Any:
        answer = next(tries)
        if isinstance(answer, QtandemError):
            raise answer
        return answer

    daemon.routes["POST /start"] = route
    assert host.dispatch(Job("true", ASKS)) == "DONE"


@pytest.mark.parametrize(
    "fault", ["raise SystemExit(99)", "raise SystemExit(1)", "x = (", "import os; os.kill(os.getpid(), 9)"]
)
def test_whatever_is_wrong_with_the_hook_the_job_waits_and_its_end_is_0(host: Host, hooks: Any, fault: str) -> None:
    (hooks.folder / "qtandem_lsf.py").write_text(fault + "\n")
    job = Job("true", ASKS)
    assert (host.dispatch(job), job.preexec) == ("PEND", 75), "99 would end the job for good"
    assert subprocess.run(host.post_exec, shell=True, env=host.variables(job), check=False).returncode == 0


@pytest.mark.parametrize(
    "change", [{"LSB_JOBID": ""}, {"LSB_JOBID": "7;id"}, {"LSB_JOBINDEX": "../x"}, {"LSB_JOBID": "٣"}]
)
def test_a_job_id_that_is_none_is_not_reported(host: Host, daemon: FakeDaemon, change: dict[str, str]) -> None:
    env = {**host.variables(Job("true", ASKS)), **change}
    for hook, status in ((host.pre_exec, 75), (host.post_exec, 0)):
        assert subprocess.run(hook, shell=True, env=env, check=False, timeout=20).returncode == status
    assert not daemon.calls


def test_after_so_many_refusals_lsf_itself_suspends_the_job(host: Host, daemon: FakeDaemon) -> None:
    """LOCAL_MAX_PREEXEC_RETRY of the application profile; the daemon's own hold comes long before."""
    daemon.routes["POST /start"] = {"verdict": "hold", "message": "no"}
    host.max_retry, job = 3, Job("true", ASKS)
    assert [host.dispatch(job) for _ in range(3)] == ["PEND", "PEND", "PSUSP"]


def gone(group: int, within_s: float = 10.0) -> None:
    """Wait until nothing of a process group runs any more."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        stats = (path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat"))
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if not any(words[2] == str(group) and words[0] != "Z" for words in stats):
                return
        time.sleep(0.05)
    pytest.fail(f"something of the process group {group} still runs")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2])
def test_a_bkill_during_a_slow_start_stops_it(host: Host, daemon: FakeDaemon, hooks: Any, number: int) -> None:
    asked = threading.Event()

    def wait(_call: Any) -> Any:
        asked.set()
        return {"verdict": "wait", "retry_after": 5}

    daemon.routes["POST /start"] = wait
    hooks.write("qtandem_lsf.py", TOTAL_S=600)
    job = Job("true", ASKS)
    pre_exec = host.start_pre_exec(job)
    assert asked.wait(20)
    os.killpg(pre_exec.pid, number)
    # The shell that LSF starts may itself end by the signal.
    assert pre_exec.wait(20) in (75, -number)
    gone(pre_exec.pid)
    assert said(daemon)[-1] == "POST /end", "what was under way is given back"


def test_a_kill_that_nobody_can_catch_leaves_no_process(host: Host, daemon: FakeDaemon, hooks: Any) -> None:
    """The daemon learns from LSF that the job is gone."""
    asked = threading.Event()

    def wait(_call: Any) -> Any:
        asked.set()
        return {"verdict": "wait", "retry_after": 5}

    daemon.routes["POST /start"] = wait
    hooks.write("qtandem_lsf.py", TOTAL_S=600)
    pre_exec = host.start_pre_exec(Job("true", ASKS))
    assert asked.wait(20)
    os.killpg(pre_exec.pid, signal.SIGKILL)
    pre_exec.wait(20)
    gone(pre_exec.pid)


# ---- the hooks and the user's environment, also where a site has LSF run them as another user
def test_hooks_ignore_what_the_user_set(host: Host, daemon: FakeDaemon, tmp_path: Path) -> None:
    """All but what the shell that sbatchd starts takes itself, such as LD_PRELOAD."""
    evil, ran = tmp_path / "evil", tmp_path / "ran"
    evil.mkdir()
    for name in ("env", "python3", "sleep", "kill", "sh"):
        (evil / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (evil / name).chmod(0o755)
    for name in ("os.py", "json.py", "socket.py", "sitecustomize.py", "usercustomize.py", "startup.py"):
        (evil / name).write_text(f"open({str(ran)!r}, 'w')\n")
    (evil / "bashenv").write_text(f"touch {ran}\n")
    hostile = {
        "PATH": str(evil), "PYTHONPATH": str(evil), "PYTHONHOME": str(evil), "PYTHONSTARTUP": str(evil / "startup.py"),
        "PYTHONINSPECT": "1", "BASH_ENV": str(evil / "bashenv"), "ENV": str(evil / "bashenv"), "PERL5LIB": str(evil),
        "IFS": "/", "HOME": str(evil), "QTANDEM_SOCKET": str(evil / "sock"), "QTANDEM_CONFIG": str(evil / "q.toml"),
        "HOOKS": str(evil), "PYTHON": str(evil / "python3"), "CDPATH": str(evil), "child": "1", "status": "0",
        "LSB_JOBID": "666", "LSB_EFFECTIVE_RSRCREQ": "",
    }  # fmt: skip
    job = Job("/bin/true", ASKS, environment=hostile)
    assert host.dispatch(job) == "DONE", job.output
    assert not ran.exists()
    assert daemon.calls[0].body["job"] == "7"


def test_a_library_of_the_users_gets_no_further_than_the_shell(host: Host, daemon: FakeDaemon, hooks: Any) -> None:
    """The hook's own interpreter gets none of LD_*: it sees an empty environment."""
    shown = hooks.folder / "shown"
    (hooks.folder / "qtandem_lsf.py").write_text(
        f"import os\nopen({str(shown)!r}, 'w').write(repr(sorted(os.environ)))\n"
    )
    job = Job(
        "true", ASKS, environment={"LD_LIBRARY_PATH": "/evil", "LD_AUDIT": "", "LD_BIND_NOW": "", "MALLOC_TRACE": "x"}
    )
    assert host.start_pre_exec(job).wait(20) == 0
    assert shown.read_text() == "['LC_ALL', 'LSB_JOBID', 'LSB_JOBINDEX', 'LSB_QUEUE']"


# ---- job starter
@pytest.fixture
def starter(host: Host, daemon: FakeDaemon) -> Any:
    def run(
        line: str, behind: str = "", shell: str = "/bin/sh", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        given = {"LSB_JOBID": "7", "LSB_JOBINDEX": "0", "PATH": os.environ["PATH"], **environment}
        command = [shell, "-c", f"{host.job_starter}{behind} {line}"]
        return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=20)

    return run


LINES = [
    ("exit 7", "", 7),
    ('echo "a  b" | cat; exit 3', "a  b\n", 3),
    ("kill -TERM $$", "", -15),
    ("echo '$HOME' \\$x", "$HOME $x\n", 0),
    ("nosuchcommand", "", 127),
    ("echo $fez_KEY", "a b'\"$c\n", 0),
    ("echo one; echo $QTANDEM_RUN", f"one\n{RUN}\n", 0),
    ("cat <<E\na\nE", "a\n", 0),
    ("set | grep -c ^qtandem_", "0\n", 1),
]


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
@pytest.mark.parametrize(("line", "output", "status"), LINES)
def test_the_starter_keeps_the_command_and_its_status(
    starter: Any, line: str, output: str, status: int, shell: str
) -> None:
    done = starter(line, shell=shell, LSB_EFFECTIVE_RSRCREQ=ASKS)
    assert (done.stdout, done.returncode) == (output, status)


def test_values_come_as_they_are_whatever_the_user_set(starter: Any, daemon: FakeDaemon) -> None:
    values = {"A": "", "B": "  x  ", "C": "*", "D": "\\n`id`$(id)", "E": "a=b", "F": "é" * 2000}
    daemon.routes[f"GET /runs/{JOB}/environment"] = {"run": RUN, "uid": 1, "env": values}
    hostile = {"IFS": "=x", "HOOKS": "/evil", "PYTHON": "/evil", "PYTHONPATH": "/evil", "qtandem_lines": "Z=1"}
    given = {**hostile, "LSB_EFFECTIVE_RSRCREQ": ASKS}
    done = starter("".join(f'printf "%s\\n" "${name}";' for name in [*values, "HOOKS", "PYTHON", "Z"]), **given)
    assert done.stdout.split("\n") == [*values.values(), "/evil", "/evil", "", ""], done.stderr


def test_a_job_without_a_qpu_is_started_as_it_is(starter: Any, daemon: FakeDaemon) -> None:
    done = starter("printenv fez_KEY HOOKS PYTHON", LSB_EFFECTIVE_RSRCREQ="rusage[mem=1]", PYTHON="mine")
    assert (done.stdout, done.returncode) == ("mine\n", 1)
    assert not daemon.calls


def test_a_job_with_a_qpu_but_no_run_fails_with_a_reason(starter: Any) -> None:
    """Such as one that asked for qpu_ready alone, past esub.qpu."""
    done = starter("echo ran", LSB_EFFECTIVE_RSRCREQ="select[qpu_ready == 1]", LSB_JOBID="8")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "cannot use its QPU" in done.stderr
    assert "qpu(NAME)" in done.stderr


def test_a_daemon_that_is_away_for_a_moment_costs_a_moment(starter: Any, daemon: FakeDaemon) -> None:
    body = daemon.routes[f"GET /runs/{JOB}/environment"]
    tries = iter([QtandemError("internal", "broken"), body])

    def route(_call: Any) -> Any:
        answer = next(tries)
        if isinstance(answer, QtandemError):
            raise answer
        return answer

    daemon.routes[f"GET /runs/{JOB}/environment"] = route
    assert starter("echo $QTANDEM_RUN", LSB_EFFECTIVE_RSRCREQ=ASKS).stdout == f"{RUN}\n"


def test_a_daemon_that_stays_away_ends_the_job_with_a_reason(starter: Any, daemon: FakeDaemon) -> None:
    daemon.stop()
    done = starter("echo ran", LSB_EFFECTIVE_RSRCREQ=ASKS)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "does not answer" in done.stderr


def test_the_sites_own_starter_may_follow(starter: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.write_text('#!/bin/sh\necho "site $fez_KEY $*"\nexit 5\n')
    site.chmod(0o755)
    done = starter("job x", behind=f" {site}", LSB_EFFECTIVE_RSRCREQ=ASKS)
    assert (done.stdout, done.returncode) == ("site a b'\"$c job x\n", 5)

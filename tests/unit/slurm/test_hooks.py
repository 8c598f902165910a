"""Prologs and epilogs as Slurm runs them: real processes against a daemon on a socket and a scontrol of ours."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from qtandem.core.installing import assembled, with_constants

HOOKS = Path(__file__).parents[3] / "slurm" / "hooks"
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": str(os.geteuid()),
    "SLURM_JOB_GID": str(os.getegid()),
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_JOB_NODELIST": "c[1-2]",
    "SLURM_JOB_LICENSES": "matlab:1,fez@qtandem:1",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_JOB_START_TIME": "1000",
    "SLURM_JOB_END_TIME": "1600",
}
ELEMENT = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


class Daemon:
    """Answers from a script: a list a path, its last entry for ever. Keeps what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[tuple[str, dict[str, Any] | None]] = []
        self.script: dict[str, list[tuple[int, Any]]] = {}
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return ""

            def log_message(self, *_: object) -> None: ...

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                daemon.calls.append((self.path, json.loads(self.rfile.read(length)) if length else None))
                answers = daemon.script.get(self.path, [(404, {"code": "no-such-run", "message": "no"})])
                status, body = answers.pop(0) if len(answers) > 1 else answers[0]
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve

        self._server = _Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answers(self, path: str, *bodies: Any, status: int = 200) -> None:
        self.script[path] = [(status, body) for body in bodies]

    def asked(self, path: str) -> list[dict[str, Any] | None]:
        return [body for asked, body in self.calls if asked == path]


class Site:
    """Installed hooks in a folder."""

    def __init__(self, folder: Path, server: str = "qtandem") -> None:
        self.folder, self.runs, self.names = folder, folder / "runs", folder / "names"
        self.records: dict[str, Any] = {}
        scontrol = folder / "scontrol"
        scontrol.write_text(f'#!/bin/sh\necho "$@" >>"{folder}/scontrol.log"\ncat "{folder}/record.json"\n')
        scontrol.chmod(0o755)
        values = {
            "CLUSTER": "lab", "SERVER": server, "NAMES": str(self.names),
            "SOCKET": str(folder / "q.sock"), "RUNS": str(self.runs),
            "SCONTROL": str(scontrol), "SLURM_CONF": "", "HOOKS": str(folder), "PYTHON": sys.executable, "CALL_S": 2,
            "DAEMON_DOWN_S": 0, "NO_REQUEUE_S": 1, "TOTAL_S": 3,
        }  # fmt: skip
        for name in ("prolog_slurmctld", "epilog_slurmctld", "prolog", "epilog", "task_prolog", "qtandem_slurm.py"):
            language = "python" if name.endswith(".py") else "sh"
            target = folder / name
            target.write_text(with_constants(assembled((HOOKS / name).read_text()), values, language))
            target.chmod(0o755)
        self.record()

    def record(self, **fields: Any) -> None:
        """What slurmctld says of job 7."""
        known = {"job_id": 7, "requeue": True, "batch_flag": True, "start_time": 1000, **fields}
        (self.folder / "record.json").write_text(json.dumps({"jobs": [known]}))

    def run(self, hook: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", **JOB, **variables}
        return subprocess.run([str(self.folder / hook)], env=env, capture_output=True, text=True, timeout=20)

    @property
    def file(self) -> Path:
        return self.runs / "7" / "environment"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "q.sock")
    yield daemon
    daemon.close()


def environment(**env: str) -> dict[str, Any]:
    return {"run": "slurm:lab:7.0", "uid": os.geteuid(), "env": env}


def test_an_admitted_job_starts(site: Site, daemon: Daemon) -> None:
    daemon.answers("/v1/start", {"verdict": "admit"})
    assert site.run("prolog_slurmctld").returncode == 0
    [call] = daemon.asked("/v1/start")
    assert call == {
        "manager": "slurm", "cluster": "lab", "job": "7", "index": None, "attempt": 0, "uid": os.geteuid(),
        "user": "alice", "account": "physics", "partition": "main", "nodes": "c[1-2]",
        "native": "matlab:1,fez@qtandem:1", "can_requeue": True, "time_limit_s": 600,
    }  # fmt: skip


def test_an_element_goes_by_its_array_and_an_interactive_job_cannot_be_requeued(site: Site, daemon: Daemon) -> None:
    daemon.answers("/v1/start", {"verdict": "admit"})
    site.record(batch_flag=False)
    site.run("prolog_slurmctld", **ELEMENT, SLURM_JOB_RESTART_COUNT="3", SLURM_JOB_END_TIME="99999999999")
    [call] = daemon.asked("/v1/start")
    assert call is not None
    assert (call["job"], call["index"], call["attempt"]) == ("5", 2, 3)
    assert (call["can_requeue"], call["time_limit_s"]) == (False, None)


def test_a_job_waits_until_its_slot_is_given_back(site: Site, daemon: Daemon) -> None:
    daemon.answers("/v1/start", {"verdict": "wait"}, {"verdict": "wait", "retry_after": 0.01}, {"verdict": "admit"})
    assert site.run("prolog_slurmctld").returncode == 0
    assert len(daemon.calls) == 3


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, {"verdict": "hold", "message": "the vendor refused"}),
        (403, {"code": "not-authorised", "message": "the vendor refused"}),
    ],
)
def test_a_refused_job_is_given_back_to_slurm(site: Site, daemon: Daemon, status: int, answer: object) -> None:
    daemon.answers("/v1/start", answer, status=status)
    done = site.run("prolog_slurmctld")
    assert done.returncode == 1
    assert "the vendor refused" in done.stderr


@pytest.mark.parametrize("answer", [b"", b"[]", b"<html>", {"verdict": "maybe"}])
def test_a_strange_answer_starts_no_job(site: Site, daemon: Daemon, answer: object) -> None:
    daemon.answers("/v1/start", answer)
    assert site.run("prolog_slurmctld").returncode == 1


def test_without_a_daemon_a_job_is_given_back_at_once_and_one_that_cannot_be_waits(site: Site) -> None:
    assert site.run("prolog_slurmctld").returncode == 1
    site.record(requeue=False, comment="mine")
    done = site.run("prolog_slurmctld")
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    told = (site.folder / "scontrol.log").read_text().splitlines()[-2:]
    assert told[0].startswith("update jobid=7 comment=mine | qtandem: cannot start")
    assert told[1].startswith("notify 7 qtandem: cannot start")


@pytest.mark.parametrize("licences", ["", "matlab:2", "fez@qtandem2:1", "xqtandem:1", "qtandem"])
@pytest.mark.parametrize("hook", ["prolog_slurmctld", "epilog_slurmctld", "prolog", "task_prolog"])
def test_other_jobs_are_left_alone(site: Site, daemon: Daemon, hook: str, licences: str) -> None:
    done = site.run(hook, SLURM_JOB_LICENSES=licences)
    assert (done.returncode, done.stdout, daemon.calls) == (0, "", [])


@pytest.mark.parametrize("licences", ["fez@qtandem", "fez@qtandem:2", "fez@qtandem,matlab:1", "a@qtandem|b@ibm"])
def test_every_form_of_a_licence_is_seen(site: Site, daemon: Daemon, licences: str) -> None:
    daemon.answers("/v1/start", {"verdict": "admit"})
    site.run("prolog_slurmctld", SLURM_JOB_LICENSES=licences)
    assert len(daemon.calls) == 1


def test_addresses_do_not_come_from_the_environment(site: Site, daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers("/v1/start", {"verdict": "admit"})
    hostile = {"QTANDEM_SOCKET": "/nowhere", "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/x", "SOCKET": "/nowhere"}
    (tmp_path / "json.py").write_text("raise SystemExit(0)")
    assert site.run("prolog_slurmctld", **hostile).returncode == 0
    assert len(daemon.calls) == 1


@pytest.mark.parametrize(
    ("count", "start_time", "attempt"),
    [("0", 1000, 0), ("2", 1000, 2), ("1", 1121, 0), ("3", 0, 2)],
    ids=["ended", "ended-later", "requeued", "requeued-later"],
)
def test_the_attempt_that_ended_is_named(site: Site, daemon: Daemon, count: str, start_time: int, attempt: int) -> None:
    daemon.answers("/v1/end", {"ended": 1})
    site.record(start_time={"set": True, "infinite": False, "number": start_time})
    assert site.run("epilog_slurmctld", SLURM_JOB_RESTART_COUNT=count, SLURM_JOB_EXIT_CODE2="3:0").returncode == 0
    [call] = daemon.asked("/v1/end")
    assert call is not None
    assert (call["attempt"], call["exit_code"]) == (attempt, 3)


def test_an_end_without_a_daemon_fails_nothing(site: Site) -> None:
    done = site.run("epilog_slurmctld")
    assert done.returncode == 0
    assert "was not reported" in done.stderr


def test_the_environment_reaches_the_tasks_of_the_jobs_user_alone(site: Site, daemon: Daemon) -> None:
    daemon.answers(
        "/v1/runs/slurm:lab:7.0/environment",
        environment(
            QTANDEM_RUN="slurm:lab:7.0", fez_KEY="a=b c'd\"e $(x)", **{"two\nlines": "x", "LINES": "a\nexport X=1"}
        ),
    )
    assert site.run("prolog").returncode == 0
    assert (site.file.stat().st_mode & 0o777, site.file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert site.runs.stat().st_mode & 0o777 == 0o711
    lines = site.run("task_prolog").stdout.splitlines()
    assert [line for line in lines if line.startswith("export")] == [
        "export QTANDEM_RUN=slurm:lab:7.0",
        "export fez_KEY=a=b c'd\"e $(x)",
    ]
    assert site.run("epilog").returncode == 0
    assert list(site.runs.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root leaves files for others")
def test_a_jobs_user_may_read_the_environment_and_neither_write_nor_own_it(site: Site, daemon: Daemon) -> None:
    daemon.answers("/v1/runs/slurm:lab:7.0/environment", {**environment(A="1"), "uid": 12345})
    site.run("prolog", SLURM_JOB_UID="12345", SLURM_JOB_GID="12345")
    folder = site.file.parent.stat()
    assert (folder.st_uid, folder.st_mode & 0o777) == (0, 0o711)
    if site.file.stat().st_uid:
        pytest.skip("the file system has no lists of rights")
    place = os.open(site.file.parent, os.O_RDONLY)
    file = f"/proc/self/fd/{place}/environment"

    def may(command: str, uid: int) -> bool:
        done = subprocess.run(["sh", "-c", command], user=uid, pass_fds=[place], capture_output=True)
        return done.returncode == 0

    commands = (f"cat {file}", f"echo >>{file}", f"chmod 600 {file}", f"rm -f {file}", f"touch {file}.2")
    assert [may(command, 12345) for command in commands] == [True, False, False, False, False]
    assert not may(commands[0], 12346)
    os.close(place)


def test_the_node_finds_the_array_of_an_element(site: Site, daemon: Daemon) -> None:
    daemon.answers("/v1/runs/slurm:lab:5_2.0/environment", environment(A="1"))
    site.record(
        array_job_id={"set": True, "infinite": False, "number": 5},
        array_task_id={"set": True, "infinite": False, "number": 2},
    )
    site.run("prolog")
    assert site.file.read_text() == "A=1\n"


def test_a_prolog_never_fails_and_a_task_without_its_environment_does(site: Site, daemon: Daemon) -> None:
    assert site.run("prolog").returncode == 0
    assert not site.file.exists()
    done = site.run("task_prolog")
    assert done.returncode == 1
    assert "print qtandem: this node has no environment" in done.stdout
    assert site.run("task_prolog", SLURM_HET_SIZE="2").returncode == 0, "another component has no QPU of its own"


def test_another_users_run_is_not_written(site: Site, daemon: Daemon) -> None:
    daemon.answers("/v1/runs/slurm:lab:7.0/environment", {**environment(A="1"), "uid": os.geteuid() + 1})
    assert site.run("prolog").returncode == 0
    assert not site.file.exists()


def test_what_lies_in_the_way_is_replaced_and_never_followed(site: Site, daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers("/v1/runs/slurm:lab:7.0/environment", environment(A="1"))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "environment").write_text("keep")
    site.runs.mkdir()
    (site.runs / "7").mkdir()
    (site.runs / "7" / "environment").symlink_to(precious / "environment")
    (site.runs / "7" / "more").symlink_to(precious)
    site.run("prolog")
    assert (precious / "environment").read_text() == "keep"
    assert (site.file.is_symlink(), site.file.read_text()) == (False, "A=1\n")


def test_a_runs_folder_that_is_a_link_is_refused(site: Site, daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers("/v1/runs/slurm:lab:7.0/environment", environment(A="1"))
    (tmp_path / "elsewhere").mkdir()
    site.runs.symlink_to(tmp_path / "elsewhere")
    assert site.run("prolog").returncode == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("job", ["", "..", "7/../../x", "*", "-rf"])
def test_an_epilog_removes_nothing_but_a_jobs_folder(site: Site, job: str, tmp_path: Path) -> None:
    site.runs.mkdir()
    (site.runs / "8").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert site.run("epilog", SLURM_JOB_ID=job).returncode == 0
    assert (sorted(path.name for path in tmp_path.iterdir()), (site.runs / "8").exists()) == (before, True)


@pytest.mark.parametrize("hook", ["prolog_slurmctld", "epilog_slurmctld", "prolog"])
def test_variables_that_are_missing_are_told(site: Site, daemon: Daemon, hook: str) -> None:
    done = site.run(hook, SLURM_JOB_ID="x", SLURM_JOB_UID="y")
    assert done.returncode == (1 if hook == "prolog_slurmctld" else 0)
    assert done.stderr


@pytest.mark.parametrize("hook", ["prolog_slurmctld", "epilog_slurmctld", "prolog", "task_prolog"])
def test_on_a_server_of_the_site_other_licences_are_left_alone(tmp_path: Path, daemon: Daemon, hook: str) -> None:
    site = Site(tmp_path, "slurmdb")
    site.names.write_text("ibm-fez\tfez\t1\n")
    for licences in ("matlab@slurmdb:2", "fezz@slurmdb", "fez@other"):
        done = site.run(hook, SLURM_JOB_LICENSES=licences)
        assert (done.returncode, done.stdout, daemon.calls) == (0, "", [])
    site.run(hook, SLURM_JOB_LICENSES="matlab@slurmdb:2,fez@slurmdb:1")
    assert bool(daemon.calls) == (hook != "task_prolog")
    if hook == "task_prolog":
        assert site.run(hook, SLURM_JOB_LICENSES="matlab@slurmdb:2,fez@slurmdb:1").returncode == 1

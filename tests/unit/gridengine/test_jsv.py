"""The server JSV as qmaster speaks to it: one process, many jobs."""

from __future__ import annotations

import contextlib
import getpass
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest


class Jsv:
    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def job(self, **params: str) -> list[str]:
        """What it says between BEGIN and its RESULT, and that."""
        assert self.process.stdin
        assert self.process.stdout
        # Before it is asked, so that Grid Engine need not wait for it.
        assert self.process.stdout.readline() == "STARTED\n"
        self.process.stdin.write("START\n")
        lines = [f"PARAM {key} {value}" for key, value in {"USER": getpass.getuser(), **params}.items()]
        self.process.stdin.write("".join(f"{line}\n" for line in [*lines, "BEGIN"]))
        said = []
        while not said or not said[-1].startswith("RESULT"):
            said.append(self.process.stdout.readline().rstrip("\n"))
            assert said[-1], "it ended"
        return said

    def close(self) -> int:
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.write("QUIT\n")
            self.process.stdin.close()
        return self.process.wait(10)


@pytest.fixture
def jsv(hooks: Any) -> Iterator[Callable[..., Jsv]]:
    made: list[Jsv] = []

    def start(**values: object) -> Jsv:
        made.append(Jsv(hooks.write("jsv", **values)))
        return made[-1]

    yield start
    for one in made:
        assert one.close() == 0


@pytest.fixture
def daemon() -> Iterator[tuple[str, list[dict[str, str]], list[str]]]:
    """Its socket, the calls it got, and the texts it answers with, the last one again and again."""
    folder = tempfile.TemporaryDirectory(prefix="qt")
    path, calls, answers = f"{folder.name}/s", list[dict[str, str]](), list[str]()
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                text = peer.recv(65536).decode().partition("\r\n\r\n")[2]
                calls.append({key: unquote(value) for key, _, value in (line.partition("=") for line in text.split())})
                body = answers.pop(0) if len(answers) > 1 else answers[0]
                peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                peer.close()

    threading.Thread(target=serve, daemon=True).start()
    yield path, calls, answers
    server.close()
    folder.cleanup()


ADMIT = "verdict=admit\nrequest=fez:2\nnative.l=qpu_fez=2\n"


def test_a_request_becomes_the_counted_complex(jsv: Any, daemon: Any) -> None:
    path, calls, answers = daemon
    answers.append(ADMIT)
    said = jsv(SOCKET=path).job(l_hard="arch=lx*,qpu=fez,qpu_slots=2", P="physics", q_hard="main@c1,main@c2")
    assert said == ["PARAM l_hard arch=lx*,qpu_fez=2", "ENV ADD QTANDEM_QPU 1", "RESULT STATE CORRECT"]
    [call] = calls
    assert (call["request"], call["account"], call["partition"]) == ("fez:2", "physics", "main")
    assert (call["manager"], call["cluster"], call["user"]) == ("gridengine", "lab", getpass.getuser())


def test_a_job_without_a_qpu_costs_no_call(jsv: Any) -> None:
    assert jsv().job(l_hard="arch=lx*,h_rt=60") == ["RESULT STATE ACCEPT"]


def test_what_the_daemon_refuses_is_rejected_in_one_line(jsv: Any, daemon: Any) -> None:
    path, _, answers = daemon
    answers.append("verdict=reject\ncode=unknown-resource\nmessage=There%20is%20no%0Afez\n")
    assert jsv(SOCKET=path).job(l_hard="qpu=fez") == ["RESULT STATE REJECT There is no fez [unknown-resource]"]


def test_one_process_serves_many_jobs(jsv: Any, daemon: Any) -> None:
    path, calls, answers = daemon
    answers.append(ADMIT)
    process = jsv(SOCKET=path)
    for _ in range(50):
        assert process.job(l_hard="qpu=fez:2")[-1] == "RESULT STATE CORRECT"
        assert process.job() == ["RESULT STATE ACCEPT"]
    assert len(calls) == 50


@pytest.mark.parametrize(
    ("params", "answer"),
    [
        ({"l_hard": "qpu=fez"}, "PARAM l_hard qpu_fez=1"),
        ({"l_hard": "qpu=ibm-x,qpu_slots=2"}, "PARAM l_hard qpu_ibm_x=2"),
        ({"l_hard": "qpu=fez,qpu_slots=9"}, "RESULT STATE REJECT qtandem does not answer"),
        ({"l_hard": "qpu=fez+ibm-x"}, "RESULT STATE REJECT qtandem does not answer"),
        ({"l_hard": "qpu_fez=1"}, "RESULT STATE REJECT qtandem does not answer"),
        ({"l_hard": "h_rt=1"}, "RESULT STATE ACCEPT"),
    ],
)
def test_without_the_daemon_one_plain_known_name_passes(
    jsv: Any, hooks: Any, params: dict[str, str], answer: str
) -> None:
    (hooks.folder / "names").write_text("fez\tfez\t2\nibm-x\tibm_x\t2\n")
    assert jsv().job(**params)[0].startswith(answer)


def test_a_daemon_that_hangs_is_left_within_the_deadline(jsv: Any, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="qt") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        assert "does not answer" in jsv(SOCKET=f"{folder}/s", DEADLINE_MS=40).job(l_hard="qpu=a+b")[-1]


def test_a_user_that_is_unknown_here_stops_only_jobs_with_a_qpu(jsv: Any) -> None:
    process = jsv()
    assert "check of this job's QPU request failed" in process.job(USER="no such user", l_hard="qpu=fez")[-1]
    assert process.job(USER="no such user", l_hard="h_rt=1") == ["RESULT STATE ACCEPT"]


ME = f"PARAM USER {getpass.getuser()}\n"


@pytest.mark.parametrize(
    "argument", ["x\nBEGIN", "x\nBEGIN\nSTART\nBEGIN", "x\nSTART", "x\nQUIT", "x\rBEGIN\r", "BEGIN {print}\nBEGIN\nEND"]
)
def test_lines_of_an_argument_are_no_words_of_the_protocol(jsv: Any, daemon: Any, argument: str) -> None:
    """Grid Engine writes arguments as they are. A second answer would be that to somebody else's job."""
    path, calls, answers = daemon
    answers.append(ADMIT)
    process = jsv(SOCKET=path)
    assert process.process.stdin
    assert process.process.stdout
    assert process.process.stdout.readline() == "STARTED\n"
    process.process.stdin.write(f"START\n{ME}PARAM CMDARGS 1\nPARAM CMDARG0 {argument}\nPARAM l_hard qpu=fez\nBEGIN\n")
    said = [process.process.stdout.readline() for _ in range(3)]
    assert said == ["PARAM l_hard qpu_fez=2\n", "ENV ADD QTANDEM_QPU 1\n", "RESULT STATE CORRECT\n"]
    assert [call["request"] for call in calls] == ["fez"]
    assert process.job(l_hard="h_rt=1") == ["RESULT STATE ACCEPT"]


def test_a_line_of_an_argument_makes_a_job_nobody_elses(jsv: Any, daemon: Any) -> None:
    path, calls, answers = daemon
    answers.append(ADMIT)
    process = jsv(SOCKET=path)
    said = process.job(CMDARG0="x\nPARAM USER root", l_hard="qpu=fez")
    assert said[0].startswith("RESULT STATE REJECT A line of your job's arguments begins with PARAM USER")
    assert not calls
    assert process.job(l_hard="h_rt=1") == ["RESULT STATE ACCEPT"]


def test_one_that_lost_its_place_ends_instead_of_answering_for_others(hooks: Any) -> None:
    process = Jsv(hooks.write("jsv"))
    assert process.job() == ["RESULT STATE ACCEPT"]
    assert process.process.stdin
    process.process.stdin.write("PARAM N late\n")
    assert process.process.wait(10) == 1


SITE = """#!{python}
import sys
job = ""
for line in sys.stdin:
    word = line.split()[0]
    if word == "START":
        print("SEND ENV", flush=True); print("STARTED", flush=True)
    elif line.startswith("PARAM N "):
        job = line.split()[2]
    elif word == "BEGIN":
        if job == "die":
            sys.exit(3)
        if job == "no":
            print("RESULT STATE REJECT not by this name", flush=True)
        elif job == "more":
            print("PARAM l_hard qpu=fez,h_rt=60", flush=True); print("RESULT STATE CORRECT", flush=True)
        else:
            print("RESULT STATE ACCEPT", flush=True)
"""


def test_the_sites_own_is_asked_first(jsv: Any, daemon: Any, tmp_path: Path) -> None:
    path, calls, answers = daemon
    answers.append(ADMIT)
    site = tmp_path / "site"
    site.write_text(SITE.format(python=sys.executable))
    site.chmod(0o755)
    process = jsv(SOCKET=path, SITE_JSV=str(site))
    assert process.process.stdin
    assert process.process.stdout

    def job(**params: str) -> list[str]:
        process.process.stdin.write("START\n")
        assert [process.process.stdout.readline() for _ in range(2)] == ["SEND ENV\n", "STARTED\n"]
        process.process.stdin.write("".join(f"PARAM {key} {value}\n" for key, value in params.items()) + "BEGIN\n")
        said = []
        while not said or not said[-1].startswith("RESULT"):
            said.append(process.process.stdout.readline().rstrip("\n"))
        return said

    user = getpass.getuser()
    assert job(USER=user, N="no", l_hard="qpu=fez") == ["RESULT STATE REJECT not by this name"]
    assert not calls
    assert job(USER=user, N="more")[1:] == [
        "PARAM l_hard h_rt=60,qpu_fez=2",
        "ENV ADD QTANDEM_QPU 1",
        "RESULT STATE CORRECT",
    ]
    assert job(USER=user, N="x") == ["RESULT STATE ACCEPT"]
    assert job(USER=user, N="die")[0].startswith("RESULT STATE REJECT_WAIT")
    assert job(USER=user, N="x") == ["RESULT STATE ACCEPT"]

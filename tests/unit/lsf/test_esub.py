"""esub.qpu as bsub and bmod run it: a process at the client, as the submitting user."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtandem.lsf.hooks import qtandem_esub as esub
from tests.fakes.lsf.submit import ABORT, Cluster

ADMIT = "verdict=admit\nrequest=fez:2\nnative.R=qpu_fez=2\n"


class TextDaemon:
    """Its socket, the calls it got, and the texts it answers with, the last one again and again."""

    def __init__(self, path: str) -> None:
        self.path, self.calls, self.answers = path, list[dict[str, str]](), list[str]()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                text = peer.recv(65536).decode().partition("\r\n\r\n")[2]
                pairs = (line.partition("=") for line in text.split())
                self.calls.append({key: unquote(value) for key, _, value in pairs})
                body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                peer.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def daemon() -> Iterator[TextDaemon]:
    with tempfile.TemporaryDirectory(prefix="qt") as folder:
        made = TextDaemon(f"{folder}/s")
        made.answers.append(ADMIT)
        yield made
        made.close()


@pytest.fixture
def lsf(hooks: Any, tmp_path: Path) -> Callable[..., Cluster]:
    """A cluster whose esub is ours; constants by name."""

    def make(*, methods: str = "qpu", single: bool = False, **values: object) -> Cluster:
        hooks.write("qtandem_esub.py", **values)
        path = hooks.write("esub.qpu", **values)
        if single:
            path.rename(hooks.folder / "esub")
        return Cluster(hooks.folder, tmp_path, methods=methods, single=single)

    return make


# ---- forms
@pytest.mark.parametrize("single", [False, True], ids=["LSF: esub.qpu", "older: esub"])
def test_a_request_by_the_name_of_the_esub(lsf: Any, daemon: TextDaemon, single: bool) -> None:
    cluster = lsf(single=single, SOCKET=daemon.path)
    done = cluster.bsub(a="qpu(fez:2)", RES_REQ="select[a] rusage[mem=3]", QUEUE="normal", PROJECT_NAME="physics")
    assert not done.aborted, done.said
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[a && qpu_fez>=2] rusage[mem=3:qpu_fez=2]"
    call = daemon.calls[0]
    assert (call["request"], call["partition"], call["account"]) == ("fez:2", "normal", "physics")
    assert (call["manager"], call["cluster"], call["uid"]) == ("lsf", "lab", str(os.getuid()))
    assert call["user"] == pwd.getpwuid(os.getuid()).pw_name


def test_a_mandatory_esub_that_runs_twice_asks_for_the_same_once(lsf: Any, daemon: TextDaemon) -> None:
    done = lsf(SOCKET=daemon.path).bsub(a="qpu(fez:2)")
    assert done.runs == 2
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[qpu_fez>=2] rusage[qpu_fez=2]"
    assert [call["request"] for call in daemon.calls] == ["fez:2", "fez:2"]
    assert daemon.calls[1]["native"] == "qpu_fez=2"


def test_what_the_daemon_says_of_an_admitted_request_is_shown(lsf: Any, daemon: TextDaemon) -> None:
    daemon.answers[0] = ADMIT + "message=fez%20has%20no%20sessions\n"
    done = lsf(SOCKET=daemon.path).bsub(a="qpu(fez:2)")
    assert "qtandem: fez has no sessions" in done.said
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[qpu_fez>=2] rusage[qpu_fez=2]"


@pytest.mark.parametrize("request_", ["fez", "fez/ibm-x:2", "any:vendor=ibm:qubits=100:by=queue", "lab-class", "a+b:3"])
def test_the_whole_grammar_gets_to_the_daemon(lsf: Any, daemon: TextDaemon, request_: str) -> None:
    assert not lsf(SOCKET=daemon.path).bsub(a=f"qpu({request_})").aborted
    assert not lsf(SOCKET=daemon.path).bsub(environment={"QRMI_QPU_RESOURCES": request_}).aborted
    assert [call["request"] for call in daemon.calls] == [request_] * 3


def test_arguments_between_commas_are_all_of_them(lsf: Any, daemon: TextDaemon) -> None:
    lsf(SOCKET=daemon.path).bsub(a="qpu(fez, ibm-x:2)")
    assert {call["request"].replace(" ", "") for call in daemon.calls} == {"fez,ibm-x:2"}


def test_what_is_written_beats_the_environment(lsf: Any, daemon: TextDaemon) -> None:
    cluster = lsf(SOCKET=daemon.path)
    cluster.bsub(a="qpu(fez)", environment={"QRMI_QPU_RESOURCES": "other"})
    cluster.bsub(RES_REQ="rusage[qpu_fez=2]", environment={"QRMI_QPU_RESOURCES": "other"})
    assert [call.get("request", "") for call in daemon.calls] == ["fez", "fez", ""]


@pytest.mark.parametrize("text", ["select[qpu_fez>=2]", "rusage[qpu_fez=2]", "select[qpu_fez>1] rusage[qpu_fez=1]"])
def test_lsfs_own_words_are_counted_too(lsf: Any, daemon: TextDaemon, text: str) -> None:
    done = lsf(SOCKET=daemon.path).bsub(RES_REQ=text)
    assert daemon.calls[0]["native"] == "qpu_fez=2"
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[qpu_fez>=2] rusage[qpu_fez=2]"


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("select[qpu_ready==1]", "any"),
        ("select[qpu_ready==1 && qpu_qubits>=100]", "any:qubits=100"),
        ("qpu_qubits>99 && qpu_queue<=5 && qpu_wait<60", "any:qubits=100:queue=5:wait=59"),
        ("select[qpu_ready]", "any"),
    ],
)
def test_a_condition_on_any_qpu_is_a_request_for_one(lsf: Any, daemon: TextDaemon, text: str, request_: str) -> None:
    done = lsf(SOCKET=daemon.path).bsub(RES_REQ=text)
    assert daemon.calls[0]["request"] == request_
    merged = done.parameters["LSB_SUB_RES_REQ"]
    assert text.removeprefix("select[").removesuffix("]") + " && qpu_fez>=2" in merged
    assert merged.endswith(" rusage[qpu_fez=2]")


def test_a_job_without_a_qpu_costs_no_call_and_is_not_changed(lsf: Any, daemon: TextDaemon) -> None:
    done = lsf(SOCKET=daemon.path).bsub(RES_REQ="select[mem>100] rusage[mem=100]", JOB_NAME="j", QUEUE="normal")
    assert (done.aborted, done.said, daemon.calls) == (False, "", [])
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[mem>100] rusage[mem=100]"


def test_a_name_that_only_looks_like_a_request_changes_nothing(lsf: Any, daemon: TextDaemon) -> None:
    done = lsf(SOCKET=daemon.path).bsub(JOB_NAME='my qpu_fez=1 "job"', PROJECT_NAME="qpu(fez)")
    assert (done.aborted, daemon.calls) == (False, [])


def test_a_profile_is_given_where_the_user_chose_none(lsf: Any, daemon: TextDaemon) -> None:
    cluster = lsf(SOCKET=daemon.path, PROFILE="qpu")
    assert cluster.bsub(a="qpu(fez)").parameters["LSB_SUB3_APP"] == "qpu"
    own = cluster.bsub(a="qpu(fez)", RES_REQ="a")
    assert own.parameters["LSB_SUB3_APP"] == "qpu"
    assert "LSB_SUB3_APP" not in cluster.bsub(JOB_NAME="j").parameters


def test_where_one_duration_holds_for_all_the_user_is_told_that_it_is_left_out(lsf: Any, daemon: TextDaemon) -> None:
    cluster = lsf(SOCKET=daemon.path, DURATIONS=0)
    done = cluster.bsub(a="qpu(fez)", RES_REQ="rusage[mem=1:duration=5]")
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[qpu_fez>=2] rusage[mem=1:qpu_fez=2]"
    assert "without it now" in done.said
    assert cluster.bsub(a="qpu(fez)", RES_REQ="rusage[mem=1]").said == ""


# ---- refusals
def test_a_refusal_is_on_the_terminal_and_ends_with_the_abort_value(lsf: Any, daemon: TextDaemon) -> None:
    daemon.answers[:] = [
        "verdict=reject\ncode=unknown-resource\nmessage=There%20is%20no%0Afaz.%20Did%20you%20mean%20fez\n"
    ]
    done = lsf(SOCKET=daemon.path).bsub(a="qpu(faz)")
    assert done.aborted
    assert done.said == "qtandem: There is no faz. Did you mean fez [unknown-resource]\n"


@pytest.mark.parametrize(
    "text", ["select[qpu_fez>=1 || qpu_x>=1]", "rusage[qpu_fez=1||qpu_x=1]", "select[(qpu_fez>=1]"]
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(lsf: Any, daemon: TextDaemon, text: str) -> None:
    done = lsf(SOCKET=daemon.path).bsub(RES_REQ=text)
    assert done.aborted
    assert done.said.startswith("qtandem: ")
    assert not daemon.calls


# ---- bmod
def test_bmod_with_a_new_requirement_is_judged_like_a_submission(lsf: Any, daemon: TextDaemon) -> None:
    done = lsf(SOCKET=daemon.path).bmod(RES_REQ="rusage[mem=1]", a="qpu(fez)")
    assert done.parameters["LSB_SUB_RES_REQ"] == "select[qpu_fez>=2] rusage[mem=1:qpu_fez=2]"
    daemon.answers[:] = ["verdict=reject\ncode=not-allowed\nmessage=no\n"]
    assert lsf(SOCKET=daemon.path).bmod(RES_REQ="rusage[qpu_fez=1]").aborted


def test_bmod_of_something_else_leaves_the_requirement_alone(lsf: Any, daemon: TextDaemon) -> None:
    cluster = lsf(SOCKET=daemon.path, PROFILE="qpu")
    done = cluster.bmod(JOB_NAME="qpu", environment={"QRMI_QPU_RESOURCES": "fez"})
    assert (done.aborted, daemon.calls) == (False, [])
    assert set(done.parameters) == {"LSB_SUB_MODIFY", "LSB_SUB_JOB_NAME"}
    assert "LSB_SUB3_APP" not in cluster.bmod(RES_REQ="rusage[qpu_fez=2]").parameters


def test_bmod_for_a_qpu_needs_the_whole_requirement(lsf: Any, daemon: TextDaemon) -> None:
    done = lsf(SOCKET=daemon.path).bmod(a="qpu(fez)")
    assert done.aborted
    assert "give -R too" in done.said


# ---- the daemon is away
@pytest.mark.parametrize(
    ("options", "requirement"),
    [
        ({"a": "qpu(fez)"}, "select[qpu_fez>=1] rusage[qpu_fez=1]"),
        ({"a": "qpu(ibm-x:2)"}, "select[qpu_ibm_x>=2] rusage[qpu_ibm_x=2]"),
        ({"RES_REQ": "rusage[qpu_fez=2]"}, "select[qpu_fez>=2] rusage[qpu_fez=2]"),
        ({"a": "qpu(fez:9)"}, None),
        ({"a": "qpu(fez/ibm-x)"}, None),
        ({"a": "qpu(any)"}, None),
        ({"a": "qpu(other)"}, None),
        ({"RES_REQ": "rusage[qpu_fez=1:qpu_ibm_x=1]"}, None),
        ({"RES_REQ": "rusage[qpu_fez=9]"}, None),
        ({"RES_REQ": "select[qpu_ready==1]"}, None),
        ({"a": "qpu(fez)", "RES_REQ": "rusage[qpu_ibm_x=1]"}, None),
    ],
)
def test_without_the_daemon_one_plain_known_name_passes(
    lsf: Any, hooks: Any, options: dict[str, str], requirement: str | None
) -> None:
    (hooks.folder / "names").write_text("fez\tfez\t2\nibm-x\tibm_x\t2\n")
    done = lsf().bsub(**options)
    if requirement is None:
        assert done.aborted
        assert done.said == "qtandem: qtandem does not answer just now; try again in a minute [daemon-unreachable]\n"
    else:
        assert done.parameters["LSB_SUB_RES_REQ"] == requirement


def test_jobs_without_a_qpu_pass_while_the_daemon_is_away(lsf: Any) -> None:
    assert not lsf().bsub(RES_REQ="rusage[mem=1]").aborted


def test_a_daemon_that_hangs_is_left_within_the_deadline(lsf: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="qt") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        cluster = lsf(single=True, SOCKET=f"{folder}/s", DEADLINE_MS=40)
        began = time.monotonic()
        done = cluster.bsub(a="qpu(a+b)")
        assert "does not answer" in done.said
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", ["", "HTTP/1.1 500 no\r\n\r\n", "garbage", "HTTP/1.1 200 OK\r\n\r\nverdict=admit\n"])
def test_an_answer_that_is_none_refuses(lsf: Any, answer: str) -> None:
    with tempfile.TemporaryDirectory(prefix="qt") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    peer.recv(65536)
                    peer.sendall(answer.encode())
                    peer.close()

        threading.Thread(target=serve, daemon=True).start()
        assert lsf(SOCKET=f"{folder}/s").bsub(a="qpu(a+b)").aborted


# ---- hostile and broken surroundings
def test_a_hook_that_is_broken_or_missing_refuses_jobs_with_a_qpu_alone(lsf: Any, hooks: Any) -> None:
    cluster = lsf()
    (hooks.folder / "qtandem_esub.py").write_text("raise SystemExit(3)\n")
    assert cluster.bsub(a="qpu(fez)").aborted
    (hooks.folder / "qtandem_esub.py").unlink()
    done = cluster.bsub(a="qpu(fez)")
    assert done.aborted
    assert "is missing on this host" in done.said
    assert not cluster.bsub(RES_REQ="rusage[mem=1]").aborted


VALUES = ['a"b', "a\\b", "$(touch PLACE)", "`touch PLACE`", 'a\nLSB_SUB_RES_REQ="rusage[qpu_fez=1]"', "x" * 5000, "ü"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("style", ["escaped", "raw"])
def test_hostile_values_are_data(lsf: Any, daemon: TextDaemon, tmp_path: Path, value: str, style: str) -> None:
    place = tmp_path / "touched"
    cluster = lsf(SOCKET=daemon.path)
    if style == "raw":
        cluster.quoted = str
    value = value.replace("PLACE", str(place))
    done = cluster.bsub(a="qpu(fez)", JOB_NAME=value, RES_REQ="select[a]", PROJECT_NAME=value.replace("\n", " "))
    assert not place.exists()
    if not done.aborted:
        assert "qpu_fez" in done.parameters["LSB_SUB_RES_REQ"]


def test_quotes_in_a_requirement_come_through(lsf: Any, daemon: TextDaemon) -> None:
    text = "select[type==\"any\" && hname!='a-b'] rusage[mem=1]"
    done = lsf(SOCKET=daemon.path).bsub(a="qpu(fez)", RES_REQ=text)
    assert done.parameters["LSB_SUB_RES_REQ"] == (
        "select[type==\"any\" && hname!='a-b' && qpu_fez>=2] rusage[mem=1:qpu_fez=2]"
    )


BROKEN = [
    ("select[a]\n  rusage[mem=1]", "select[a && qpu_fez>=2] rusage[mem=1:qpu_fez=2]"),
    ("select[a &&\n\tb]", "select[a && b && qpu_fez>=2] rusage[qpu_fez=2]"),
    ('select[type=="any"\n && b]', 'select[type=="any" && b && qpu_fez>=2] rusage[qpu_fez=2]'),
    # What would be a parameter of its own, if LSF took it for a line.
    (
        'select[a]\nLSB_SUB_QUEUE="night"',
        'select[a && qpu_fez>=2] LSB_SUB_QUEUE="night" rusage[qpu_fez=2]',
    ),
    ('select[a\nLSB_SUB_RES_REQ="]', None),
    ("select[a\x07]", None),
    ("select[a\x1b[31m]", None),
]


@pytest.mark.parametrize(("requirement", "written"), BROKEN)
def test_a_line_break_in_a_requirement_makes_no_line_of_its_own(
    lsf: Any, daemon: TextDaemon, requirement: str, written: str | None
) -> None:
    done = lsf(SOCKET=daemon.path).bsub(a="qpu(fez)", RES_REQ=requirement)
    assert done.aborted == (written is None), done.said
    assert set(done.parameters) == {"LSB_SUB_RES_REQ", "LSB_SUB_ADDITIONAL"}
    if written:
        assert done.parameters["LSB_SUB_RES_REQ"] == written
    assert "\x1b" not in done.said


def test_the_users_python_and_path_are_left_alone(lsf: Any, daemon: TextDaemon, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("grep", "python3", "sh"):
        (evil / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (evil / name).chmod(0o755)
    (evil / "socket.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    environment = {"PATH": str(evil), "PYTHONPATH": str(evil), "PYTHONSTARTUP": str(evil / "socket.py")}
    done = lsf(SOCKET=daemon.path).bsub(a="qpu(fez)", environment=environment)
    assert not done.aborted, done.said
    assert not (tmp_path / "ran").exists()


PRINTED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))


@given(st.dictionaries(st.from_regex(r"LSB_SUB_[A-Z_]{1,9}", fullmatch=True), PRINTED, max_size=5))
def test_parameters_are_read_as_they_were_written(values: dict[str, str]) -> None:
    # A backslash before a quote cannot be told from a quote that was escaped.
    values = {name: value.replace("\\", "/").strip() for name, value in values.items()}
    assert esub.parameters("".join(esub.line(name, value) for name, value in values.items())) == values


@given(st.text(max_size=200))
def test_no_file_of_parameters_breaks_it(text: str) -> None:
    esub.parameters(text)


def test_several_requirements_are_one(lsf: Any, daemon: TextDaemon, hooks: Any) -> None:
    text = 'LSB_SUB_RES_REQ="select[a]"\nLSB_SUB_RES_REQ="rusage[mem=1]"\n'
    assert esub.parameters(text) == {"LSB_SUB_RES_REQ": "select[a] rusage[mem=1]"}
    assert esub.parameters(text, again=True) == {"LSB_SUB_RES_REQ": "rusage[mem=1]"}


# ---- the site's own esub, where there is one for all
SITE = """#!/bin/sh
[ -z "$SITE_SAYS" ] || exit $SITE_SAYS
echo 'LSB_SUB_QUEUE="night"' >>"$LSB_SUB_MODIFY_FILE"
"""


def test_the_sites_own_esub_is_asked_first(lsf: Any, daemon: TextDaemon, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.write_text(SITE)
    site.chmod(0o755)
    cluster = lsf(single=True, SOCKET=daemon.path, SITE_ESUB=str(site))
    done = cluster.bsub(a="qpu(fez)", QUEUE="normal")
    assert (done.parameters["LSB_SUB_QUEUE"], daemon.calls[0]["partition"]) == ("night", "night")
    assert cluster.bsub(a="qpu(fez)", environment={"SITE_SAYS": ABORT}).aborted
    assert len(daemon.calls) == 1
    assert not cluster.bsub(a="qpu(fez)", environment={"SITE_SAYS": "3"}).aborted, "LSF takes 3 for consent"
    assert len(daemon.calls) == 2


def test_an_interactive_task_has_no_parameters(hooks: Any) -> None:
    """`lsrun` calls it without a file."""
    hooks.write("qtandem_esub.py")
    done = subprocess.run([hooks.write("esub.qpu")], env={}, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (0, b"")

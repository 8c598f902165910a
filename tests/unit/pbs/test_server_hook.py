"""queuejob, modifyjob, runjob and jobobit, as they run inside pbs_server."""

from __future__ import annotations

import gc
import itertools
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.wiretext import encode_text
from tests.fakes.pbs.module import Event, Job

ADMIT = {"verdict": "admit", "request": "fez", "native": {"l": "qpu_fez=1"}}
FEZ = {"qpu_fez": 1, "qpu": "fez"}


@pytest.mark.parametrize(
    ("resources", "variables", "request_"),
    [
        ({"qpu": "fez"}, "", "fez"),
        ({"qpu": "any:vendor=ibm:qubits=100"}, "", "any:vendor=ibm:qubits=100"),
        ({"quantum_resources": "fez,ibm-x"}, "", "fez,ibm-x"),
        ({"quantum_resources": "fez"}, "QRMI_QPU_RESOURCES=fez", "fez"),
        ({}, "A=b,QRMI_QPU_RESOURCES=fez\\,ibm-x", "fez,ibm-x"),
        ({}, "QRMI_QPU_RESOURCES=fez:ibm-x", "fez,ibm-x"),
        ({}, "QRMI_QPU_RESOURCES=fez:2", "fez:2"),
        ({"select": "2:ncpus=4:fez=1:mem=1gb"}, "", "fez"),
        ({"select": "1:ncpus=4:qpu_ibm_x=1+1:ncpus=2"}, "", "ibm-x"),
    ],
)
def test_each_form_is_rewritten_to_the_counted_resource(
    site: Any, daemon: Any, resources: dict[str, str], variables: str, request_: str
) -> None:
    daemon.answers["/v1/submit"] = ADMIT
    outcome = site.queue(resources, variables)
    assert (outcome.accepted, outcome.failed) == (True, "")
    [asked] = daemon.asked("/v1/submit")
    assert asked == {
        "manager": "pbs", "cluster": "lab", "user": asked["user"], "uid": str(os.getuid()), "account": "physics",
        "partition": "main", "request": request_,
    }  # fmt: skip
    written = outcome.job.Resource_List.written
    assert (written["qpu_fez"], written["qpu"]) == (1, "fez")
    if "select" in resources:
        assert "fez" not in str(written["select"])
        assert "ibm_x" not in str(written["select"])


def test_a_native_request_is_judged_too(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/submit"] = {"verdict": "reject", "message": "ann may not use fez", "code": "not-allowed"}
    outcome = site.queue({"qpu_fez": 2})
    assert (outcome.accepted, outcome.message) == (False, "qtandem: ann may not use fez [not-allowed]")
    assert daemon.asked("/v1/submit")[0]["native"] == "qpu_fez=2"


def test_forms_that_disagree_are_refused_without_asking(site: Any, daemon: Any) -> None:
    outcome = site.queue({"qpu": "fez", "quantum_resources": "ibm-x"})
    assert not outcome.accepted
    assert "-l qpu=fez, -l quantum_resources=ibm-x do not mean the same" in outcome.message
    assert daemon.calls == []


def test_a_job_without_a_qpu_costs_no_call(site: Any, daemon: Any) -> None:
    outcome = site.queue({"software": "matlab"}, "A=b")
    assert (outcome.accepted, outcome.job.Resource_List.written, daemon.calls) == (True, {}, [])
    assert site.server("RUNJOB", {}).accepted
    assert site.server("JOBOBIT", {}).accepted
    assert daemon.calls == []


def test_the_jobs_variables_are_never_written(site: Any, daemon: Any) -> None:
    """What PBS made of `qsub -v` stays byte for byte; a rewrite could open a second variable."""
    daemon.answers["/v1/submit"] = ADMIT
    outcome = site.queue({"qpu": "fez"}, 'A=a\\,QINJ=evil,B=x\\"y,C=tab\there')
    assert "Variable_List" not in outcome.job.written
    assert str(outcome.job.Variable_List) == 'A=a\\,QINJ=evil,B=x\\"y,C=tab\there'


def test_a_request_with_any_character_reaches_the_daemon_as_it_is(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/submit"] = lambda values: {"verdict": "reject", "message": values["request"]}
    for text in ("a\nverdict=admit", "a%0Ab", "q\"u'o,te", "a\\", "käse", "a=b&c"):
        outcome = site.queue({"qpu": text})
        assert (outcome.accepted, outcome.message) == (False, f"qtandem: {text} [bad-request]")


def test_words_of_others_steer_no_terminal_and_break_no_message(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/submit"] = {"verdict": "reject", "message": "the vendor says\n\x1b[2J\x00gone"}
    outcome = site.queue({"qpu": "fez"})
    assert (outcome.accepted, outcome.failed) == (False, "")
    assert outcome.message == "qtandem: the vendor says\n?[2J?gone [bad-request]"
    daemon.answers["/v1/submit"] = (403, {"message": "no\x1b[2J", "code": "not-allowed"})
    assert not any("\x1b" in line for line in site.queue({"qpu": "fez"}).log)


def test_a_dead_daemon_means_the_policy(site: Any) -> None:
    outcome = site.queue({"qpu": "fez"})
    assert (outcome.accepted, outcome.job.Resource_List.written) == (True, {"qpu_fez": 1, "qpu": "fez"})
    assert site.queue({"qpu_fez": 2}).job.Resource_List.written == {"qpu_fez": 2, "qpu": "fez:2"}
    for resources in ({"qpu": "any"}, {"qpu": "fez+ibm-x"}, {"qpu": "nope"}, {"qpu_fez": 3}):
        outcome = site.queue(resources)
        assert not outcome.accepted
        assert "try again" in outcome.message
    assert site.queue({"software": "matlab"}).accepted
    assert any("submit" in line for line in outcome.log)


def test_a_hung_daemon_costs_no_more_than_the_deadline(site: Any, silent: Callable[[], None]) -> None:
    outcomes = [site.queue({"qpu": "fez"}, DEADLINE_MS=40) for _ in range(5)]
    assert [outcome.accepted for outcome in outcomes] == [True] * 5
    # The machine may be busy; the best of a few shows what the hook itself takes.
    assert min(outcome.seconds for outcome in outcomes) < 0.06
    started = [site.server("RUNJOB", FEZ, {"DEADLINE_MS": 40}) for _ in range(3)]
    assert min(outcome.seconds for outcome in started) < 0.06
    ended = [site.server("JOBOBIT", FEZ, {"DEADLINE_MS": 40}, run_version=1) for _ in range(3)]
    assert min(outcome.seconds for outcome in ended) < 0.06
    assert all(outcome.accepted for outcome in ended)


def test_nothing_in_the_place_of_the_names_stops_the_server(site: Any) -> None:
    names = site.folder / "names"
    names.rename(site.folder / "kept")
    makes: list[Callable[[], object]] = [
        lambda: os.mkfifo(names),
        lambda: names.mkdir(),
        lambda: names.symlink_to(site.folder / "kept"),
        lambda: names.write_bytes(b"\xff\xfe\nfez\tfez\tmany\n"),
        lambda: None,
    ]
    opened = len(os.listdir("/proc/self/fd"))
    for make in makes:
        make()
        assert "try again" in site.queue({"qpu": "fez"}).message
        assert site.queue({"select": "2:ncpus=1"}).accepted
        if names.is_dir():
            names.rmdir()
        else:
            names.unlink(missing_ok=True)
    assert len(os.listdir("/proc/self/fd")) == opened


def test_an_unknown_resource_is_told_with_its_remedy(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/submit"] = {"verdict": "admit", "request": "new", "native": {"l": "qpu_new=1"}}
    outcome = site.queue({"qpu": "new"})
    assert (outcome.accepted, outcome.failed) == (False, "")
    assert "qtandem install pbs" in outcome.message


def test_a_fault_of_the_hook_stops_no_job_without_a_qpu(site: Any) -> None:
    hook = site.hook("server.py").replace("def wish(job):", "def wish(job):\n    raise KeyError('broken')")
    outcomes = []
    for resources in ({"software": "x"}, {"qpu": "fez"}):
        event = Event("QUEUEJOB", site.job(resources, ""), requestor="root")
        outcomes.append(site.pbs.run(hook, event))
    assert [outcome.accepted for outcome in outcomes] == [True, False]
    assert all("wish:" in outcome.log[0] and "KeyError" in outcome.log[0] for outcome in outcomes), "with the line"


def says_yes(server: socket.socket) -> None:
    """A daemon that admits whatever it is asked and keeps nothing, until its socket is closed."""
    body = encode_text({"verdict": "admit", "request": "fez", "native": {"l": "qpu_fez=1"}}).encode()
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + body)


@pytest.mark.parametrize("answers", [True, False])
def test_ten_thousand_calls_leave_memory_flat(site: Any, short: Path, answers: bool) -> None:
    """pbs_server keeps its interpreter for ever; all events of the hook, with a daemon and without."""
    code = compile(site.hook("server.py"), "<hook>", "exec")
    opened = len(os.listdir("/proc/self/fd"))
    if answers:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(short / "s"))
        server.listen(64)
        thread = threading.Thread(target=says_yes, args=(server,))
        thread.start()
    events = itertools.cycle(
        (("QUEUEJOB", {"qpu": "fez"}), ("RUNJOB", FEZ), ("RESVSUB", {"qpu": "fez"}), ("JOBOBIT", FEZ))
    )

    def once() -> None:
        name, resources = next(events)
        outcome = site.pbs.run(code, Event(name, site.job(resources, "7.pbs"), requestor="root"))
        assert outcome.accepted or (name == "RUNJOB" and not answers), outcome.message

    for _ in range(200):
        once()
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(2):
            for _ in range(5_000):
                once()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        # A leak of one small object a call would be some hundred thousand bytes.
        assert sizes[1] - sizes[0] < 100_000
    finally:
        tracemalloc.stop()
        if answers:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
            thread.join(10)
    assert len(os.listdir("/proc/self/fd")) == opened


# ---- resvsub
def test_a_reservation_of_a_qpu_is_judged_as_a_job_is(site: Any, daemon: Any) -> None:
    """Else anybody could take a QPU away from all others for a week, one that is not for them too."""
    daemon.answers["/v1/submit"] = {"verdict": "reject", "message": "ann may not use fez", "code": "not-allowed"}
    for resources in ({"qpu": "fez"}, {"qpu_fez": 1}, {"select": "1:ncpus=1:fez=1"}):
        outcome = site.reserve(resources)
        assert (outcome.accepted, outcome.message) == (False, "qtandem: ann may not use fez [not-allowed]")
    daemon.answers["/v1/submit"] = ADMIT
    outcome = site.reserve({"qpu": "fez"})
    assert (outcome.accepted, outcome.job.Resource_List.written) == (True, {"qpu_fez": 1, "qpu": "fez"})
    assert daemon.asked("/v1/submit")[-1]["uid"] == str(os.getuid())


def test_other_reservations_pass_without_a_call(site: Any, daemon: Any) -> None:
    assert site.reserve({"select": "2:ncpus=4"}).accepted
    assert daemon.calls == []


def test_a_fault_of_the_hook_stops_no_reservation_without_a_qpu(site: Any) -> None:
    hook = site.hook("server.py").replace("def wish(job):", "def wish(job):\n    raise KeyError('broken')")
    made = [Event("RESVSUB", site.job(resources, ""), requestor="root") for resources in ({"ncpus": 1}, {"qpu": "fez"})]
    assert [site.pbs.run(hook, event).accepted for event in made] == [True, False]


# ---- modifyjob
def test_other_modifications_pass_without_a_call(site: Any, daemon: Any) -> None:
    assert site.modify({"walltime": "01:00:00"}, FEZ).accepted
    assert daemon.calls == []


def test_a_new_request_replaces_the_old_one(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/submit"] = {"verdict": "admit", "request": "ibm-x", "native": {"l": "qpu_ibm_x=1"}}
    outcome = site.modify({"qpu": "ibm-x"}, FEZ, job_state="Q")
    assert outcome.accepted
    assert outcome.job.Resource_List.written == {"qpu_fez": 0, "qpu_ibm_x": 1, "qpu": "ibm-x"}
    assert daemon.asked("/v1/submit")[0]["job"] == "7"


@pytest.mark.parametrize("changes", [{"qpu_fez": 0}, {"qpu_ibm_x": 1}, {"qpu": ""}, {"select": "1:fez=1"}])
def test_nobody_slips_past_the_verdict_by_qalter(site: Any, daemon: Any, changes: dict[str, Any]) -> None:
    outcome = site.modify(changes, FEZ, job_state="Q")
    assert not outcome.accepted
    assert daemon.calls == []


def test_a_job_that_has_begun_keeps_its_qpu(site: Any, daemon: Any) -> None:
    assert "has begun" in site.modify({"qpu": "ibm-x"}, FEZ, job_state="R").message


# ---- runjob
def test_a_job_is_reserved_for_before_its_nodes_are_taken(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/reserve"] = {"verdict": "admit"}
    fields = {"run_version": 2, "exec_vnode": "(c1:ncpus=1)+(c2[0]:ncpus=1+c2[1]:ncpus=1)", "queue": "main"}
    outcome = site.server("RUNJOB", {**FEZ, "walltime": "01:00:05"}, **fields)
    assert (outcome.accepted, outcome.job.written) == (True, {})
    [asked] = daemon.asked("/v1/reserve")
    assert (asked["job"], asked["attempt"], asked["nodes"]) == ("7", "3", "c1,c2")
    assert (asked["native"], asked["time_limit_s"], asked["uid"]) == ("qpu_fez=1", "3605", str(os.getuid()))


def test_a_first_run_and_an_element_of_an_array(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/reserve"] = {"verdict": "admit"}
    site.server("RUNJOB", FEZ, id="34[12].pbs.site")
    [asked] = daemon.asked("/v1/reserve")
    assert (asked["job"], asked["index"], asked["attempt"]) == ("34", "12", "1")


def test_qpus_stay_in_the_order_of_the_request(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/reserve"] = {"verdict": "admit"}
    both = {"qpu_fez": 1, "qpu_ibm_x": 2}
    for request, native in (("ibm-x:2+fez", "qpu_ibm_x=2,qpu_fez=1"), ("fez+ibm-x:2", "qpu_fez=1,qpu_ibm_x=2")):
        site.server("RUNJOB", {**both, "qpu": request})
        assert daemon.asked("/v1/reserve")[-1]["native"] == native
    site.server("RUNJOB", both)
    assert daemon.asked("/v1/reserve")[-1]["native"] == "qpu_fez=1,qpu_ibm_x=2"


def test_a_refused_start_is_backed_off_by_pbs_itself(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/reserve"] = {
        "verdict": "hold",
        "message": "fez is closed [not-available]; next try in 30 s",
        "code": "not-available",
        "retry_after": 30.0,
    }
    now = time.time()
    outcome = site.server("RUNJOB", FEZ)
    assert (outcome.accepted, outcome.message) == (False, "qtandem: fez is closed [not-available]; next try in 30 s")
    assert now + 30 <= outcome.job.written["Execution_Time"] <= now + 35
    assert "Hold_Types" not in outcome.job.written


def test_a_start_that_was_refused_often_is_held(site: Any, daemon: Any) -> None:
    message = "qtandem: fez is closed (refused 5 times); the job is held"
    daemon.answers["/v1/reserve"] = {"verdict": "hold", "message": message, "retry_after": 0.0}
    outcome = site.server("RUNJOB", FEZ)
    assert (outcome.accepted, outcome.message) == (False, message)
    assert str(outcome.job.written["Hold_Types"]) == "s"


@pytest.mark.parametrize("answer", [None, (503, {"code": "no-worker", "message": "x"}), (403, {"message": "no"})])
def test_a_start_without_an_answer_waits_a_minute(site: Any, daemon: Any, answer: Any) -> None:
    daemon.answers["/v1/reserve"] = answer
    outcome = site.server("RUNJOB", FEZ)
    assert not outcome.accepted
    assert outcome.job.written["Execution_Time"] >= time.time() + 59
    assert "next try in 60 s" in outcome.message


@pytest.mark.parametrize("answer", [None, {"verdict": "hold", "retry_after": 30.0}, {"verdict": "hold"}])
def test_an_element_of_an_array_is_never_refused_here(site: Any, daemon: Any, answer: Any) -> None:
    """pbs_sched would ask for it again and again in one cycle, and pbs_server lose it if it were put off."""
    daemon.answers["/v1/reserve"] = answer
    outcome = site.server("RUNJOB", FEZ, id="8[3].pbs")
    assert (outcome.accepted, outcome.job.written) == (True, {})
    assert "goes on to its host" in outcome.log[-1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"enabled": "false"}, "switched off"),
        ({"event": "execjob_begin,execjob_end"}, "not asked for execjob_launch"),
        ({"event": "execjob_launch"}, "not asked for execjob_begin"),
        ({"flags": "q"}, "qpu_fez has lost its flag m"),
        ({"flags": "nh"}, "qpu_fez has lost its flag m"),
    ],
)
def test_no_job_starts_whose_hosts_would_not_ask_for_its_lease(
    site: Any, daemon: Any, changes: dict[str, str], word: str
) -> None:
    daemon.answers["/v1/reserve"] = {"verdict": "admit"}
    site.define(**changes)
    outcome = site.server("RUNJOB", FEZ)
    assert (outcome.accepted, daemon.calls) == (False, [])
    assert word in outcome.message
    assert "qtandem install pbs" in outcome.message
    assert outcome.job.written["Execution_Time"] >= time.time() + 59
    assert site.server("RUNJOB", {"ncpus": 1}).accepted
    site.define(enabled="true")
    assert site.server("RUNJOB", FEZ).accepted


def test_a_node_hook_that_is_gone_stops_jobs_with_a_qpu(site: Any, daemon: Any) -> None:
    (site.folder / "priv" / "hooks" / "qtandem_node.HK").unlink()
    assert "not to be found" in site.server("RUNJOB", FEZ).message


# ---- jobobit
def test_the_end_of_a_run_is_told_with_its_version(site: Any, daemon: Any) -> None:
    daemon.answers["/v1/end"] = {"ended": 1}
    assert site.server("JOBOBIT", FEZ, run_version=2, Exit_status=-20).accepted
    [asked] = daemon.asked("/v1/end")
    assert asked == {"manager": "pbs", "cluster": "lab", "job": "7", "attempt": "2", "exit_code": "-20"}


def test_the_parent_of_an_array_ends_nothing(site: Any, daemon: Any) -> None:
    assert site.server("JOBOBIT", FEZ, id="34[].pbs").accepted
    assert daemon.calls == []


def test_hooks_leave_no_trace_in_the_interpreter(site: Any, daemon: Any) -> None:
    import sys

    daemon.answers["/v1/submit"] = ADMIT
    site.queue({"qpu": "fez"})
    before = set(sys.modules), list(sys.path), dict(os.environ)
    site.queue({"qpu": "fez"})
    assert (set(sys.modules), list(sys.path), dict(os.environ)) == before


def test_other_events_pass(site: Any, daemon: Any) -> None:
    event = Event("EXECJOB_PROLOGUE", Job("7.pbs", site.pbs.list(FEZ)))
    assert site.pbs.run(site.hook("server.py"), event).accepted

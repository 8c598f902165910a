"""execjob_* events, each in a process of its own on the host of a job."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtandem.core.wiretext import encode_text
from tests.fakes.pbs.quoting import quoted
from tests.fakes.pbs.values import given_to_the_job, pbs_env

FEZ = {"qpu_fez": 1}
ENV = {"QRMI_JOB_QPU_RESOURCES": "fez,ibm_x", "QTANDEM_RUN": "pbs:lab:7.1", "QTANDEM_SOCKET": "/run/q.sock"}
RUN = "/v1/runs/pbs:lab:7.1/environment"


@pytest.fixture
def admitting(daemon: Any) -> Any:
    daemon.answers["/v1/start"] = {"verdict": "admit", "run": "pbs:lab:7.1"}
    daemon.answers["/v1/end"] = {"ended": 1}
    daemon.answers[RUN] = {"run": "pbs:lab:7.1", "uid": 1000, "env": ENV}
    return daemon


def kept(site: Any) -> list[str]:
    return sorted(path.name for path in (site.folder / "runs").glob("*"))


def test_a_run_acquires_where_it_begins(site: Any, admitting: Any) -> None:
    outcome = site.node("EXECJOB_BEGIN", FEZ)
    assert (outcome.accepted, outcome.log) == (True, [])
    [asked] = admitting.asked("/v1/start")
    assert (asked["job"], asked["attempt"]) == ("7", "1")
    assert kept(site) == ["pbs-lab-7.1"]
    file = site.folder / "runs" / "pbs-lab-7.1" / "environment"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "Variable_List" not in outcome.job.written


def test_only_the_first_host_of_a_run_speaks_for_it(site: Any, admitting: Any) -> None:
    for event in ("EXECJOB_BEGIN", "EXECJOB_END", "EXECJOB_POSTSUSPEND"):
        assert site.node(event, FEZ, mother_superior=False).accepted
    assert [call.path for call in admitting.calls] == []


def test_a_job_without_a_qpu_costs_nothing(site: Any, admitting: Any) -> None:
    for event in ("EXECJOB_BEGIN", "EXECJOB_LAUNCH", "EXECJOB_END", "EXECJOB_ABORT"):
        assert site.node(event, {}).accepted
    assert admitting.calls == []


def test_a_wait_is_waited_out(site: Any, admitting: Any) -> None:
    admitting.answers["/v1/start"] = [{"verdict": "wait"}, {"verdict": "wait"}, {"verdict": "admit", "run": "x"}]
    assert site.node("EXECJOB_BEGIN", FEZ).accepted
    assert len(admitting.asked("/v1/start")) == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"verdict": "hold", "message": "fez is closed; next try in 15 s", "retry_after": 15.0}, "fez is closed"),
        ({"verdict": "wait"}, "no slot within"),
        ((403, {"message": "uid 0 may not report start", "code": "not-authorised"}), "may not report"),
        ((503, {"message": "PBS does not answer", "code": "manager-unreachable"}), "does not answer"),
        ({"verdict": "admit", "run": "x", "retry_after": "no number"}, None),
    ],
)
def test_a_start_that_fails_leaves_no_lease(site: Any, admitting: Any, answer: Any, told: str | None) -> None:
    admitting.answers["/v1/start"] = answer
    outcome = site.node("EXECJOB_BEGIN", FEZ)
    if told is None:
        assert outcome.accepted
        return
    assert not outcome.accepted
    assert told in outcome.message
    assert [asked["attempt"] for asked in admitting.asked("/v1/end")] == ["1"]
    assert kept(site) == []


def test_a_refused_element_of_an_array_does_not_come_back_at_once(site: Any, admitting: Any) -> None:
    admitting.answers["/v1/start"] = {"verdict": "hold", "message": "fez is closed"}
    outcome = site.node("EXECJOB_BEGIN", FEZ, id="8[3].pbs")
    assert (outcome.accepted, outcome.seconds >= 1.0) == (False, True)
    assert site.node("EXECJOB_BEGIN", FEZ).seconds < 1.0


def test_a_fault_of_the_hook_leaves_no_lease(site: Any, admitting: Any) -> None:
    admitting.answers["/v1/start"] = {"verdict": "wait", "retry_after": "soon"}
    outcome = site.node("EXECJOB_BEGIN", FEZ)
    assert (outcome.accepted, outcome.failed) == (False, "")
    assert len(admitting.asked("/v1/end")) == 1
    assert "start:" in outcome.log[0]


def test_tasks_get_the_environment_by_one_call_a_host(site: Any, admitting: Any) -> None:
    site.node("EXECJOB_BEGIN", FEZ)
    calls = len(admitting.calls)
    for _ in range(3):
        outcome = site.node("EXECJOB_LAUNCH", FEZ, env="A=a\\,b,PBS_JOBID=7.pbs,Z=ends\\,")
        assert outcome.accepted
        assert outcome.environment == {"A": "a,b", "PBS_JOBID": "7.pbs", "Z": "ends,", **ENV}
        assert "Variable_List" not in outcome.job.written
    assert len(admitting.calls) == calls


def test_a_host_that_only_joined_fetches_it(site: Any, admitting: Any) -> None:
    outcome = site.node("EXECJOB_LAUNCH", FEZ, mother_superior=False)
    assert outcome.environment == ENV
    assert len(admitting.asked(RUN)) == 1
    assert site.node("EXECJOB_LAUNCH", FEZ, mother_superior=False).environment == ENV
    assert len(admitting.asked(RUN)) == 1


def test_a_task_without_its_environment_does_not_run(site: Any, daemon: Any) -> None:
    outcome = site.node("EXECJOB_LAUNCH", FEZ)
    assert not outcome.accepted
    assert "no open run" in outcome.message
    daemon.close()
    assert "has no environment" in site.node("EXECJOB_LAUNCH", FEZ).message


def test_what_a_user_put_there_is_not_read(site: Any, admitting: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET=x\n")
    place = site.folder / "runs" / "pbs-lab-7.1"
    place.mkdir(parents=True)
    (place / "environment").symlink_to(secret)
    assert site.node("EXECJOB_LAUNCH", FEZ).environment == ENV


HOSTILE = [
    "a,QINJ=evil",
    'q"q', "q'q", "a\\", "\\\\", 'a\\"b', "a=b=c", "line\nbreak", "tab\t", " lead", "trail ", "%41;$(x)`",
    "", "ends,", ",", '{"json": "a,b"}', "käse ☃", "a" * 5000, "\\n", "a\\b", "\x01", "''\"\"",
]  # fmt: skip


def carried(site: Any, daemon: Any, values: dict[str, str]) -> Any:
    daemon.answers[RUN] = {"env": {**ENV, **values}}
    outcome = site.node("EXECJOB_LAUNCH", FEZ, env="A=b")
    site.node("EXECJOB_END", FEZ)
    return outcome


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_reaches_the_job_byte_for_byte(site: Any, admitting: Any, value: str) -> None:
    outcome = carried(site, admitting, {"AKEY": value, "ZKEY": value})
    assert outcome.accepted
    assert outcome.environment == {"A": "b", **ENV, "AKEY": value, "ZKEY": value}


@pytest.mark.parametrize("value", ["a\\,b", "a\x00b", "\\,QINJ=evil"])
def test_what_pbs_cannot_carry_is_refused_with_the_reason(site: Any, admitting: Any, value: str) -> None:
    outcome = carried(site, admitting, {"KEY": value})
    assert not outcome.accepted
    assert "KEY cannot be given" in outcome.message


@given(value=st.text(alphabet=st.sampled_from("\\,\"'=\n aé"), max_size=8))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_value_opens_another_variable(value: str) -> None:
    env = pbs_env("A=b", generic=True)
    try:
        env["KEY"] = quoted(value)
    except ValueError:
        assert "\\," in value
        return
    env["LAST"] = "x"
    assert given_to_the_job(str(env)) == {"A": "b", "KEY": value, "LAST": "x"}


def hidden(site: Any, daemon: Any, value: str, **fields: Any) -> Any:
    daemon.answers[RUN] = {"env": {**ENV, "fez_KEY": value}, "secret": ["fez_KEY"]}
    return site.node("EXECJOB_LAUNCH", FEZ, env="A=b", **fields)


@pytest.mark.parametrize("value", [*HOSTILE, "a\\,b", "\\,QINJ=evil"])
def test_a_secret_goes_by_a_file_since_pbs_logs_what_hooks_set(site: Any, admitting: Any, value: str) -> None:
    outcome = hidden(site, admitting, value)
    assert outcome.accepted
    assert outcome.environment == {"A": "b", **ENV}
    argv, progname = outcome.event.argv, outcome.event.progname
    assert value not in argv or not value
    assert not any("\n" in word for word in argv), "PBS takes arguments line by line"
    show = "import json,os;print(json.dumps([os.environ.get('fez_KEY'),os.environ.get('A')]))"
    command = [*argv[:-1], "me", "-c", show]
    command[5] = sys.executable
    said = subprocess.run(command, executable=progname, env={"A": "b"}, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [value, "b"]
    assert site.node("EXECJOB_END", FEZ).accepted
    assert kept(site) == []


def test_the_task_is_what_it_would_be_without_the_file(site: Any, admitting: Any) -> None:
    argv = hidden(site, admitting, "x").event.argv
    assert argv[5:] == ["/bin/sh", "sh"]
    again = hidden(site, admitting, "x").event.argv
    assert again == argv
    assert hidden(site, admitting, "x", argv=[]).event.argv[5:] == ["/bin/sh", "-sh"], (
        "MOM names the login shell itself"
    )
    assert len(admitting.asked(RUN)) == 1
    [place] = [path for path in (site.folder / "runs").iterdir() if path.name.endswith("-hidden")]
    assert stat.S_IMODE((place / "environment").stat().st_mode) == 0o600
    site.node("EXECJOB_END", FEZ)
    assert "fez_KEY cannot be given" in hidden(site, admitting, "a\x00b").message


def test_tasks_that_start_side_by_side_take_turns_at_the_file(site: Any, admitting: Any) -> None:
    hidden(site, admitting, "x")
    runs = os.open(site.folder / "runs", os.O_RDONLY)
    fcntl.flock(runs, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(hidden, site, admitting, "x") for _ in range(2)]
        assert not wait(others, timeout=0.3).done, "another task is in the middle of it"
        os.close(runs)
        assert all(each.result().accepted for each in others)


def test_a_bad_name_is_left_out(site: Any, admitting: Any) -> None:
    outcome = carried(site, admitting, {"BAD,NAME": "x", "BAD NAME": "z"})
    assert outcome.environment == {"A": "b", **ENV}


def test_the_end_of_a_run_is_told_once_and_its_file_goes(site: Any, admitting: Any) -> None:
    site.node("EXECJOB_BEGIN", FEZ)
    assert site.node("EXECJOB_END", FEZ, Exit_status=271).accepted
    assert admitting.asked("/v1/end") == [
        {"manager": "pbs", "cluster": "lab", "job": "7", "attempt": "1", "exit_code": "271"}
    ]
    assert kept(site) == []


def test_a_late_end_names_its_own_run(site: Any, admitting: Any) -> None:
    """MOM comes back when the job runs elsewhere as its version 2."""
    site.node("EXECJOB_END", FEZ, run_version=1, Exit_status=-4)
    assert admitting.asked("/v1/end")[0]["attempt"] == "1"


def test_an_end_that_nobody_hears_is_no_error(site: Any, short: Path) -> None:
    outcome = site.node("EXECJOB_ABORT", FEZ)
    assert outcome.accepted
    assert "was not reported" in outcome.log[0]


def test_elements_of_an_array_keep_apart(site: Any, admitting: Any) -> None:
    for index in (1, 2):
        admitting.answers[f"/v1/runs/pbs:lab:34_{index}.1/environment"] = {"env": {"I": str(index)}}
        site.node("EXECJOB_BEGIN", FEZ, id=f"34[{index}].pbs")
    assert [asked["index"] for asked in admitting.asked("/v1/start")] == ["1", "2"]
    assert site.node("EXECJOB_LAUNCH", FEZ, id="34[2].pbs").environment == {"I": "2"}


def test_a_suspended_job_keeps_its_qpu_unless_the_site_says_otherwise(site: Any, admitting: Any) -> None:
    for event in ("EXECJOB_POSTSUSPEND", "EXECJOB_PRERESUME"):
        assert site.node(event, FEZ).accepted
    assert admitting.calls == []
    give_back = {"constants": {"GIVE_BACK_ON_SUSPEND": "yes"}}
    assert site.node("EXECJOB_POSTSUSPEND", FEZ, **give_back).accepted
    assert len(admitting.asked("/v1/end")) == 1
    assert site.node("EXECJOB_PRERESUME", FEZ, **give_back).accepted
    admitting.answers["/v1/start"] = {"verdict": "hold", "message": "fez is closed"}
    assert site.node("EXECJOB_PRERESUME", FEZ, **give_back).message == "qtandem: fez is closed"


def test_a_job_that_resumes_soon_waits_until_its_end_is_past(site: Any, admitting: Any) -> None:
    """The daemon takes a start right after an end for one that was overtaken; of a start that is so, nothing comes."""
    ended = {"verdict": "hold", "code": "run-ended", "message": "it has ended", "retry_after": 0.1}
    admitting.answers["/v1/start"] = [ended, ended, {"verdict": "admit", "run": "pbs:lab:7.1"}]
    assert site.node("EXECJOB_PRERESUME", FEZ, constants={"GIVE_BACK_ON_SUSPEND": "yes"}).accepted
    assert len(admitting.asked("/v1/start")) == 3
    admitting.answers["/v1/start"] = ended
    assert not site.node("EXECJOB_BEGIN", FEZ).accepted
    assert len(admitting.asked("/v1/start")) == 4


def test_a_secret_stands_in_no_log(site: Any, admitting: Any) -> None:
    outcome = carried(site, admitting, {"fez_QRMI_KEY": "s3cret\\,x"})
    assert "s3cret" not in outcome.message + "".join(outcome.log)
    assert "s3cret" not in encode_text({"m": outcome.message})
    assert os.listdir(site.folder / "runs") == []

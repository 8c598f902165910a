"""The fake PBS has the odd ways of the real one: what was measured is held here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.pbs.module import Event, FakePbs, Job, Outcome
from tests.fakes.pbs.values import given_to_the_job, pbs_env


def run(pbs: FakePbs, text: str, event: str = "QUEUEJOB", **fields: Any) -> Outcome:
    job = Job("7.pbs", pbs.list({"select": "1:ncpus=1", "walltime": "01:00:00"}), **fields)
    return pbs.run(f"import pbs, sys, time\ne = pbs.event()\nj = e.job\n{text}\n", Event(event, job))


def test_an_exception_refuses_and_sys_exit_accepts(pbs: FakePbs) -> None:
    failed = run(pbs, "1/0")
    assert (failed.accepted, "encountered an exception" in failed.message) == (False, True)
    assert "line" not in failed.log[0], "PBS logs no line numbers"
    assert run(pbs, "sys.exit(3)").accepted
    assert run(pbs, "pass").accepted
    assert run(pbs, 'e.reject("50% \\n \\"no\\"")').message == '50% \n "no"'


def test_an_alarm_ends_a_hook_that_sleeps_or_spins(pbs: FakePbs) -> None:
    for text in ("time.sleep(5)", "while True: pass"):
        job = Job("7.pbs", pbs.list())
        outcome = pbs.run(f"import pbs, time\n{text}\n", Event("QUEUEJOB", job), alarm_s=0.05)
        assert (outcome.accepted, "alarm call" in outcome.message) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        'assert (j.Resource_List["select"] == "1:ncpus=1") is False',
        'assert str(j.Resource_List["walltime"]) == "01:00:00"',
        'assert j.Resource_List["ncpus"] is None',
        "try: e.user\nexcept Exception as error: assert type(error).__name__ == 'EventIncompatibleError'\nelse: 1/0",
        "assert sorted(pbs.server().vnode(name).name for name in ('c1', 'c2')) == ['c1', 'c2']",
    ],
)
def test_what_holds_of_values(pbs: FakePbs, text: str) -> None:
    assert run(pbs, text).failed == ""


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ('j.Resource_List["qpu_unknown"] = 1', "QUEUEJOB"),
        ('j.Resource_List["qpu_fez"] = "1"', "QUEUEJOB"),
        ("j.nonsense = 1", "QUEUEJOB"),
        ('j.comment = "x"', "RUNJOB"),
        ('j.Hold_Types = "s"', "RUNJOB"),
        ('j.Variable_List["PBS_JOBID"] = "x"', "QUEUEJOB"),
        ("e.type = 1", "QUEUEJOB"),
    ],
)
def test_what_cannot_be_written(pbs: FakePbs, text: str, event: str) -> None:
    assert run(pbs, text, event, Variable_List=pbs_env("A=b")).failed


def test_unescaped_values_are_cut_and_open_variables() -> None:
    env = pbs_env("A=b")
    env["X"] = "a,QINJ=evil"
    assert given_to_the_job(str(env)) == {"A": "b", "X": "a", "QINJ": "evil"}
    assert pbs_env("A=a\\,b")["A"] == "a\\,b", "read back escaped"
    assert given_to_the_job("A=a\\,b,C=d") == {"A": "a,b", "C": "d"}


def test_the_last_comma_is_lost() -> None:
    env = pbs_env()
    env["X"] = "a\\,"
    assert str(env) == "X=a\\"


def test_the_hook_does_the_same_in_pbs_python(site: Any, tmp_path: Path) -> None:
    """The same hook, offline in a real PBS where there is one; the daemon is away in both."""
    program = Path(os.environ.get("QTANDEM_PBS_PREFIX", "/nonexistent")) / "bin" / "pbs_python"
    if not program.exists():
        pytest.skip("QTANDEM_PBS_PREFIX names no PBS with a pbs_python")
    hook, definitions = tmp_path / "hook.py", tmp_path / "resourcedef"
    hook.write_text(site.hook("server.py"))
    definitions.write_text("qpu type=string\nquantum_resources type=string\nqpu_fez type=long flag=q\n")
    for request, accepted in (("fez", True), ("any", False)):
        given, out = tmp_path / "in", tmp_path / "out"
        given.write_text(
            "pbs.event().type=queuejob\npbs.event().hook_name=qtandem_server\npbs.event().hook_type=site\n"
            "pbs.event().requestor=root\npbs.event().requestor_host=pbs\npbs.event().user=pbsadmin\n"
            "pbs.event().alarm=5\npbs.event().job.id=1.pbs\npbs.event().job.Resource_List[select]=1:ncpus=1\n"
            f"pbs.event().job.Resource_List[qpu]={request}\npbs.event().job.Variable_List=A=b\n"
        )
        argv = [program, "--hook", "-i", given, "-o", out, "-l", tmp_path / "log", "-r", definitions, hook]
        subprocess.run(argv, check=True, timeout=30, env={"PATH": "/bin:/usr/bin"})
        ours = site.queue({"qpu": request})
        assert (f"pbs.event().accept={accepted}" in out.read_text(), ours.accepted) == (True, accepted)
        assert ("Resource_List[qpu_fez,long]=1" in out.read_text()) is accepted

"""What LSF prints, as recorded from OpenLava 4.0 and as IBM documents it for Spectrum LSF 10.1."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtandem.core.managers import Grant, JobState
from qtandem.lsf import records, requirements
from qtandem.lsf.records import Record

RECORDED = Path(__file__).parents[2] / "fakes" / "lsf" / "recorded"
NATIVES = ["east", "south"]


def recorded(name: str) -> str:
    return (RECORDED / f"{name}-openlava-4.0.txt").read_text()


def test_the_texts_of_an_older_form() -> None:
    found = {(one.job, one.index): one for one in records.from_texts(recorded("bjobs-w"), recorded("bjobs-l"))}
    east = "select[qpu_east>=1] rusage[qpu_east=1]"
    south = "select[qpu_south>=1] rusage[qpu_south=1]"
    assert found == {
        ("553", 0): Record("553", 0, "alice", "USUSP", "main", ("c2",), "physics", east),
        ("555", 1): Record("555", 1, "alice", "RUN", "main", ("c2",), "default", south, 600),
        ("555", 2): Record("555", 2, "alice", "RUN", "main", ("c2",), "default", south, 600),
        ("556", 0): Record("556", 0, "alice", "RUN", "main", ("c2", "c1"), "default", "span[ptile=1]"),
        ("554", 0): Record(
            "554", 0, "alice", "PSUSP", "main", (), "physics", east,
            reason="The job was suspended by the user while pending: 1 host",
        ),
        # Named `n>, User <root>, Project <physics`: whose it is stands fast, its project does not.
        ("557", 0): Record(
            "557", 0, "alice", "PEND", "main", (), "chem", east,
            reason="Job's resource requirements not satisfied: 2 hosts",
        ),
        # `echo x[3]` is no element of an array; its output file has `Requested Resources <…>` in its name.
        ("558", 0): Record(
            "558", 0, "alice", "PEND", "main", (), "default", east,
            reason="Job's resource requirements not satisfied: 2 hosts",
        ),
    }  # fmt: skip
    assert [one.state for one in found.values()][:1] == [JobState.SUSPENDED]


def test_values_of_indices() -> None:
    assert records.shared_values(recorded("lsload-s"), NATIVES) == {"east": 1, "south": 2}
    assert records.shared_values(recorded("bhosts-s"), NATIVES) == {"east": 0, "south": 0}, (
        "less what jobs have reserved"
    )


@pytest.mark.parametrize("value", ["-", "", "x", "-1"])
def test_a_value_that_is_none_is_left_out(value: str) -> None:
    assert records.shared_values(f"RESOURCE VALUE LOCATION\nqpu_east {value} c1\n", NATIVES) == {}


@pytest.mark.parametrize(
    ("wide", "long"),
    [
        ("garbage", ""),
        ("JOBID USER\n1 root\n", ""),
        (recorded("bjobs-w"), ""),
        (recorded("bjobs-w"), recorded("bjobs-l") + "-" * 78 + "\n" + recorded("bjobs-l")),
        (recorded("bjobs-w") + recorded("bjobs-w").splitlines()[1] + "\n", recorded("bjobs-l")),
    ],
)
def test_texts_that_do_not_fit_are_no_answer(wide: str, long: str) -> None:
    with pytest.raises(ValueError, match=r"bjobs|begins"):
        records.from_texts(wide, long)


def test_no_jobs_are_none() -> None:
    assert records.from_texts("", "") == []


ROW = {
    "JOBID": "101", "JOBINDEX": "3", "USER": "alice", "STAT": "RUN", "QUEUE": "normal", "EXEC_HOST": "2*c1:c2",
    "PROJ_NAME": "physics", "RUNTIMELIMIT": "10.0/c1", "RESREQ": "rusage[qpu_east=1]",
    "COMBINED_RESREQ": "select[qpu_east>=1] rusage[qpu_east=1]",
    "EFFECTIVE_RESREQ": "select[type == any && qpu_east >= 1 ] rusage[qpu_east=1.00]", "PEND_REASON": "-",
}  # fmt: skip


def test_the_json_that_ibm_documents() -> None:
    text = json.dumps({"COMMAND": "bjobs", "JOBS": 2, "RECORDS": [ROW, {"ERROR": "Job <9> is not found"}]})
    [record] = records.from_json(text)
    assert record == Record("101", 3, "alice", "RUN", "normal", ("c1", "c2"), "physics", ROW["EFFECTIVE_RESREQ"], 600)
    assert requirements.read_request(record.requirement, {"east": "east"}) == (Grant("east", 1),)


@pytest.mark.parametrize(
    ("text", "grants"),
    [
        ("select[qpu_east>=2] rusage[qpu_east=2:mem=3]", (Grant("e", 2),)),
        ("select[qpu_east >= 1 && type == any] rusage[mem=10:duration=1m,qpu_east=1.00]", (Grant("e", 1),)),
        ("rusage[qpu_east=1:mem=10:duration=0:decay=0]", (Grant("e", 1),)),
        ("rusage[mem=1,qpu_east=1||mem=2:qpu_east=1] rusage[qpu_south=3/job]", (Grant("e", 1), Grant("s", 3))),
        ("{select[a] rusage[qpu_east=1]} || {rusage[qpu_east=1]}@10", (Grant("e", 1),)),
        ("1*{rusage[qpu_east=1]} + 2*{span[hosts=1]}", (Grant("e", 1),)),
        ("select[qpu_east>=1]", ()),
        ("select[qpu_east>=1] order[qpu_east] rusage[mem=1]", ()),
        ("rusage[qpu_east=1:duration=1]", ()),
        ("rusage[qpu_east=1 || mem=1]", ()),
        ("{rusage[qpu_east=1]} || {select[qpu_east>=1]}", ()),
        ("{rusage[mem=1]}@5 || 2*{rusage[qpu_east=1]}", ()),
        ("select[type=='rusage[qpu_east=1]']", ()),
        ("xrusage[qpu_east=1]", ()),
        ("", ()),
    ],
)
def test_what_lsf_reserves_is_what_a_job_may_have(text: str, grants: Any) -> None:
    assert requirements.reserved(text, {"east": "e", "south": "s"}) == grants


def test_a_pending_job_has_the_requirement_that_all_levels_make_together() -> None:
    row = {
        **ROW,
        "STAT": "PEND",
        "EFFECTIVE_RESREQ": "-",
        "EXEC_HOST": "-",
        "RUNTIMELIMIT": "-",
        "PEND_REASON": "New job",
    }
    [record] = records.from_json(json.dumps({"RECORDS": [row]}))
    assert (record.requirement, record.hosts, record.time_limit_s) == (ROW["COMBINED_RESREQ"], (), None)
    assert record.reason == "New job"


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"RECORDS": 7}', '{"RECORDS": [7]}', '{"RECORDS": [{"STAT": "RUN"}]}']
)
def test_json_of_another_form_is_no_answer(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        records.from_json(text)


@pytest.mark.parametrize(
    "project", ['p","USER":"root', 'p"},{"JOBID":"101","JOBINDEX":"3","USER":"root","STAT":"RUN","QUEUE":"q']
)
def test_json_that_a_project_has_broken_open_is_no_answer(project: str) -> None:
    """An LSF that escapes nothing of what users word."""
    text = json.dumps({"RECORDS": [{**ROW, "PROJ_NAME": "PROJECT"}]}).replace("PROJECT", project, 1)
    text = text.replace("PROJECT", project)
    with pytest.raises(ValueError, match="twice"):
        records.from_json(text)


def test_long_texts_of_one_user_hold_nobody_up() -> None:
    words = "User <alice>, Project <" * 20_000 + "Requested Resources <" * 20_000
    details = records.Details(f"Job Id <1>, Job Name <{words}", words)
    began = time.process_time()
    assert details.project(Record("1", 0, "alice", "PEND", "main")) == ""
    assert details.after("Requested Resources") == ""
    assert time.process_time() - began < 1.0


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_texts_break_it(wide: str, long: str) -> None:
    for call in (lambda: records.from_texts(wide, long), lambda: records.from_json(wide)):
        try:
            call()
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    records.shared_values(wide, NATIVES)


LETTERS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=120)


@given(name=LETTERS, project=LETTERS, output=LETTERS)
def test_whatever_a_user_words_a_job_stays_its_owners(name: str, project: str, output: str) -> None:
    """As OpenLava prints them: line breaks are taken out by bsub."""
    text = f"Job Id <7>, Job Name <{name}>, User <alice>, Project <{project}>, Status <PEND>, Queue <main>, Command <x>"
    told = f"Mon Nov 30 04:47:47: Submitted from host <ctl>, CWD <{output}>, Requested Resources <rusage[qpu_east=1]>;"
    long = "\n" + "\n".join(cut(line) for line in (text, told)) + "\n PENDING REASONS:\n x;\n"
    wide = f"JOBID   USER\n7       alice   PEND  main       ctl            -        {name or 'x'} Nov 30 04:47\n"
    try:
        [record] = records.from_texts(wide, long)
    except ValueError:
        # Hidden, which harms nobody else.
        return
    assert (record.job, record.index, record.user, record.stat, record.queue) == ("7", 0, "alice", "PEND", "main")
    assert record.requirement == "rusage[qpu_east=1]"


def cut(text: str) -> str:
    parts, width = [], 79
    while text:
        parts.append(text[:width])
        text, width = text[width:], 58
    return ("\n" + " " * 21).join(parts)


@pytest.mark.parametrize(
    ("text", "grants"),
    [
        ("", ()),
        ("select[qpu_east>=2] rusage[qpu_east=2:mem=3]", (Grant("e", 2),)),
        ("qpu_south=1,qpu_east=2", (Grant("s", 1), Grant("e", 2))),
        ("select[qpu_east>1]", (Grant("e", 2),)),
        ("select[qpu_east == 1.00] rusage[qpu_east=1.00]", (Grant("e", 1),)),
        ("select[qpu_ready==1 && qpu_other>=1]", ()),
        ("rusage[qpu_east=0]", ()),
        ("select[type=='qpu_east=3']", ()),
        ("rusage[xqpu_east=3:qpu_eastern=2]", ()),
        ("rusage[qpu_east=99999999]", ()),
    ],
)
def test_grants_in_a_requirement(text: str, grants: Any) -> None:
    assert requirements.read_request(text, {"east": "e", "south": "s"}) == grants

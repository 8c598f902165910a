"""The merge of a QPU into a user's own -R: nothing of theirs is lost, nothing of ours counts twice."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtandem.lsf import requirements
from qtandem.lsf.hooks import resreq

PAIRS = [("fez", 2)]


@pytest.mark.parametrize(
    ("given_text", "merged"),
    [
        ("", "select[qpu_fez>=2] rusage[qpu_fez=2]"),
        ("select[a||b]", "select[(a||b) && qpu_fez>=2] rusage[qpu_fez=2]"),
        ("select[a && b || c]", "select[(a && b || c) && qpu_fez>=2] rusage[qpu_fez=2]"),
        ("select[((a && (b && c)))]", "select[a && b && c && qpu_fez>=2] rusage[qpu_fez=2]"),
        ("select[a && (b || c)]", "select[a && (b || c) && qpu_fez>=2] rusage[qpu_fez=2]"),
        ("type==any order[ut]", "type==any && qpu_fez>=2 order[ut] rusage[qpu_fez=2]"),
        ("order[r1m:pg] span[ptile=2]", "select[qpu_fez>=2] order[r1m:pg] span[ptile=2] rusage[qpu_fez=2]"),
        ("rusage[mem=10:swp=3]", "select[qpu_fez>=2] rusage[mem=10:swp=3:qpu_fez=2]"),
        ("rusage[mem=10:duration=5:decay=1]", "select[qpu_fez>=2] rusage[qpu_fez=2,mem=10:duration=5:decay=1]"),
        ("rusage[mem=9, lic=1:duration=2]", "select[qpu_fez>=2] rusage[qpu_fez=2,mem=9,lic=1:duration=2]"),
        ("rusage[mem=1||swp=2]", "select[qpu_fez>=2] rusage[mem=1:qpu_fez=2||swp=2:qpu_fez=2]"),
        ("qpu_fez >= 1", "qpu_fez>=2 rusage[qpu_fez=2]"),
        ("rusage[qpu_fez=1:duration=5]", "select[qpu_fez>=2] rusage[qpu_fez=2]"),
        ("rusage[qpu_fez=1/job:mem=2]", "select[qpu_fez>=2] rusage[mem=2:qpu_fez=2]"),
        ("select[type=='a]b'] same[model]", "select[type=='a]b' && qpu_fez>=2] same[model] rusage[qpu_fez=2]"),
        ("select[a] select[b] rusage[mem=1] rusage[swp=2]",
         "select[a && qpu_fez>=2] select[b] rusage[mem=1:qpu_fez=2] rusage[swp=2]"),
        ("select[qpu_ready==1]", "select[qpu_ready==1 && qpu_fez>=2] rusage[qpu_fez=2]"),
        ("{select[a] rusage[mem=1]} || {select[b]}",
         "{select[a && qpu_fez>=2] rusage[mem=1:qpu_fez=2]} || {select[b && qpu_fez>=2] rusage[qpu_fez=2]}"),
        ("1*{select[a]} + 3*{span[ptile=1]}", "1*{select[a && qpu_fez>=2] rusage[qpu_fez=2]} + 3*{span[ptile=1]}"),
    ],
)  # fmt: skip
def test_a_qpu_is_merged_into_what_the_user_wrote(given_text: str, merged: str) -> None:
    assert resreq.merged(given_text, PAIRS) == merged


@pytest.mark.parametrize(
    ("usage", "merged"),
    [
        ("mem=10:duration=5:decay=1", "mem=10:qpu_fez=2"),
        ("mem=9, lic=1:duration=2", "qpu_fez=2,mem=9,lic=1"),
        ("duration=2", "qpu_fez=2"),
        ("mem=1", "mem=1:qpu_fez=2"),
    ],
)
def test_where_one_duration_holds_for_all_there_is_none(usage: str, merged: str) -> None:
    assert resreq.merged(f"rusage[{usage}]", PAIRS, False) == f"select[qpu_fez>=2] rusage[{merged}]"


def test_several_qpus() -> None:
    merged = resreq.merged("select[x] rusage[mem=1]", [("fez", 1), ("ibm_x", 2)])
    assert merged == "select[x && qpu_fez>=1 && qpu_ibm_x>=2] rusage[mem=1:qpu_fez=1:qpu_ibm_x=2]"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", {}),
        ("select[mem>100] rusage[mem=100]", {}),
        ("rusage[qpu_fez=1]", {"fez": 1}),
        ("select[qpu_fez>=2 && mem>1] rusage[qpu_fez=1:mem=3]", {"fez": 2}),
        ("qpu_fez>1", {"fez": 2}),
        ("qpu_fez==1", {"fez": 1}),
        ("rusage[qpu_fez=0]", {}),
        ("select[qpu_ready==1 && qpu_queue<=5 && qpu_wait<60]", {}),
        ("rusage[qpu_fez=1||qpu_fez=1:mem=3]", {"fez": 1}),
        ("select[type=='qpu_fez']", {}),
        ("{rusage[qpu_fez=1]} || {rusage[qpu_fez=1]}", {"fez": 1}),
    ],
)
def test_what_a_user_asks_for_in_lsfs_own_words(text: str, asked: dict[str, int]) -> None:
    assert resreq.asked(text) == asked


@pytest.mark.parametrize(
    "text",
    [
        "select[qpu_fez>=1 || qpu_x>=1]", "select[qpu_fez>=1 && a || b]",
        "select[!(qpu_fez>=1)]", "rusage[qpu_fez=1||qpu_x=1]", "rusage[qpu_fez=a]",
        "rusage[qpu_fez=1.5]", "select[qpu_fez]", "select[(a", "select[a))]", "rusage[mem=1", "select[type=='x]",
        "{rusage[qpu_fez=1]} || {rusage[qpu_x=1]}", "{select[a]", "]", "select[qpu_fez<=3]", "&&", "a &&",
        "|select[]|", "a order[ut] b",
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(resreq.Malformed):
        resreq.asked(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("select[mem>1]", None),
        ("select[qpu_fez>=1]", None),
        ("select[qpu_ready==1]", [("ready", "==", 1)]),
        ("qpu_qubits>=100 && qpu_queue<5", [("qubits", ">=", 100), ("queue", "<", 5)]),
        ("select[qpu_ready]", []),
        ("select[qpu_ready==1 || mem>1]", []),
    ],
)
def test_words_for_any_qpu(text: str, words: Any) -> None:
    assert resreq.wanted_words(text) == words


# ---- for any text
ATOMS = st.sampled_from(
    ["a", "mem>100", "type==any", "hname=='x[1]'", 'model=="(q"', "!b", "defined(lic)", "swp > 15", "qpu_ready==1"]
)
SELECTIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" && ", "||", " || ", "&&"]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)
USES = st.lists(
    st.sampled_from(["mem=10", "swp=2:duration=5", "lic=1:duration=2h:decay=1", "qpu_fez=1", "qpu_old=3:duration=4"]),
    min_size=1,
    max_size=3,
)
USAGES = st.tuples(USES, st.sampled_from([":", ",", ", ", "||"])).map(lambda made: made[1].join(made[0]))
OTHERS = st.lists(
    st.sampled_from(["order[r1m:pg]", "span[hosts=1]", "same[model]", "cu[type=rack]", "affinity[core(2)]"]),
    unique=True,
    max_size=3,
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    parts = []
    selection = draw(st.none() | SELECTIONS)
    if selection:
        parts.append(draw(st.sampled_from([f"select[{selection}]", selection])))
    parts += draw(OTHERS)
    usage = draw(st.none() | USAGES)
    if usage:
        parts.insert(draw(st.integers(1 if selection else 0, len(parts))), f"rusage[{usage}]")
    return " ".join(parts)


GRANTS = st.lists(
    st.tuples(st.sampled_from(["fez", "ibm_x", "garnet"]), st.integers(1, 9)),
    min_size=1, max_size=3, unique_by=lambda pair: pair[0],
)  # fmt: skip


def value(selection: str, truth: dict[str, bool]) -> bool:
    """What a selection comes to, each atom by `truth`."""
    atoms = sorted(truth, key=len, reverse=True)
    number = {atom: f" T{index} " for index, atom in enumerate(atoms)}
    for atom in atoms:
        selection = selection.replace(atom, number[atom])
    names = {f"T{index}": truth[atom] for index, atom in enumerate(atoms)}
    return bool(eval(selection.replace("&&", " and ").replace("||", " or "), {}, names))


@given(texts(), GRANTS)
def test_a_merge_asks_for_these_qpus_and_changes_nothing_else(text: str, grants: list[tuple[str, int]]) -> None:
    merged = resreq.merged(text, grants)
    assert resreq.asked(merged) == dict(grants)
    assert resreq.merged(merged, grants) == merged, "esub may run twice"
    ours = {name for name, _ in resreq.sections(merged)} - {"", "select", "rusage"}
    assert ours == {name for name, _ in resreq.sections(text)} - {"", "select", "rusage"}
    for name in ours:
        assert dict(resreq.sections(merged))[name] == dict(resreq.sections(text))[name]
    names = {native: native for native in ("fez", "ibm_x", "garnet")}
    assert {grant.resource: grant.slots for grant in requirements.read_request(merged, names)} == dict(grants)


@given(SELECTIONS, st.lists(st.booleans(), min_size=9, max_size=9))
def test_a_selection_still_means_what_it_meant(selection: str, truths: list[bool]) -> None:
    atoms = [
        "hname=='x[1]'", 'model=="(q"', "defined(lic)", "type==any", "qpu_ready==1", "mem>100", "swp > 15", "!b", "a"
    ]  # fmt: skip
    truth = dict(zip(atoms, truths, strict=True))
    merged = dict(resreq.sections(resreq.merged(f"select[{selection}]", PAIRS)))["select"]
    for open_now in (True, False):
        wanted = value(selection, truth) and open_now
        assert value(merged, {**truth, "qpu_fez>=2": open_now}) == wanted


@given(USAGES)
def test_a_usage_keeps_each_of_the_users_own(usage: str) -> None:
    merged = dict(resreq.sections(resreq.merged(f"rusage[{usage}]", PAIRS)))["rusage"]
    assert all(way.count("qpu_fez=2") == 1 for way in merged.split("||")), "once in each way, whichever LSF takes"
    assert "qpu_old" not in merged
    for own in ("mem=10", "swp=2:duration=5", "lic=1:duration=2h:decay=1"):
        if usage.count(own):
            assert own in merged
    for string in re.split(r"\|\||,", merged):
        assert not re.search(r"duration.*qpu_fez|qpu_fez.*duration", string), "the user's duration is not ours"


def merged_or_refused(text: str) -> None:
    try:
        resreq.asked(text)
        resreq.wanted_words(text)
        merged = resreq.merged(text, PAIRS)
    except resreq.Malformed:
        return
    assert resreq.asked(merged).get("fez", 0) >= 2


@given(st.text(max_size=80))
def test_no_text_breaks_it(text: str) -> None:
    merged_or_refused(text)


PIECES = [*"[](){}'\"|&:,= ", "select[", "rusage[", "qpu_fez", "qpu_x=1", "||"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_heap_of_brackets_breaks_it(text: str) -> None:
    merged_or_refused(text)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtandem.core.errors import QtandemError
from qtandem.core.requests import Constraint, Item, Request, parse


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("ibm_fez", Request((Item(("ibm_fez",)),))),
        ("ibm_fez:2", Request((Item(("ibm_fez",), 2),))),
        ("ibm_fez/ibm_torino", Request((Item(("ibm_fez", "ibm_torino")),))),
        ("ibm_fez|ibm_torino", Request((Item(("ibm_fez", "ibm_torino")),))),
        ("ibm_fez+iqm_garnet", Request((Item(("ibm_fez",)), Item(("iqm_garnet",))))),
        ("ibm_fez,iqm_garnet", Request((Item(("ibm_fez",)), Item(("iqm_garnet",))))),
        (
            "any:vendor=ibm:qubits=100:by=queue",
            Request((Item(("any",), 1, (Constraint("qubits", ">=", 100), Constraint("vendor", "=", "ibm")), "queue"),)),
        ),
        (
            "any:num_qubits=127&status=online&is_simulator=true",
            Request((Item(("any",), 1, (Constraint("qubits", ">=", 127), Constraint("simulator", "=", True))),)),
        ),
        ("any:wait<=40m", Request((Item(("any",), 1, (Constraint("wait", "<=", 2400.0),)),))),
    ],
)
def test_reads_every_form_of_the_grammar(text, meaning):
    assert parse(text) == meaning


def test_prints_the_fixed_direction_of_each_key():
    assert str(parse("any:qubits=100:error=0.01:wait=2h")) == "any:error<=0.01:qubits>=100:wait<=7200"


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("", "empty", ""),
        ("ibm_fez:", "key=value", "keys are"),
        ("ibm_fez:0", "0 slots", "1 to"),
        ("ibm_fez:qubits", "not key=value", "keys are"),
        ("ibm_fez:qubits=", "no value", ""),
        ("ibm_fez:qubits=many", "whole number", ""),
        ("ibm_fez:qubits<=5", "qubits<=5", "qubits>=5"),
        ("ibm_fez:color=red", "'color'", "keys are"),
        ("ibm_fez:by=luck", "by=luck", "queue, cost, score"),
        ("ibm_fez+ibm_fez", "more than once", "ibm_fez:2"),
        ("any/ibm_fez", "stands alone", ""),
        ("claim", "reserved", ""),
        ("$(reboot)", "not a name", ""),
        ("a b", "not a name", ""),
        ("ibm_fez\n", "", None),
        ("ibm\x00fez", "control character", ""),
        ("x" * 3000, "3000 characters", ""),
        ("ibm_fez:qubits=5:qubits=6", "twice", ""),
        ("ibm_fez:1:2", "'2'", "keys are"),
        ("ibm_fez:cost=nan", "number", ""),
        ("ibm_fez:cost=1e999", "number", ""),
        ("ibm_fez:٣", "'٣'", ""),
        ("+", "name is missing", ""),
    ],
)
def test_says_what_is_wrong_and_what_to_write(text, said, remedy):
    if remedy is None:
        assert parse(text) == parse(text.strip())
        return
    with pytest.raises(QtandemError) as caught:
        parse(text)
    assert caught.value.code == "bad-request"
    assert said in caught.value.message
    assert remedy in caught.value.remedy


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,20}", fullmatch=True).filter(
    lambda name: name not in ("any", "claim")
)
CONSTRAINTS = st.lists(
    st.one_of(
        st.builds(Constraint, st.just("qubits"), st.just(">="), st.integers(0, 10**8)),
        st.builds(Constraint, st.just("queue"), st.just("<="), st.integers(0, 10**8)),
        st.builds(Constraint, st.just("error"), st.just("<="), st.sampled_from([0.5, 0.001, 2.5e-05])),
        st.builds(Constraint, st.just("simulator"), st.just("="), st.booleans()),
        st.builds(Constraint, st.just("vendor"), st.just("="), st.sampled_from(["ibm", "iqm", "a*"])),
    ),
    unique_by=lambda constraint: constraint.key,
    max_size=4,
).map(lambda found: tuple(sorted(found, key=lambda constraint: constraint.key)))


@st.composite
def _requests(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    cut = draw(st.integers(1, len(names)))
    groups = [tuple(names[:cut])] + [(name,) for name in names[cut:]]
    return Request(
        tuple(
            Item(group, draw(st.integers(1, 99)), draw(CONSTRAINTS), draw(st.sampled_from([None, "queue", "cost"])))
            for group in groups
        )
    )


@given(_requests())
def test_the_canonical_form_means_the_same(request_):
    assert parse(str(request_)) == request_


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_reason(text):
    try:
        request = parse(text)
    except QtandemError as error:
        said = error
    else:
        assert parse(str(request)) == request
        return
    assert said.code == "bad-request"
    assert said.message
    assert said.remedy

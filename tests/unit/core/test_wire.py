import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtandem.core.errors import KINDS, QtandemError
from qtandem.core.wire import SubmitAnswer
from qtandem.core.wiretext import decode_text, encode_text

KEYS = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@given(st.dictionaries(KEYS, st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)))
def test_the_text_form_carries_any_value_byte_for_byte(values):
    text = encode_text(values)
    assert decode_text(text) == values
    assert all(ord(character) < 128 for character in text)


def test_nested_keys_are_joined_by_dots():
    answer = SubmitAnswer(verdict="admit", native={"licenses": "a@qtandem:1"})
    assert decode_text(encode_text(answer.model_dump()))["native.licenses"] == "a@qtandem:1"


@pytest.mark.parametrize("text", ["no equals", "=value", "a=1\na=2", "a=%ff"])
def test_a_malformed_line_is_refused(text):
    with pytest.raises(QtandemError) as caught:
        decode_text(text)
    assert caught.value.code == "bad-request"


@pytest.mark.parametrize("code", KINDS)
def test_errors_cross_the_wire_whole(code):
    error = QtandemError(code, "what", cause="theirs", retry_after=3.0)
    again = QtandemError.from_wire(error.to_wire())
    assert again.to_wire() == error.to_wire()
    assert "\n" not in error.one_line()
    assert error.lines()[0].endswith(f"[{code}]")


def test_an_error_of_a_newer_daemon_is_still_shown():
    assert QtandemError.from_wire({"code": "from-the-future", "message": "m", "remedy": "r"}).lines()[0].startswith("m")

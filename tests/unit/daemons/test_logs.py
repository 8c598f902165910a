from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from qtandem.daemons import logs

SECRET = "s3cr3t/key+with.signs"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, masker = logging.getLogger(), logs.masker
    handlers, level, pattern, known = root.handlers[:], root.level, masker._pattern, set(masker._known)
    out = io.StringIO()
    logs.setup("info", out)
    yield out
    root.handlers[:], masker._pattern, masker._known = handlers, pattern, known
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_json(stream: io.StringIO) -> None:
    logs.log("test").info("hello", text="two\nlines", number=3)
    [line] = lines(stream)
    assert (line["event"], line["text"], line["number"], line["logger"]) == ("hello", "two\nlines", 3, "qtandem.test")


def test_known_secrets_are_masked_wherever_they_stand(stream: io.StringIO) -> None:
    logs.masker.know([SECRET, "abc"])
    logs.log("test").info(f"got {SECRET}", deep={"list": [f"x{SECRET}x", 1]}, error=ValueError(SECRET))
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        logs.log("test").exception("failed")
    logging.getLogger("some.library").warning("said %s", SECRET)
    assert SECRET not in stream.getvalue()
    assert lines(stream)[0]["event"] == "got ***"
    assert lines(stream)[0]["deep"] == {"list": ["x***x", 1]}
    assert len(lines(stream)) == 3


def test_keys_that_are_secret_by_name_are_masked_unasked(stream: io.StringIO) -> None:
    logs.log("test").info("call", token="t-1", settings={"IAM_APIKEY": "k", "backend": "fez"})
    [line] = lines(stream)
    assert (line["token"], line["settings"]) == ("***", {"IAM_APIKEY": "***", "backend": "fez"})


def test_a_word_that_is_too_short_to_be_a_secret_masks_nothing(stream: io.StringIO) -> None:
    logs.masker.know(["main"])
    logs.log("test").info("main thing")
    assert lines(stream)[0]["event"] == "main thing"


def test_users_who_register_key_after_key_fill_no_memory() -> None:
    masker = logs.Masker()
    masker.know(["site-secret"])
    masker.know_of((1001, "fez"), ["another-users-key"])
    for number in range(50):
        masker.know_of((1000, "fez"), [f"key-number-{number:02d}", "short"])
    text = masker.clean("site-secret another-users-key key-number-49 key-number-48 key-number-47 short")
    assert text == "*** *** *** *** key-number-47 short"
    assert masker._pattern is not None
    assert len(masker._pattern.pattern) < 200

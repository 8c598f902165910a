"""Whose fault a vendor's failure is."""

import json
from email.utils import formatdate

import pytest

from qtandem.core.errors import KINDS
from qtandem.core.providers.classify import CLASSES, Call, Class, Meaning, failed, retry_after, unreadable, vendor_words

POLL = Call("IBM", "tell its status", missing="bad-config")
SUBMIT = Call("IBM", "start a task", submits=True, meanings={"1352": Meaning("policy", "Set SESSION_MODE=batch.")})


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        (SUBMIT, 400, "bad-payload"),
        (SUBMIT, 422, "bad-payload"),
        (POLL, 400, "internal"),
        (POLL, 401, "bad-credentials"),
        (POLL, 402, "policy"),
        (POLL, 403, "policy"),
        (POLL, 404, "bad-config"),
        (SUBMIT, 404, "no-such-run"),
        (SUBMIT, 409, "policy"),
        (SUBMIT, 405, "unsupported"),
        (SUBMIT, 423, "not-available"),
        (SUBMIT, 429, "not-available"),
        (POLL, 408, "vendor-timeout"),
        (POLL, 500, "vendor-error"),
        (POLL, 502, "vendor-error"),
        (POLL, 503, "vendor-error"),
        (POLL, 504, "vendor-timeout"),
        (POLL, 520, "vendor-error"),
        (POLL, 302, "vendor-error"),
    ],
)
def test_a_status_has_a_code(call, status, code):
    assert failed(call, status).code == code


def test_only_transient_failures_and_outages_are_tried_again():
    for code, kind in CLASSES.items():
        assert KINDS[code].retryable == (kind in (Class.TRANSIENT, Class.OUTAGE)), code


def test_a_vendor_s_own_code_goes_before_its_status_and_has_its_remedy():
    body = json.dumps({"errors": [{"code": 1352, "message": "You are not authorized to run a session"}]})
    error = failed(SUBMIT, 400, body)
    assert error.code == "policy"
    assert error.remedy == "Set SESSION_MODE=batch."
    assert "not authorized to run a session" in error.cause


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ('{"errors": [{"code": "1233", "message": "reserved", "solution": "Wait."}]}', "1233", "reserved Wait. [1233]"),
        ('{"error": {"code": 7, "message": "no"}}', "7", "no [7]"),
        ('{"error": "plain"}', "", "plain"),
        ('{"errorCode": "BXNIM0415E", "errorMessage": "key"}', "BXNIM0415E", "key [BXNIM0415E]"),
        ('{"detail": "not there"}', "", "not there"),
        ("<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>", "NoSuchKey", "gone [NoSuchKey]"),
        ("<html><body><h1>502 Bad Gateway</h1></body></html>", "", "502 Bad Gateway"),
        ("", "", ""),
        ('{"errors": [null]}', "", '{"errors": [null]}'),
        ("[1, 2]", "", "[1, 2]"),
        (b"\xff\x00 bytes", "", "� bytes"),
    ],
)
def test_the_vendor_s_words_are_found(body, code, words):
    assert vendor_words(body) == (code, words)


def test_words_are_one_bounded_line():
    error = unreadable(POLL, "a\n\x1b[31m" * 10_000)
    assert len(error.cause) <= 400
    assert error.cause.isprintable()


def test_retry_after_is_seconds_or_a_date_by_the_vendor_s_own_clock():
    assert retry_after({"Retry-After": "17"}) == 17
    skewed = 5_000.0
    headers = {"retry-after": formatdate(skewed + 30, usegmt=True), "date": formatdate(skewed, usegmt=True)}
    assert retry_after(headers, lambda: 0.0) == 30
    assert retry_after({"Retry-After": "-4"}) == 0
    assert retry_after({"Retry-After": "999999999"}) == 3600
    for nothing in ({}, {"Retry-After": "soon"}, {"Retry-After": "nan"}):
        assert retry_after(nothing) is None
    assert failed(SUBMIT, 429, b"", {"Retry-After": "9"}).retry_after == 9
    assert failed(SUBMIT, 429).retry_after is None

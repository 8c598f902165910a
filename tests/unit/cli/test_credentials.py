"""`qtandem credentials`: keys come from files or standard input, never from argv, and never show."""

import io

import pytest

from tests.fakes.daemon import resource

KEY = "my-own-key"


@pytest.fixture
def own(daemon):
    daemon.routes["GET /resources"] = {"resources": [resource("fez", owner="user", user_keys=["APIKEY", "CRN"])]}
    daemon.routes["POST /credentials"] = {"resource": "fez", "keys": ["APIKEY", "CRN"], "added_at": 1.0, "used": True}
    return daemon


def test_keys_are_read_from_files_and_from_standard_input(own, qtandem, tmp_path, monkeypatch):
    (tmp_path / "k").write_text(f"{KEY}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("crn:1\n"))
    ran = qtandem("credentials", "add", "fez", "--file", f"APIKEY={tmp_path / 'k'}")
    assert ran.status == 0
    assert KEY not in ran.out + ran.err
    [posted] = [call.body for call in own.calls if call.method == "POST"]
    assert posted == {"resource": "fez", "values": {"APIKEY": KEY, "CRN": "crn:1"}}


def test_a_qpu_that_takes_no_keys_says_so(daemon, qtandem):
    ran = qtandem("credentials", "add", "fez")
    assert ran.status == 3
    assert "the site's own is used" in ran.err

"""What a doctor says of a hook file, and of questions that fail."""

from __future__ import annotations

import hashlib

import pytest

from qtandem.core import doctoring
from qtandem.core.errors import QtandemError
from qtandem.core.installing import Check

WANTED = hashlib.sha256(b"as installed").hexdigest()


@pytest.fixture
def hook(tmp_path):
    path = tmp_path / "hooks" / "prolog"
    path.parent.mkdir(mode=0o755)
    path.write_bytes(b"as installed")
    path.chmod(0o755)
    return path


def test_a_file_as_installed_has_no_fault(hook):
    assert doctoring.file_fault(hook, WANTED, 0o755) == ""


def test_a_missing_file_is_said(hook):
    hook.unlink()
    assert "is not there" in doctoring.file_fault(hook, WANTED, 0o755)


def test_a_changed_file_is_said(hook):
    hook.write_bytes(b"something else")
    assert "not what this version" in doctoring.file_fault(hook, WANTED, 0o755)


@pytest.mark.parametrize("above", [False, True])
def test_a_file_that_others_can_replace_is_said_with_the_place(hook, above):
    place = hook.parent if above else hook
    place.chmod(0o777)
    assert doctoring.file_fault(hook, WANTED, 0o755) == f"{place} can be written by others than root"


def test_another_mode_is_said(hook):
    hook.chmod(0o700)
    assert "mode 700, not 755" in doctoring.file_fault(hook, WANTED, 0o755)


def test_a_question_that_cannot_be_asked_is_a_failed_check_and_the_rest_is_asked():
    def _version():
        raise QtandemError("manager-unreachable", "no answer", remedy="Start it.")
        yield

    def _hooks():
        yield Check("hook", True, "fine")

    first, second = doctoring.asked([_version, _hooks])
    assert (first.name, first.ok, first.fix) == ("version", False, "Start it.")
    assert second.ok


def test_a_daemon_that_does_not_answer_is_said_with_what_to_start(tmp_path):
    (check,) = doctoring.daemon(tmp_path / "no.sock")
    assert check.ok is False
    assert "systemctl start qtandemd" in check.fix

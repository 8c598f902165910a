"""The questions that the doctor of every manager asks in the same way; `doctor.py` of each has what is its own."""

from __future__ import annotations

import hashlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from qtandem.core import accounts
from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.core.installers import Installer
from qtandem.core.installing import Check, digest

ANSWER_S = 3.0
_START = "On the daemon's host: systemctl start qtandemd; elsewhere: systemctl start qtandem-relay"
# What the remedies of these codes advise is what is running.
_BY_HAND = {
    "manager-unreachable": "See that the manager's server runs, and that this command works here by hand.",
    "command-failed": "See that this command works here by hand.",
}

Question = Callable[[], Iterator[Check]]
Own = TypeVar("Own", bound=Installer)


class Doctor(ABC, Generic[Own]):
    """A manager's doctor on this host, who knows from its installer how things must be. Reads and asks only."""

    def __init__(self, installer: Own) -> None:
        self._installer = installer
        self._settings, self._catalog = installer.settings, installer.catalog
        self._section, self._client = installer.section, installer.client
        self._install = f"qtandem install {installer.manager} --apply"

    def checks(self) -> list[Check]:
        return asked(self.questions())

    @abstractmethod
    def questions(self) -> list[Question]:
        """Those that can be asked on this host, in the order in which an admin would mend what they find."""

    def _hooks(self) -> Iterator[Check]:
        yield from files(self._installer.hook_texts(), "hook", self._install)

    def _daemon(self) -> Iterator[Check]:
        yield from daemon(self._settings.daemon.socket)

    def _users(self) -> Iterator[Check]:
        yield from accounts.checks(self._settings.daemon, self._installer.launched())


def asked(questions: Iterable[Question]) -> list[Check]:
    """The answers in order; a question that cannot be asked is a failed check under its own name."""
    out: list[Check] = []
    for question in questions:
        try:
            out.extend(question())
        except QtandemError as error:
            fix = _BY_HAND.get(error.code, error.remedy) if error.remedy == error.kind.remedy else error.remedy
            out.append(Check(question.__name__.strip("_"), False, error.said(), fix))
    return out


def daemon(path: Path) -> Iterator[Check]:
    """Whether the daemon, or the relay, answers on this host's socket and is well."""
    try:
        body = Daemon(path, deadline_s=ANSWER_S).get("healthz")
    except QtandemError as error:
        yield Check("daemon", False, f"{path} does not answer: {error.message}", _START)
        return
    said = body if isinstance(body, dict) else {}
    healthy = said.get("healthy") is True
    fault = said.get("problems") or said.get("message") or "not healthy"
    detail = f"{path} answers" if healthy else f"{path}: {fault}"
    yield Check("daemon", healthy, detail, "" if healthy else "Look at the daemon's log.")


def files(texts: Mapping[Path, tuple[bytes, int]], kind: str, install: str) -> Iterator[Check]:
    """Whether each file (path: content, mode) is as installed; `install` is the command that makes it so."""
    for path, (data, mode) in texts.items():
        fault = file_fault(path, hashlib.sha256(data).hexdigest(), mode)
        yield Check(f"{kind} {path.name}", not fault, fault or str(path), install if fault else "")


def file_fault(path: Path, wanted: str, mode: int) -> str:
    """What is wrong with a file that root or a manager's daemon runs; an empty text if nothing is.

    `wanted` is the SHA-256 of what it must hold. Whoever may write a folder above it could put another in its place.
    """
    try:
        info = path.stat()
        open_places = [place for place in (path, *path.absolute().parents) if _others_write(place)]
    except OSError:
        return f"{path} is not there"
    if digest(path) != wanted:
        return f"{path} is not what this version and configuration install"
    if open_places:
        return f"{open_places[0]} can be written by others than root"
    if info.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to uid {info.st_uid}, not to root"
    if stat.S_IMODE(info.st_mode) != mode:
        return f"{path} has the mode {stat.S_IMODE(info.st_mode):o}, not {mode:o}"
    return ""


def _others_write(path: Path) -> bool:
    mode = path.stat().st_mode
    return bool(mode & 0o022) and not mode & stat.S_ISVTX

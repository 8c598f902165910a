"""What the launcher may start: root's own `launcher.toml`, and what of it a message names.

It runs as root, so: the standard library only.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# A line of patterns ends with this where more arguments may follow.
MORE = "..."
# A pattern that begins with this is a regular expression for the whole argument, else one with * and ?.
EXACT = "re:"
_CHILD, _PLANNER = "qtandem.core.providers.child", "qtandem.core.planner.service"
_BOOT = (
    "import sys, importlib; root, name = sys.argv[1:3]; root in sys.path or sys.path.insert(0, root); "
    "importlib.import_module(name).main()"
)
_WORKER_ENV = {
    "XDG_STATE_HOME": "/var/lib",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "QISKIT_PARALLEL": "FALSE",
}


class Refused(Exception):
    """What is asked for is not to be started; `str()` says why."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who a process runs as, what it gets of root's configuration, and its largest address space (0: no bound)."""

    user: pwd.struct_passwd
    environment: dict[str, str]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """A manager's command. `allow` holds lines of patterns; one must fit all arguments."""

    path: Path
    allow: tuple[tuple[str, ...], ...]

    def permits(self, arguments: list[str]) -> bool:
        return any(fits(arguments, patterns) for patterns in self.allow)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that may be started, and for whom."""

    caller: pwd.struct_passwd
    most: int
    worker: Account
    root_types: frozenset[str]
    managers: dict[str, tuple[Account, dict[str, Program]]]

    def order(self, message: bytes) -> tuple[list[str], Account]:
        """argv and account for a message; raises `Refused` for all but exactly what is planned."""
        try:
            body = json.loads(message)
        except (ValueError, RecursionError):
            raise Refused("the message is not JSON") from None
        if not isinstance(body, dict):
            raise Refused("the message is not an object")
        match body:
            case {"start": "worker", "type": str(kind)} if len(body) == 2:
                return self._worker(kind)
            case {"start": "planner"} if len(body) == 1:
                return _module(_PLANNER), self.worker
            case {"start": "command", "manager": str(manager), "program": str(program), "arguments": list(arguments)}:
                if len(body) == 4 and all(isinstance(one, str) for one in arguments):
                    return self._command(manager, program, arguments)
        raise Refused("the message does not have its form")

    def _worker(self, kind: str) -> tuple[list[str], Account]:
        if not kind.replace("-", "").replace("_", "").isalnum() or not kind.isascii() or len(kind) > 64:
            raise Refused("that is no type")
        # The type is the only one it may serve.
        argv = [*_module(_CHILD), kind]
        account = self.worker
        if kind in self.root_types:
            account = Account(pwd.getpwuid(0), account.environment, account.memory_bytes)
        return argv, account

    def _command(self, manager: str, name: str, arguments: list[str]) -> tuple[list[str], Account]:
        account, programs = self.managers.get(manager, (None, {}))
        program = programs.get(name)
        if account is None or program is None:
            raise Refused(f"{manager[:64]!r} has no command {name[:64]!r} in root's configuration")
        if any("\0" in one for one in arguments) or not program.permits(arguments):
            raise Refused(f"{name} is not to be started with these arguments")
        check_trusted(program.path)
        return [str(program.path), *arguments], account


def _module(name: str) -> list[str]:
    """argv of a child that runs a module of ours; this process is the one that it must not outlive."""
    return [sys.executable, "-I", "-c", _BOOT, str(Path(__file__).parents[2]), name, str(os.getpid())]


def load(path: Path) -> Plan:
    """The plan in root's file; raises `Refused` for a file that others can write, or that is wrong."""
    check_trusted(path)
    try:
        body = tomllib.loads(path.read_text())
        _known(body, {"version", "user", "most", "worker", "managers"}, "")
        worker = body.get("worker", {})
        _known(worker, {"user", "environment", "memory_mb", "root_types"}, "worker")
        return Plan(
            caller=_user(body.get("user", "qtandem")),
            most=int(body.get("most", 64)),
            worker=_account(worker, "qtandem-worker", 8192, _WORKER_ENV),
            root_types=frozenset(str(kind) for kind in worker.get("root_types", [])),
            managers={name: _manager(name, section) for name, section in body.get("managers", {}).items()},
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Refused(f"{path}: {error}") from error


def _manager(name: str, section: dict[str, Any]) -> tuple[Account, dict[str, Program]]:
    _known(section, {"user", "environment", "memory_mb", "commands"}, f"managers.{name}")
    programs = {}
    for command, entry in section.get("commands", {}).items():
        _known(entry, {"path", "allow"}, f"managers.{name}.commands.{command}")
        if not Path(entry["path"]).is_absolute():
            raise ValueError(f"{entry['path']} is not an absolute path")
        allow = tuple(tuple(map(_pattern, line)) for line in entry.get("allow", []))
        programs[command] = Program(Path(entry["path"]), allow)
    return _account(section, "qtandem-publisher", 4096, {"LC_ALL": "C"}), programs


def _pattern(text: str) -> str:
    if text.startswith(EXACT):
        try:
            re.compile(text.removeprefix(EXACT))
        except re.error as error:
            raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _account(section: dict[str, Any], user: str, memory_mb: int, own: dict[str, str]) -> Account:
    account = _user(section.get("user", user))
    if account.pw_uid == 0:
        raise ValueError("nothing is started as root but the types in worker.root_types")
    given = {str(key): str(value) for key, value in section.get("environment", {}).items()}
    base = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": account.pw_dir}
    return Account(account, base | own | given, int(section.get("memory_mb", memory_mb)) << 20)


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"there is no user {name}") from None


def _known(section: dict[str, Any], keys: set[str], where: str) -> None:
    strange = sorted(section.keys() - keys)
    if strange:
        raise ValueError(f"{'.'.join(filter(None, (where, strange[0])))} is not a key")


def fits(arguments: list[str], patterns: tuple[str, ...]) -> bool:
    """Whether a line of patterns permits these arguments."""
    if patterns[-1:] == (MORE,):
        patterns = patterns[:-1]
        arguments = arguments[: len(patterns)]
    return len(arguments) == len(patterns) and all(map(_fit, arguments, patterns))


def _fit(argument: str, pattern: str) -> bool:
    if pattern.startswith(EXACT):
        return re.fullmatch(pattern.removeprefix(EXACT), argument, re.ASCII) is not None
    return fnmatchcase(argument, pattern)


def check_trusted(path: Path) -> None:
    """Raise `Refused` unless the file and all directories to it are in the hands of this process's user or root."""
    try:
        real = path.resolve(strict=True)
        # Where links on the way are matters as much as where they lead.
        for place in (real, *real.parents, *path.parents):
            found = place.stat()
            shared = found.st_mode & 0o022 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
            if shared or found.st_uid not in (0, os.geteuid()):
                raise Refused(f"{place} can be written by others than root")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error

"""The users of a site with the launcher, root's file for it, and whether all is in the right hands."""

from __future__ import annotations

import pwd
import shutil
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qtandem.core.installing import Change, ChangeState, Check, HostFiles, Step
from qtandem.core.settings import DaemonSettings

DAEMON, WORKER, PUBLISHER = "qtandem", "qtandem-worker", "qtandem-publisher"
# A line of patterns ends with this where more arguments may follow.
MORE = "..."
# A pattern that begins with this is a regular expression for the whole argument, else one with * and ?.
EXACT = "re:"
_HEAD = "# What qtandem-launcher may start; root's own. Keys: docs/trust.md\nversion = 1\n"
_RESTART = "systemctl restart qtandem-launcher (it reads the file at its start)"
_MAKE_USERS = "systemd-sysusers qtandem.conf && systemd-tmpfiles --create qtandem.conf"


@dataclass(frozen=True, slots=True)
class Commands:
    """A manager's section in root's file: environment, and for each command its path and permitted arguments."""

    manager: str
    environment: Mapping[str, str]
    paths: Mapping[str, str]
    allow: Mapping[str, Sequence[Sequence[str]]]

    def section(self) -> dict[str, object]:
        commands = {
            name: {"path": path, "allow": [list(line) for line in self.allow.get(name, ())]}
            for name, path in self.paths.items()
        }
        return {"environment": dict(self.environment), "commands": commands}

    def text(self) -> str:
        """The section as TOML."""
        lines = [f"[managers.{self.manager}]", f"environment = {_inline(self.environment)}"]
        for name, path in self.paths.items():
            lines += ["", f"[managers.{self.manager}.commands.{name}]", f"path = {_quoted(path)}", "allow = ["]
            lines += [f"  [{', '.join(map(_quoted, line))}]," for line in self.allow.get(name, ())]
            lines.append("]")
        return "\n".join(lines) + "\n"


def program(folder: str, name: str) -> str:
    """The path of a command in `folder`, or where PATH has it if `folder` is empty."""
    return str(Path(folder) / name) if folder else shutil.which(name) or f"/usr/bin/{name}"


def publisher(daemon: DaemonSettings) -> str:
    """The user under whom managers' commands run."""
    return PUBLISHER if daemon.launcher else DAEMON


def step(daemon: DaemonSettings, commands: Commands, files: HostFiles) -> Step:
    """Have the manager's section in root's file."""
    path = daemon.launcher_config
    title, identity = f"{path} lets the launcher start the commands of {commands.manager}", f"file:{path}"
    if not path.exists() or files.owns(path):
        made = files.step(path, f"{_HEAD}\n{commands.text()}".encode(), 0o644)
        if made.change.state is ChangeState.DONE or not path.exists():
            return made
        return replace(made, change=replace(made.change, title=f"{made.change.title}, then: {_RESTART}"))
    if _sections(path).get(commands.manager) == commands.section():
        return Step(Change(identity, title, ChangeState.DONE))
    return Step(Change(identity, title, ChangeState.MANUAL, f"have in it:\n{commands.text()}"))


def checks(daemon: DaemonSettings, commands: Commands) -> Iterator[Check]:
    """The questions of a doctor on the daemon's host; one line where everything runs as one user."""
    if not daemon.launcher:
        yield Check("users", None, "workers and commands run as the daemon's own user: daemon.launcher is not set")
        return
    missing = [name for name in (DAEMON, WORKER, PUBLISHER) if not _exists(name)]
    names = ", ".join(missing or (DAEMON, WORKER, PUBLISHER))
    yield Check("users", not missing, f"missing: {names}" if missing else names, _MAKE_USERS if missing else "")
    path = daemon.launcher_config
    fault = _not_roots(path)
    if not fault and _sections(path).get(commands.manager) != commands.section():
        fault = f"{path} has not what this version needs in [managers.{commands.manager}]"
    fix = f"qtandem install {commands.manager} --apply, as root"
    yield Check("launcher's file", not fault, fault or str(path), fix if fault else "")
    fault = _socket_fault(Path(daemon.launcher))
    yield Check("launcher", not fault, fault or daemon.launcher, "systemctl start qtandem-launcher.socket")
    if missing:
        return
    fault = next(filter(None, map(_open_to_workers, (daemon.master_key, daemon.state_dir / "qtandem.db"))), "")
    yield Check("secrets", not fault, fault or "workers and commands can read neither key nor database", fault and _fix)
    state = daemon.state_dir / "simulator"
    if state.exists():
        ok = state.stat().st_uid == pwd.getpwnam(WORKER).pw_uid
        detail = f"{state} {'belongs' if ok else 'does not belong'} to {WORKER}"
        yield Check("simulators", ok, detail, "" if ok else f"chown -R {WORKER}: {state}")


_fix = "chmod 600 that file, and see that qtandem or root owns it"


def _exists(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def _sections(path: Path) -> Mapping[str, object]:
    """Root's file by manager, empty where it cannot be read."""
    try:
        found = tomllib.loads(path.read_text()).get("managers", {})
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _not_roots(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if found.st_uid == 0 and not found.st_mode & 0o022 else f"{path} can be written by others than root"


def _socket_fault(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o007:
        return f"{path} is not a socket of root's that only {DAEMON} may use"
    return ""


def _open_to_workers(path: Path) -> str:
    """What lets a worker or command read a file of the daemon's; a missing file is none."""
    if not path.exists():
        return ""
    found = path.stat()
    theirs = {pwd.getpwnam(name).pw_uid for name in (WORKER, PUBLISHER)}
    return f"{path} can be read by others" if found.st_uid in theirs or found.st_mode & 0o077 else ""


def _inline(values: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key} = {_quoted(value)}" for key, value in values.items()) + " }"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

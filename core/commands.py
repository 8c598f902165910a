"""The one way to run an external command: argv list, deadline, `LC_ALL=C`, captured output in the error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.processes import Start, communicate, start_child

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHOWN = 600


@dataclass(frozen=True, slots=True)
class Result:
    """What a command printed (UTF-8, undecodable bytes replaced) and its exit status (-N: signal N)."""

    argv: tuple[str, ...]
    exit: int
    stdout: str
    stderr: str


class CommandError(QtandemError):
    """`command-failed` with `argv`, `exit` (None: it never ran or was killed at its deadline), `stdout`, `stderr`."""

    def __init__(
        self,
        message: str,
        argv: Sequence[str],
        exit_status: int | None,
        stdout: str = "",
        stderr: str = "",
        *,
        timed_out: bool = False,
    ) -> None:
        said = (stderr.strip() or stdout.strip())[-_SHOWN:]
        super().__init__("command-failed", message, cause=said or None)
        self.argv = tuple(argv)
        self.exit = exit_status
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every command: the caller's PATH and HOME, `LC_ALL=C`, and `extra`."""
    base = {"PATH": os.environ.get("PATH", _PATH), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C"}
    return {**base, **(extra or {})}


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    start: Start = start_child,
) -> Result:
    """Run `argv` and return what it printed.

    `start` starts the process, a child of this one if nothing else is said. `timeout_s` seconds later its whole
    process group is killed, and also when the caller is cancelled. Raises `command-failed` when it cannot start,
    overruns, or (with `check`) exits non-zero.
    """
    try:
        process = await start(argv, environment(env), cwd)
    except OSError as error:
        raise _not_started(argv, error) from error
    try:
        out, err = await asyncio.wait_for(communicate(process, _encoded(stdin) or b""), timeout_s)
    except TimeoutError:
        raise _overran(argv, timeout_s) from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    assert process.returncode is not None
    return _checked(argv, process.returncode, out, err, check)


def run_sync(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> Result:
    """As `run`, for callers without an event loop."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise _not_started(argv, error) from error
    with process:
        try:
            out, err = process.communicate(_encoded(stdin), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise _overran(argv, timeout_s) from None
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
    return _checked(argv, process.returncode, out, err, check)


def _checked(argv: Sequence[str], status: int, out: bytes, err: bytes, check: bool) -> Result:
    stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    if check and status != 0:
        raise CommandError(f"{_shown(argv)} ended with status {status}", argv, status, stdout, stderr)
    return Result(tuple(argv), status, stdout, stderr)


def _not_started(argv: Sequence[str], error: OSError) -> CommandError:
    return CommandError(f"{_shown(argv)} cannot be started: {error.strerror or error}", argv, None)


def _overran(argv: Sequence[str], timeout_s: float) -> CommandError:
    return CommandError(f"no answer from {_shown(argv)} within {timeout_s:g} s", argv, None, timed_out=True)


def _shown(argv: Sequence[str]) -> str:
    text = shlex.join(argv)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


def _encoded(stdin: str | None) -> bytes | None:
    return None if stdin is None else stdin.encode()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)

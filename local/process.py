"""One job's process: started in a session of its own, with a time limit, stopped as a group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE_S = 5.0


class Script:
    """A command under way. `born` tells this process from a later one with the same pid."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.born = born(process.pid)

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str], cwd: str, output: Path) -> Script:
        """Raises OSError where the command or the folder is not there."""
        with output.open("ab", buffering=0) as stream:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process)

    async def wait(self, timeout: float | None) -> int | None:
        """The exit status (-N: signal N), or None when `timeout` seconds are over first."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._process.wait()), timeout)
        except TimeoutError:
            return None

    async def stop(self, grace_s: float = GRACE_S) -> int:
        """SIGTERM to the group, SIGKILL after the grace, and the exit status."""
        signal_group(self.pid, signal.SIGTERM)
        status = await self.wait(grace_s)
        signal_group(self.pid, signal.SIGKILL)
        return await self._process.wait() if status is None else status


def signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def born(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])

"""LSF's side of an elim: a LIM that starts it and reads its records. Written from IBM's documentation of Spectrum LSF
10.1 ("External load indices", LSF_ELIM_BLOCKTIME, ELIM_POLL_INTERVAL), not run on one.

A record is `NUMBER NAME VALUE [NAME VALUE …]` and a line's end. Spectrum LSF's MELIM reads what is there; older forms
read one record at each poll (`one_at_a_time`). What is no record ends the elim, which is started again later; until it
reports, no index has a value.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

RECORD = re.compile(r"(\d+)((?: [A-Za-z_][A-Za-z0-9_]* -?\d+(?:\.\d+)?)*)\Z")
# A record must be whole within so long of its beginning.
BLOCK_S = 4.0


class ProtocolError(Exception):
    """What LIM would log, ending the elim."""


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals) - {signal.SIGTERM})


class Lim:
    """`values` are the newest; `records` all that were read. `ignores_pipe`: its children ignore SIGPIPE;
    `blocks`: they begin with signals blocked, as those of OpenLava's LIM do."""

    def __init__(
        self, elim: Path, resources: str = "", *, one_at_a_time: bool = False, env: Mapping[str, str] | None = None,
        ignores_pipe: bool = False, blocks: bool = False,
    ) -> None:  # fmt: skip
        self._elim, self._one, self._more, self._ignores_pipe = elim, one_at_a_time, dict(env or {}), ignores_pipe
        self._blocks = blocks
        self._resources = resources
        self.values: dict[str, float] = {}
        self.records: list[dict[str, float]] = []
        self.start()

    def start(self) -> None:
        env = {"PATH": "/nowhere", "LSF_MASTER": "Y", "ELIM_ABORT_VALUE": "97", **self._more}
        if self._resources:
            env["LSF_RESOURCES"] = self._resources
        self.process = subprocess.Popen(
            [self._elim],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
            # Python ignores SIGPIPE, and so would what it starts.
            restore_signals=not self._ignores_pipe,
            preexec_fn=_block if self._blocks else None,
        )
        assert self.process.stdout
        self.out = self.process.stdout.fileno()
        os.set_blocking(self.out, False)
        self._buffer = b""

    def read(self, wait_s: float = 5.0) -> dict[str, float]:
        """Wait for the next record (of those there, the last) and take its values. Raises `ProtocolError`."""
        until, began = time.monotonic() + wait_s, None
        while b"\n" not in self._buffer:
            now = time.monotonic()
            if began is not None and now - began > BLOCK_S:
                raise ProtocolError("the record was not whole in time")
            if now >= until:
                raise ProtocolError("no record")
            if select.select([self.out], [], [], until - now)[0]:
                # One byte at a time where one record is taken: the rest stays in the pipe.
                more = os.read(self.out, 1 if self._one else 65536)
                if not more:
                    self.values = {}
                    raise ProtocolError("it ended")
                began = began or time.monotonic()
                self._buffer += more
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._take(line)
        return self.values

    def _take(self, line: bytes) -> None:
        match = RECORD.match(line.decode("ascii"))
        if match is None:
            raise ProtocolError(f"{line!r} is no record")
        words = match[2].split()
        found = {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}
        if len(found) != int(match[1]):
            raise ProtocolError(f"{line!r} does not have as many indices as it says")
        wanted = self._resources.split()
        if wanted and not set(found) <= set(wanted):
            raise ProtocolError(f"{sorted(set(found) - set(wanted))} are not defined")
        self.values = found
        self.records.append(found)

    def unread(self) -> int:
        """Bytes that wait in the pipe."""
        return int.from_bytes(fcntl.ioctl(self.out, 0x541B, bytes(4)), "little")

    def close(self) -> None:
        """LIM ends: it sends SIGTERM, and nobody reads any more."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        assert self.process.stdout
        self.process.stdout.close()
        self.process.wait(10)

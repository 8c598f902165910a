"""sd_notify(3): tell the service manager how the daemon is; without `NOTIFY_SOCKET` nothing is sent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """One-way messages to systemd. `watchdog_s` is half the time it grants, or None without a watchdog."""

    def __init__(self, environ: Mapping[str, str] | None = None, pid: int | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self.watchdog_s = _watchdog(environ, os.getpid() if pid is None else pid)

    def ready(self, status: str = "") -> None:
        self._send("READY=1", f"STATUS={status}" if status else "")

    def reloading(self) -> None:
        """systemd wants the monotonic time with it, to order it against its own request."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", f"STATUS={status}" if status else "")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines if line)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError:
                # A service manager that is gone or busy must not take the daemon with it.
                return


def _watchdog(environ: Mapping[str, str], pid: int) -> float | None:
    usec, owner = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (owner and owner != str(pid)):
        return None
    return int(usec) / 2_000_000

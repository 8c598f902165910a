"""Fake vendors in a process of their own, so that what they cost is not what is measured.

    python -m tests.bench._vendors

Reads one JSON command a line and answers one line. `{"do": "open", "accounts": {NAME: TYPE}}` opens a server a name
and gives what `Account` has; `set` gives fields of fakes values, `fault` and `heal` order faults, `polls` gives when
each fake was polled (by `time.monotonic`), `clear` forgets what was seen.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tests.fakes.vendors.accounts import ACCOUNTS, Account
from tests.fakes.vendors.kit import FakeServer

# The first read of a poll, by type.
POLLED: Mapping[str, str] = {
    "ibm-quantum-compute-service": r"GET /api/v1/backends$",
    "ibm-quantum-system": r"GET /v1/backends/[^/]+$",
    "braket": r"GET /device/",
    "iqm-server": r"GET /api/v1/quantum-computers/[^/]+$",
    "alice-bob-felis": r"GET /v1/targets/$",
    "pasqal-cloud": r"GET /core-fast/api/v1/devices$",
    "pasqal-local": r"GET /accessible$",
}
# A machine of today's size: a calibration of this many qubits goes from worker to daemon at every poll.
QUBITS = 156


class Vendors:
    """The process; use as a context manager."""

    def __enter__(self) -> Self:
        argv = [sys.executable, "-m", "tests.bench._vendors"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, types: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """`device` and `settings` by name."""
        return self._ask(do="open", accounts=types)

    def set(self, names: Sequence[str], **fields: object) -> None:
        self._ask(do="set", names=names, fields=fields)

    def fault(self, names: Sequence[str], kind: str, **detail: object) -> None:
        self._ask(do="fault", names=names, kind=kind, detail=detail)

    def heal(self, names: Sequence[str]) -> None:
        self._ask(do="heal", names=names)

    def polls(self) -> dict[str, list[float]]:
        return self._ask(do="polls")

    def clear(self) -> None:
        self._ask(do="clear")

    def _ask(self, **command: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class _Served:
    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}

    def open(self, accounts: Mapping[str, str]) -> object:
        for name, type_ in accounts.items():
            self.accounts[name] = made = ACCOUNTS[type_]()
            if hasattr(made.fake, "configuration"):
                _enlarge(made.fake.configuration)
        return {name: {"device": made.device, "settings": made.settings} for name, made in self.accounts.items()}

    def set(self, names: Sequence[str], fields: Mapping[str, object]) -> None:
        for name in names:
            for field, value in fields.items():
                setattr(self.accounts[name].fake, field, value)

    def fault(self, names: Sequence[str], kind: str, detail: Mapping[str, Any]) -> None:
        for server in self._servers(names):
            server.fault(kind, **detail)

    def heal(self, names: Sequence[str]) -> None:
        for server in self._servers(names):
            server.heal()

    def polls(self) -> object:
        return {name: list(self._polled(made)) for name, made in self.accounts.items()}

    def clear(self) -> None:
        for server in self._servers(list(self.accounts)):
            with server.lock:
                server.seen.clear()

    def _servers(self, names: Sequence[str]) -> list[FakeServer]:
        return [server for name in names for server in self.accounts[name].servers]

    def _polled(self, account: Account) -> list[float]:
        mark = re.compile(POLLED[account.type])
        with account.fake.lock:
            return [each.at for each in account.fake.seen if mark.match(f"{each.method} {each.path}")]


def _enlarge(configuration: dict[str, Any]) -> None:
    configuration["n_qubits"] = QUBITS
    configuration["coupling_map"] = [[each, each + 1] for each in range(QUBITS - 1)]


def main() -> None:
    FakeServer.look_s = 10.0
    served = _Served()
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(served, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

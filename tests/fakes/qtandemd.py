"""A real `qtandemd` in a process of its own, on a simulated QPU and the manager of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError

ROOT = Path(__file__).parents[2]


class Qtandemd:
    """`start` returns when the daemon answers. Its files lie in `folder`, which is short enough for a socket."""

    def __init__(self, resources: Mapping[str, Mapping[str, Any]], **timing: float) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="qt")
        self.folder = Path(self._temporary.name)
        self.config, self.log = self.folder / "qtandem.toml", self.folder / "log"
        self.listen = ""
        self.resources, self.timing = {name: dict(each) for name, each in resources.items()}, timing
        self.process: subprocess.Popen[bytes] | None = None
        self.daemon = Daemon(self.folder / "q.sock", deadline_s=20.0)
        self.environment: dict[str, str] = {}
        self.write()

    def write(self, extra: str = "") -> None:
        """The configuration as `resources` and `timing` are now."""
        lines = [
            "[daemon]",
            *(f"{key} = {json.dumps(str(self.folder / path))}" for key, path in _PATHS.items()),
            'metrics = ""',
            f"listen = {json.dumps(self.listen)}",
            'log_level = "debug"',
            "[timing]",
            *(f"{key} = {value}" for key, value in self.timing.items()),
            "[managers.local]",
            f"options = {{ state_dir = {json.dumps(str(self.folder / 'local'))} }}",
        ]
        for name, fields in self.resources.items():
            lines.append(f"[resources.{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in fields.items()]
        self.config.write_text("\n".join(lines) + "\n" + extra)

    def start(self) -> Qtandemd:
        self.spawn()
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            try:
                self.daemon.get("healthz")
            except QtandemError:
                if self.process is not None and self.process.poll() is not None:
                    break
                time.sleep(0.02)
            else:
                return self
        raise AssertionError(f"qtandemd did not start:\n{self.said()}")

    def spawn(self) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), **self.environment}
        with self.log.open("ab") as log:
            argv = [sys.executable, "-m", "qtandem.daemons.qtandemd", "--config", str(self.config)]
            self.process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, cwd=self.folder)
        return self.process

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon; returns its exit status (-N: signal N)."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        if process.poll() is None:
            process.send_signal(number)
        return process.wait(30.0)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._temporary.cleanup()


_PATHS = {
    "socket": "q.sock",
    "runtime_dir": "run",
    "state_dir": "state",
    "master_key": "key",
    "qrmi_config": "qrmi_config.json",
    "tls_dir": "tls",
    "textfile": "qtandem.prom",
}


def simulator(folder: Path, slots: int = 1, **settings: str | int) -> dict[str, Any]:
    """An ideal QPU whose device lives in `folder`."""
    given = {"backend": "ideal", "qubits": 4, "state_dir": str(folder), **settings}
    return {"type": "simulator", "slots": slots, "settings": given}


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)

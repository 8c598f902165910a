"""Hosts of a cluster in containers: a compose project, and an agent in each host."""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AGENT = (Path(__file__).parent / "agent.py").read_text()
PYTHON = "/opt/qtandem/bin/python"


@dataclass(frozen=True, slots=True)
class Result:
    """A command's end on a host. `seconds` it took there; `at` is the Unix time of its end."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float
    at: float

    def check(self) -> Result:
        assert self.status == 0, f"{' '.join(self.argv)} ended with {self.status}: {self.stdout}{self.stderr}"
        return self

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


class HostLost(RuntimeError):
    """The agent's connection ended: the container was killed or stopped."""


class Agent:
    """One process in a container that runs commands for the tests; started anew after the container was."""

    def __init__(self, container: str, user: str = "root") -> None:
        self._container, self._user = container, user
        self._ids = itertools.count()
        self._waiting: dict[int, queue.Queue[dict[str, Any] | None]] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def call(self, do: str, patience: float = 60.0, **arguments: Any) -> dict[str, Any]:
        box: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._lock:
            process = self._connected()
            number = next(self._ids)
            self._waiting[number] = box
            assert process.stdin
            try:
                process.stdin.write(json.dumps({"id": number, "do": do, **arguments}) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise HostLost(f"{self._container} is gone") from error
        try:
            reply = box.get(timeout=patience)
        except queue.Empty:
            raise HostLost(f"{self._container} did not answer within {patience:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
        if reply is None:
            raise HostLost(f"{self._container} is gone")
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def run(
        self,
        argv: Sequence[str],
        user: str = "",
        stdin: str = "",
        timeout: float = 30.0,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        reply = self.call(
            "run", timeout + 15, argv=list(argv), user=user, stdin=stdin, timeout=timeout, env=env and dict(env)
        )
        return Result(tuple(argv), reply["status"], reply["stdout"], reply["stderr"], reply["seconds"], reply["at"])

    def close(self) -> None:
        with self._lock:
            if self._process:
                self._process.kill()
                self._process.wait()
                self._process = None

    def _connected(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command = ["docker", "exec", "-i", "-u", self._user, self._container, PYTHON, "-c", AGENT]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            reply = json.loads(line)
            box = self._waiting.get(reply["id"])
            if box:
                box.put(reply)
        for box in list(self._waiting.values()):
            box.put(None)


def docker(*argv: str, timeout: float = 120.0) -> str:
    """Output of a docker command; raises with its error text."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


@cache
def no_docker() -> str:
    """Why containers cannot be run here; empty if they can."""
    if not shutil.which("docker"):
        return "there is no docker command"
    try:
        docker("info", "--format", "{{.ServerVersion}}", timeout=20)
        compose_command()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


@cache
def compose_command() -> tuple[str, ...]:
    """The compose plugin where it is there, else docker-compose 1."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version"], capture_output=True, timeout=20, check=False)
            if done.returncode == 0:
                return command
    raise RuntimeError("there is neither docker compose nor docker-compose")


class Project:
    """One compose project: containers, network and volumes of its own name."""

    def __init__(self, name: str, file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._command = [*compose_command(), "-p", name, "-f", str(file)]
        self._environment = {**os.environ, **(environment or {})}

    def compose(self, *argv: str, timeout: float = 180.0) -> str:
        done = subprocess.run(
            [*self._command, *argv],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self._environment,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"compose {' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout

    def up(self) -> None:
        self.compose("up", "-d", "--no-build")

    def container(self, service: str) -> str:
        """The container's id, running or not."""
        labels = {"project": self.name, "service": service}
        filters = [part for key, value in labels.items() for part in ("-f", f"label=com.docker.compose.{key}={value}")]
        return docker("ps", "-a", "-q", *filters).strip()

    def down(self) -> None:
        self.compose("down", "-v", "-t", "0")


def unique_project(manager: str) -> str:
    """A name for a cluster that no other run of the tests has."""
    return f"qtandem-{manager}-{time.time_ns() // 1_000_000 % 10**9}-{os.getpid()}"

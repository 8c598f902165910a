"""Runs the queued tasks of one device in engine processes, whatever happened to the runner before.

The holder of a lock file runs the tasks of a device. The kernel frees the lock of a dead holder; the next one
queues again what was left running. So a task is never lost and never runs twice at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.providers import frames
from qtandem.core.providers.frames import Channel, FrameError
from qtandem.core.providers.simulator.device import SimulatedDevice, Task

ENGINE = "qtandem.core.providers.simulator.engine"
# How soon a task that another process queued, stopped or re-opened is noticed.
_LOOK_S = 1.0
_TRIES = 2
_CHECK_S = 15.0


class EngineDied(Exception):
    """The engine process ended before it answered."""


class Engine:
    """One process with Qiskit in it. Circuits of users run there, so that none can hurt the worker."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            frames.command(ENGINE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env=frames.environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._channel = Channel(self._process.stdout, self._process.stdin)

    def request(self, message: Mapping[str, object], wanted: Callable[[], bool]) -> tuple[dict[str, Any], str | None]:
        """Send a request and wait for its answer while `wanted()`; raises `EngineDied`, `QtandemError`."""
        try:
            self._channel.write(message)
            while not select.select([self._output], [], [], _LOOK_S)[0]:
                if not wanted():
                    self.kill()
            answer = self._channel.read()
        except (OSError, FrameError) as error:
            self.kill()
            raise EngineDied(str(error)) from error
        if answer is None:
            self.kill()
            raise EngineDied(_how_it_ended(self._process.wait()))
        if not answer[0]["ok"]:
            raise QtandemError.from_wire(answer[0]["error"])
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Engines:
    """Warm engines: at most `limit` for tasks, and one more so that a check never waits for a task."""

    def __init__(self, limit: int) -> None:
        self._free = threading.Semaphore(limit)
        self._check = threading.Semaphore(1)
        self._lock = threading.Lock()
        self._idle: list[Engine] = []
        # The kernel ends an engine with the thread that started it, so one thread that stays starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="engine-starter")

    def check(self, message: Mapping[str, object]) -> dict[str, Any]:
        with self._check:
            engine = self._take()
            try:
                until = time.monotonic() + _CHECK_S
                return engine.request(message, lambda: time.monotonic() < until)[0]
            except EngineDied as error:
                raise QtandemError(
                    "bad-payload", "The simulator cannot digest the payload", cause=str(error)
                ) from error
            finally:
                self._give_back(engine)

    @contextlib.contextmanager
    def one(self) -> Any:
        """An engine for a task."""
        with self._free:
            engine = self._take()
            try:
                yield engine
            finally:
                self._give_back(engine)

    def _take(self) -> Engine:
        with self._lock:
            while self._idle:
                engine = self._idle.pop()
                if engine.alive:
                    return engine
        return self._starter.submit(Engine).result()

    def _give_back(self, engine: Engine) -> None:
        with self._lock:
            if engine.alive:
                self._idle.append(engine)


class Runner:
    """The thread that runs a device's tasks, once this process has the device's lock."""

    def __init__(self, device: SimulatedDevice, engines: Engines, options: Mapping[str, object]) -> None:
        self._device = device
        self._engines = engines
        self._options = dict(options)
        self._news = threading.Event()
        self._running: dict[str, Engine] = {}
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """There may be a task to run."""
        if self._thread is None:
            name = f"runner-{self._device.path.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._news.set()

    def stop(self, task: str) -> None:
        """End the engine of a task that is not wanted any more."""
        engine = self._running.pop(task, None)
        if engine is not None:
            engine.kill()
        self._news.set()

    def _run(self) -> None:
        lock = os.open(self._device.path / "runner.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._device.requeue_tasks()
        while True:
            self._news.clear()
            while (task := self._device.claim_task()) is not None:
                threading.Thread(target=self._work, args=(task,), name=task.id, daemon=True).start()
            self._news.wait(_LOOK_S)

    def _work(self, task: Task) -> None:
        try:
            self._execute(task)
        except QtandemError as error:
            self._device.fail_task(task.id, _words(error))
        except EngineDied as error:
            self._device.fail_task(task.id, f"the simulator went down {_TRIES} times on this task: {error}")
        finally:
            self._running.pop(task.id, None)
            self._news.set()

    def _execute(self, task: Task) -> None:
        started = time.monotonic()
        for attempt in range(1, _TRIES + 1):
            try:
                answer, text = self._once(task)
                break
            except EngineDied:
                if attempt == _TRIES or not self._device.is_running(task.id):
                    raise
        least = self._device.knobs().task_s
        while (left := started + least - time.monotonic()) > 0:
            if not self._device.is_running(task.id):
                return
            self._news.wait(min(left, _LOOK_S))
        usage_s = max(float(answer["seconds"]), least)
        self._device.finish_task(task.id, text or "", int(answer["shots"]), usage_s)

    def _once(self, task: Task) -> tuple[dict[str, Any], str | None]:
        with self._engines.one() as engine:
            self._running[task.id] = engine
            message = {"op": "run", "payload": task.payload, "options": self._options}
            answer: tuple[dict[str, Any], str | None] = engine.request(
                message, lambda: self._device.is_running(task.id)
            )
            self._running.pop(task.id, None)
            return answer


def _words(error: QtandemError) -> str:
    return f"{error.message} ({error.cause})" if error.cause else error.message


def _how_it_ended(returncode: int) -> str:
    return f"it was ended by {signal.Signals(-returncode).name}" if returncode < 0 else f"it exited with {returncode}"

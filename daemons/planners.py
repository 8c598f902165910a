"""The planner's processes: one for look-ups, which stays warm, and one for plans, which a solver may fill.

No solver is ever in the daemon. A process that does not answer in time is killed and started anew at the next use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.launching import Launcher
from qtandem.core.processes import Process, start_child
from qtandem.core.providers import frames
from qtandem.core.providers.frames import FrameError
from qtandem.core.providers.worker import Worker, WorkerDied
from qtandem.daemons.logs import log

SERVICE = "qtandem.core.planner.service"
# Most of an hour's first plan is compilation; a machine may be slow.
WARM_S, LOOK_S, ASK_S = 300.0, 60.0, 10.0
# What a plan may take beyond its own limit: reading the situation, checking, writing.
SPARE_S = 15.0
MEMORY_BYTES = 8 << 30
_NEEDS = ("ortools", "highspy", "numba", "numpy", "scipy")

Launch = Callable[[], Awaitable[Process]]


class Planners:
    """Both processes; `launch` starts one. Calls raise `no-planner` where the extra is not installed."""

    def __init__(self, launch: Launch, memory_bytes: int = MEMORY_BYTES) -> None:
        self._looking = _One(launch, memory_bytes, "look-ups")
        self._planning = _One(launch, memory_bytes, "plans")

    async def plan(self, message: Mapping[str, object], limit_s: float) -> dict[str, Any]:
        """A proposal; one at a time."""
        async with self._planning.lock:
            if not self._planning.warm:
                await self._planning.call({"do": "warm"}, WARM_S)
                self._planning.warm = True
            answer = await self._planning.call({"do": "plan", **message}, 1.1 * limit_s + SPARE_S)
        if not isinstance(answer, dict):
            raise QtandemError("internal", "The planner's process gave no plan")
        return answer

    async def look(self, message: Mapping[str, object]) -> None:
        """Take up a situation for look-ups."""
        async with self._looking.lock:
            await self._looking.call({"do": "look", **message}, LOOK_S)

    async def ask(self, message: Mapping[str, object], wait_s: float) -> dict[str, Any] | None:
        """A look-up's answer; None where there is none in `wait_s`, or nothing was taken up yet. Never raises."""
        if self._looking.lock.locked() or not self._looking.alive:
            return None
        task = asyncio.create_task(self._asked(message))
        await asyncio.wait({task}, timeout=wait_s)
        return task.result() if task.done() else None

    async def took(self, message: Mapping[str, object]) -> None:
        """Tell the look-ups of a job that has started. Never raises."""
        if self._looking.alive:
            await self._asked({"do": "took", **message})

    async def _asked(self, message: Mapping[str, object]) -> dict[str, Any] | None:
        async with self._looking.lock:
            try:
                answer = await self._looking.call({"do": "ask", **message}, ASK_S)
            except QtandemError as error:
                log("planning").warning("no look-up", why=error.one_line())
                return None
        return answer if isinstance(answer, dict) else None

    async def close(self) -> None:
        await asyncio.gather(self._looking.close(), self._planning.close())


class _One:
    """One process, started at its first call. Callers hold `lock`, since calls must not overlap."""

    def __init__(self, launch: Launch, memory_bytes: int, what: str) -> None:
        self._launch, self._memory_bytes, self._what = launch, memory_bytes, what
        self._worker: Worker | None = None
        self.lock = asyncio.Lock()
        self.warm = False

    @property
    def alive(self) -> bool:
        return self._worker is not None and self._worker.alive

    async def call(self, message: Mapping[str, object], deadline_s: float) -> object:
        """The value of the answer; raises the planner's own error, `no-planner` or `internal`."""
        worker = await self._started()
        try:
            answer = await worker.call(dict(message), deadline_s)
        except TimeoutError:
            raise QtandemError("internal", f"The process for {self._what} did not answer in {deadline_s:g} s") from None
        except (WorkerDied, FrameError) as error:
            raise QtandemError("internal", f"The process for {self._what} {_how(error)}") from None
        if not answer.ok:
            raise QtandemError.from_wire(answer.error or {})
        return answer.value

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker.close()
            self._worker = None

    async def _started(self) -> Worker:
        if self._worker is not None and self._worker.alive:
            return self._worker
        missing = [name for name in _NEEDS if find_spec(name) is None]
        if missing:
            message = f"The planner needs {', '.join(missing)}, not installed beside the daemon"
            raise QtandemError("no-planner", message, remedy="pip install 'qtandem[planner]' there.")
        self.warm = False
        try:
            self._worker = await Worker.start(self._launch, self._memory_bytes)
        except OSError as error:
            raise QtandemError("no-planner", f"The planner's process cannot be started: {error}", remedy="") from error
        log("planning").info("process started", purpose=self._what, pid=self._worker.pid)
        return self._worker


def _how(error: WorkerDied | FrameError) -> str:
    said = str(error)[:500]
    return f"was not asked, the cluster is too large for it: {said}" if isinstance(error, FrameError) else said


def launch_of(launcher: Launcher | None) -> Launch:
    """How to start a process: by the launcher under the workers' user, or as a child of the daemon."""

    async def child() -> Process:
        return await start_child(frames.command(SERVICE), frames.environment(), None)

    return launcher.planner if launcher is not None else child

"""The runner of a queue: starts what its QPUs and the machine allow, and tells the daemon of starts and ends.

Run it with `python -m qtandem.local.command run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qtandem.core.background import Background
from qtandem.core.errors import QtandemError
from qtandem.core.managers import SensorValue
from qtandem.local.bell import Bell
from qtandem.local.gate import Gate, Verdict
from qtandem.local.manager import grants_of, used_slots
from qtandem.local.process import Script, born, signal_group
from qtandem.local.sensors import SensorFile
from qtandem.local.store import ACTIVE, End, QueueStore, Row, State

log = logging.getLogger("qtandem.local")

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0
END_RETRY_S = 5.0
END_WAIT_S = 10.0


@dataclass(slots=True)
class _Active:
    """A job under way: what it shall do instead of going on, once `asked` is set."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: str = ""


class Runner:
    """Runs at most `limit` jobs at once. One runner a queue: a second raises `bad-config`."""

    def __init__(
        self, folder: Path, gate: Gate, *, limit: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._gate = gate
        self._limit = limit or max(4, 2 * (os.cpu_count() or 1))
        self._clock = clock
        self._store = QueueStore(folder)
        self._sensors = SensorFile(folder / "sensors.json")
        self._bell = Bell(folder / "bell")
        self._active: dict[int, _Active] = {}
        self._tasks = Background()
        self._rung = asyncio.Event()
        self._tell_later = False
        self._stopping = False

    def stop(self) -> None:
        """Give back what runs (jobs that can be requeued will run again) and let `run` return."""
        self._stopping = True
        self._rung.set()

    async def run(self) -> None:
        with self._only_one():
            fd = self._bell.open()
            loop = asyncio.get_running_loop()
            loop.add_reader(fd, self._on_ring)
            try:
                self._recover()
                while not self._stopping:
                    self._rung.clear()
                    await self._wait(self._cycle())
                await self._give_back()
            finally:
                loop.remove_reader(fd)
                self._bell.close()

    def _on_ring(self) -> None:
        self._bell.drain()
        self._rung.set()

    async def _wait(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    def _cycle(self) -> float | None:
        """Look at every job once; the seconds until one must be looked at without a ring."""
        for row in self._store.in_states(*ACTIVE):
            active = self._active.get(row.id)
            if active and row.wanted and not active.asked.is_set():
                active.wanted = row.wanted
                active.asked.set()
        self._report_ends()
        return self._start_what_fits()

    def _start_what_fits(self) -> float | None:
        try:
            values = self._sensors.read()
        except QtandemError as error:
            log.warning("%s", error.one_line())
            values = {}
        used = used_slots(self._store.in_states(*ACTIVE))
        now = self._clock()
        next_at: list[float] = []
        for row in self._store.in_states(State.PENDING):
            reason = self._why_not(row, values, used, now)
            if reason is None:
                for native, slots in grants_of(row.native).items():
                    used[native] = used.get(native, 0) + slots
                self._begin(row)
                continue
            if not row.held and row.eligible_at > now:
                next_at.append(row.eligible_at)
            if reason != row.reason:
                self._store.update(row.id, only=(State.PENDING,), reason=reason)
        return max(0.0, min(next_at) - now) if next_at else None

    def _why_not(self, row: Row, values: Mapping[str, SensorValue], used: Mapping[str, int], now: float) -> str | None:
        if row.held:
            return f"held: {row.comment}" if row.comment else "held"
        if row.eligible_at > now:
            return row.reason or "delayed"
        for native, slots in grants_of(row.native).items():
            value = values.get(native)
            if value is None:
                return f"qpu {native} closed: its sensor was never set"
            if value.open == 0:
                return f"qpu {native} closed: {value.closed} of {value.total} slots"
            if used.get(native, 0) + slots > value.open:
                return f"qpu {native} busy: {used.get(native, 0)} of {value.open} slots in use"
        return "machine full" if len(self._active) >= self._limit else None

    def _begin(self, row: Row) -> None:
        started: dict[str, Any] = {"state": State.STARTING, "reason": "", "wanted": "", "started_at": self._clock()}
        if not self._store.update(row.id, only=(State.PENDING,), **started):
            return
        self._active[row.id] = _Active()
        self._tasks.spawn(self._attend(row), name=f"job {row.id}")

    async def _attend(self, row: Row) -> None:
        try:
            await self._life(row)
        except QtandemError as error:
            log.error("job %d: %s", row.id, error.one_line())
        finally:
            self._active.pop(row.id, None)
            self._rung.set()

    async def _life(self, row: Row) -> None:
        active = self._active[row.id]
        env = {**row.env, "LOCAL_JOB_ID": str(row.id), "LOCAL_JOB_NAME": row.name}
        end: End | None = None
        if row.native:
            end = End(row.id, row.attempt, None)
            try:
                verdict = await self._admission(row, active)
                if verdict.word == "admit":
                    env |= await asyncio.to_thread(self._gate.environment, verdict.run)
                    self._store.update(row.id, run=verdict.run)
            except QtandemError as error:
                await self._back(row, end, error.message, self._backoff(row, error.retry_after))
                return
            if verdict.word != "admit":
                await self._back(row, end, verdict.message or "refused", max(1.0, verdict.retry_after))
                return
        status, why = await self._execute(row, active, env)
        await self._finish(row, end, status, why)

    async def _admission(self, row: Row, active: _Active) -> Verdict:
        while not active.asked.is_set():
            verdict = await asyncio.to_thread(self._gate.start, row, socket.gethostname())
            if verdict.word != "wait":
                return verdict
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(active.asked.wait(), verdict.retry_after)
        return Verdict("hold", message="stopped before its start")

    async def _execute(self, row: Row, active: _Active, env: Mapping[str, str]) -> tuple[int, str]:
        """Exit status and, where the job did not end by itself, why."""
        if active.asked.is_set():
            return -signal.SIGTERM, active.wanted
        output = Path(row.output.replace("%j", str(row.id)))
        try:
            script = await Script.start(row.argv, env, row.cwd, output)
        except OSError as error:
            log.warning("job %d cannot be started: %s", row.id, error)
            return 127, f"cannot be started: {error.strerror}: {error.filename}"
        self._store.update(row.id, state=State.RUNNING, pid=script.pid, born=script.born)
        asked = asyncio.create_task(active.asked.wait())
        exit_task = asyncio.create_task(script.wait(row.time_limit_s))
        await asyncio.wait({asked, exit_task}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not exit_task.done():
            status = await script.stop()
            await exit_task
            return status, active.wanted
        status_or_none = exit_task.result()
        if status_or_none is None:
            return await script.stop(), "time limit"
        signal_group(script.pid, signal.SIGKILL)
        return status_or_none, ""

    async def _finish(self, row: Row, end: End | None, status: int, why: str) -> None:
        if why == "requeue":
            await self._back(row, end, "requeued", 0.0)
            return
        state = State.CANCELLED if why == "cancel" else State.COMPLETED if status == 0 and not why else State.FAILED
        reason = {"cancel": "cancelled"}.get(why, why)
        if end is not None:
            end = End(end.job, end.attempt, status)
        await self._close(row, end)
        ended: dict[str, Any] = {"state": state, "reason": reason, "exit_code": status, "ended_at": self._clock()}
        self._store.update(row.id, **ended, pid=None, born=None)

    async def _back(self, row: Row, end: End | None, reason: str, after_s: float) -> None:
        """To the queue again, as the next attempt, or to the end where the job is not wanted any more."""
        await self._close(row, end)
        current = self._store.get(row.id)
        wanted = current.wanted if current else ""
        if wanted == "cancel":
            gone: dict[str, Any] = {"state": State.CANCELLED, "reason": "cancelled", "ended_at": self._clock()}
            self._store.update(row.id, **gone, pid=None, born=None)
            return
        self._store.update(
            row.id,
            state=State.PENDING,
            attempt=row.attempt + 1,
            reason=reason,
            refusals=0 if wanted == "requeue" else row.refusals + 1,
            eligible_at=self._clock() + after_s if after_s else 0.0,
            wanted="",
            run="",
            pid=None,
            born=None,
            started_at=None,
        )

    async def _close(self, row: Row, end: End | None) -> None:
        """Report the end while the job still counts, so that the next one finds the lease free."""
        if end is None:
            return
        self._store.finish(row.id, end, state=State.ENDING)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._tell_end(end), END_WAIT_S)

    async def _tell_end(self, end: End) -> bool:
        try:
            await asyncio.to_thread(self._gate.end, end)
        except QtandemError as error:
            log.warning("end of job %d: %s", end.job, error.one_line())
            if error.retryable:
                return False
        self._store.ended(end)
        return True

    def _report_ends(self) -> None:
        """Ends that the daemon did not confirm, of jobs that are gone from here, are told again."""
        if self._tell_later:
            return
        due = [end for end in self._store.ends() if end.job not in self._active]
        if due and not any(task.get_name() == "ends" for task in self._tasks):
            self._tasks.spawn(self._retell(due), name="ends")

    async def _retell(self, due: list[End]) -> None:
        for end in due:
            if not await self._tell_end(end):
                break
        if self._store.ends():
            self._tell_later = True
            asyncio.get_running_loop().call_later(END_RETRY_S, self._tell_again)

    def _tell_again(self) -> None:
        self._tell_later = False
        self._rung.set()

    def _backoff(self, row: Row, retry_after: float | None) -> float:
        if retry_after:
            return retry_after
        return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * float(2 ** min(row.refusals, 10)))

    def _recover(self) -> None:
        """Jobs that a runner before us left: stop what still runs, and report the end."""
        for row in self._store.in_states(*ACTIVE):
            if row.pid is not None and row.born is not None and born(row.pid) == row.born:
                signal_group(row.pid, signal.SIGKILL)
            values: dict[str, Any] = {"pid": None, "born": None, "wanted": ""}
            if row.wanted == "cancel":
                values |= {"state": State.CANCELLED, "reason": "cancelled", "ended_at": self._clock()}
            elif row.can_requeue and row.state is not State.ENDING:
                values |= {"state": State.PENDING, "attempt": row.attempt + 1, "run": "", "started_at": None}
            else:
                values |= {"state": State.FAILED, "reason": "the runner died", "ended_at": self._clock()}
            self._store.finish(row.id, End(row.id, row.attempt, None) if row.native else None, **values)

    async def _give_back(self) -> None:
        for row in self._store.in_states(*ACTIVE):
            active = self._active.get(row.id)
            if active and not active.asked.is_set():
                active.wanted = "requeue" if row.can_requeue else "cancel"
                self._store.update(row.id, wanted=active.wanted)
                active.asked.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @contextlib.contextmanager
    def _only_one(self) -> Any:
        with open(self._folder / "runner.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise QtandemError("bad-config", f"{self._folder} has a runner already") from None
            yield

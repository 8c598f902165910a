"""The bounded set of worker processes through which the daemon calls every vendor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import structlog

from qtandem.core.background import Background
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Observation
from qtandem.core.processes import Process, start_child
from qtandem.core.providers import frames
from qtandem.core.providers.base import ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.frames import FrameError
from qtandem.core.providers.lanes import Family, Lane, Lanes, Purpose, Whose
from qtandem.core.providers.secrecy import digest, redact
from qtandem.core.providers.worker import CHILD, Answer, Sink, Worker, WorkerDied

_PING_S = 1.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker. `pid` is None while none runs; `rss` in bytes includes what the worker itself started."""

    type: str
    purpose: Purpose
    resources: tuple[str, ...]
    pid: int | None
    rss: int
    calls: int
    kills: int


class _Call(NamedTuple):
    spec: ProviderSpec
    method: str
    args: tuple[object, ...]
    deadline_s: float
    sink: Sink | None


class Workers:
    """Calls to providers in warm children, at most `limit` of them, kept apart by type, credential and purpose.

    Who shares a child is the lanes' to say. `observing` are the specs of those that observe with a credential of
    their own.

    Every call runs to its end or its deadline even when its caller is cancelled, so that a child is never
    left in the middle of an answer. `memory_bytes` bounds the address space of each child. `launch` starts the
    process of a child for providers of one type, if it is not to be a child of this process under its uid;
    `command` is argv of such a child, if it is not to be this interpreter with `child.main`.
    """

    def __init__(
        self,
        specs: Mapping[str, ProviderSpec],
        limit: int = 16,
        deadline_s: float = 30.0,
        *,
        memory_bytes: int = 4 << 30,
        command: Sequence[str] | None = None,
        launch: Callable[[str], Awaitable[Process]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        observing: Mapping[str, ProviderSpec] | None = None,
    ) -> None:
        self._specs = dict(specs)
        self._observing = dict(observing or {})
        self._limit = limit
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._command = frames.command(CHILD) if command is None else list(command)
        self._launch = launch or self._start_child
        self._clock = clock
        self._lanes = Lanes(limit)
        self._lanes.expect([*self._specs.values(), *self._observing.values()])
        self._running = Background()
        self._idle = asyncio.Event()
        self._live = 0
        self._closed = False

    async def call(
        self,
        resource: str,
        method: str,
        *args: object,
        purpose: Purpose = "observe",
        deadline_s: float | None = None,
        secrets: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> object:
        """Call a provider's method and return what it returns; a text goes to `sink` instead, if there is one.

        `secrets` go before the resource's own settings; nobody else's calls share a child with them.

        The deadline counts from when the child gets the call. Raises what the provider raised, `vendor-timeout`
        at the deadline (the child is killed), `vendor-error` when the child crashed, flooded or babbled.
        """
        spec = _with(self._spec(resource, purpose), secrets)
        if self._closed:
            raise QtandemError("not-available", "The daemon is stopping")
        deadline = self._deadline_s if deadline_s is None else deadline_s
        what = _Call(spec, method, args, deadline, sink)
        task = self._running.spawn(self._serve(what, Whose(purpose, digest(secrets or {}))), forgiven=True)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise QtandemError("not-available", "The daemon is stopping") from None
            raise

    async def acquire(self, resource: str, key: str, slots: int) -> str:
        return str(await self.call(resource, "acquire", key, slots, purpose="execute"))

    async def release(self, resource: str, token: str) -> None:
        await self.call(resource, "release", token, purpose="execute")

    async def find_session(self, resource: str, key: str) -> str | None:
        found = await self.call(resource, "find_session", key, purpose="execute")
        return None if found is None else str(found)

    async def update(
        self, specs: Mapping[str, ProviderSpec], observing: Mapping[str, ProviderSpec] | None = None
    ) -> None:
        """Take over a new configuration: workers that nothing refers to any more end when they are idle."""
        self._specs, self._observing = dict(specs), dict(observing or {})
        self._lanes.expect([*self._specs.values(), *self._observing.values()])
        wanted = {(spec.type, digest(spec.settings)) for spec in [*self._specs.values(), *self._observing.values()]}
        await self._keep(lambda family, settings: (family.type, settings) in wanted)

    async def forget(self, secrets: Mapping[str, str]) -> None:
        """End the workers that were called with these secrets, when they are idle."""
        gone = digest(secrets)
        await self._keep(lambda family, _: family.whose.secrets != gone)

    async def _keep(self, wanted: Callable[[Family, str], bool]) -> None:
        for lane in self._lanes.keep(wanted):
            async with lane.lock:
                await self._drop(lane)

    async def close(self) -> None:
        """Kill what still runs and end all children."""
        self._closed = True
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(lane.worker.close() for lane in self._lanes.all() if lane.worker))
        self._lanes.clear()
        self._live = 0

    def crowded(self) -> str:
        """A sentence where there are more credentials than workers, so that polls start processes all the time."""
        credentials = self._lanes.credentials
        if credentials <= self._limit:
            return ""
        return f"{self._limit} workers serve {credentials} credentials, each started anew in turn; raise timing.workers"

    def running(self) -> int:
        """Worker processes that are there now."""
        return self._live

    def stats(self) -> list[WorkerStats]:
        """Reads the memory of every process, which is slow: call it in a thread, where it is safe too."""
        return [_stats(lane) for lane in self._lanes.all()]

    def _spec(self, resource: str, purpose: Purpose) -> ProviderSpec:
        spec = self._specs.get(resource)
        if purpose == "observe":
            spec = self._observing.get(resource, spec)
        if spec is None:
            raise QtandemError("unknown-resource", f"No resource is called {resource!r}")
        return spec

    async def _serve(self, call: _Call, whose: Whose) -> object:
        while True:
            lane = self._lanes.of(call.spec, whose)
            async with lane.lock:
                if lane not in self._lanes.all():
                    continue
                try:
                    answer = await self._serve_in(lane, call)
                finally:
                    self._idle.set()
            return _outcome(answer, call.method, call.spec)

    async def _serve_in(self, lane: Lane, call: _Call) -> Answer:
        worker = await self._ready(lane, call.deadline_s)
        lane.calls += 1
        lane.used_at = self._clock()
        try:
            return await self._ask(lane, worker, call)
        finally:
            if not worker.alive:
                await self._drop(lane)

    async def _ask(self, lane: Lane, worker: Worker, call: _Call) -> Answer:
        spec, method = call.spec, call.method
        message: dict[str, object] = {"resource": spec.resource, "method": method, "args": call.args}
        if lane.told.get(spec.resource) != spec:
            message["spec"] = asdict(spec) | {"settings": dict(spec.settings)}
        try:
            answer = await worker.call(message, call.deadline_s, call.sink)
        except TimeoutError:
            lane.kills += 1
            self._lanes.hung(spec, lane.family.whose)
            _log.warning("worker killed", resource=spec.resource, method=method, pid=worker.pid, why="deadline")
            raise QtandemError(
                "vendor-timeout", f"{spec.resource} did not answer {method} within {call.deadline_s:g} s"
            ) from None
        except WorkerDied as error:
            lane.kills += 1
            why = redact(str(error), spec.settings)
            _log.warning("worker died", resource=spec.resource, method=method, pid=worker.pid, why=why)
            raise QtandemError(
                "vendor-error", f"The provider of {spec.resource} failed in {method}", cause=why
            ) from None
        except FrameError as error:
            raise QtandemError(
                "too-large", f"The call {method} to {spec.resource} is too large", cause=str(error)
            ) from None
        except asyncio.CancelledError:
            await worker.kill()
            raise
        self._lanes.answered(spec, lane.family.whose)
        if answer.opened:
            lane.told[spec.resource] = spec
        lane.kills += answer.last
        return answer

    async def _ready(self, lane: Lane, deadline_s: float) -> Worker:
        """The lane's worker, started if there is none; the lane is locked."""
        if lane.worker is not None and lane.worker.alive:
            return lane.worker
        await self._drop(lane)
        until = self._clock() + deadline_s
        while self._live >= self._limit and not await self._evict():
            if self._clock() > until:
                raise QtandemError("vendor-timeout", f"All {self._limit} workers were busy for {deadline_s:g} s")
            self._idle.clear()
            # A worker that ends its background work tells nobody: look again after a while.
            await _wait(self._idle, min(_PING_S, deadline_s))
        self._live += 1
        try:
            lane.worker = await Worker.start(partial(self._launch, lane.family.type), self._memory_bytes)
        except BaseException as error:
            self._live -= 1
            if isinstance(error, OSError):
                raise QtandemError("no-worker", "No worker process can be started", cause=str(error)) from error
            raise
        _log.debug("worker started", type=lane.family.type, purpose=lane.family.whose.purpose, pid=lane.worker.pid)
        return lane.worker

    async def _start_child(self, _type: str) -> Process:
        return await start_child(self._command, frames.environment(), Path("/"))

    async def _evict(self) -> bool:
        """End the worker that has been idle longest and does nothing in the background.

        True when there is room for one more worker.
        """
        idle = [lane for lane in self._lanes.all() if lane.worker and not lane.lock.locked()]
        for lane in sorted(idle, key=lambda lane: lane.used_at):
            async with lane.lock:
                if lane.worker is None or await _still_busy(lane.worker):
                    continue
                await self._drop(lane)
            if self._live < self._limit:
                return True
        return False

    async def _drop(self, lane: Lane) -> None:
        worker, lane.worker = lane.worker, None
        lane.told.clear()
        if worker is not None:
            try:
                await worker.close()
            finally:
                self._live -= 1


def _with(spec: ProviderSpec, secrets: Mapping[str, str] | None) -> ProviderSpec:
    return replace(spec, settings={**spec.settings, **secrets}) if secrets else spec


def _outcome(answer: Answer, method: str, spec: ProviderSpec) -> object:
    if not answer.ok:
        raise _error(answer.error or {}, spec)
    try:
        return _revive(answer.value, method, spec)
    except (ValueError, TypeError, KeyError) as error:
        raise QtandemError(
            "vendor-error", f"The provider of {spec.resource} answered {method} wrongly", cause=str(error)
        ) from error


def _revive(value: object, method: str, spec: ProviderSpec) -> object:
    if method == "observe":
        return Observation.model_validate(value)
    if method == "task_status" and isinstance(value, dict):
        return _report(value)
    if method == "task_statuses" and isinstance(value, dict):
        return {
            task: _report(each["report"]) if "report" in each else _error(each["error"], spec)
            for task, each in value.items()
        }
    return value


def _report(row: Mapping[str, Any]) -> TaskReport:
    return TaskReport(**{**row, "state": TaskState(row["state"])})


def _error(wire: Mapping[str, object], spec: ProviderSpec) -> QtandemError:
    """What the provider raised, without the secrets that a vendor may have repeated."""
    plain = {key: redact(value, spec.settings) if isinstance(value, str) else value for key, value in wire.items()}
    return QtandemError.from_wire(plain)


async def _still_busy(worker: Worker) -> bool:
    if not worker.busy:
        return False
    try:
        return (await worker.call({"method": "ping"}, _PING_S)).busy
    except (TimeoutError, WorkerDied):
        return False


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _stats(lane: Lane) -> WorkerStats:
    worker = lane.worker
    pid = worker.pid if worker is not None and worker.alive else None
    resources = tuple(sorted(lane.told))
    return WorkerStats(lane.family.type, lane.family.whose.purpose, resources, pid, _rss(pid), lane.calls, lane.kills)


def _rss(pid: int | None) -> int:
    if pid is None:
        return 0
    total = 0
    try:
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            total += each.memory_info().rss
    except psutil.Error:
        return total
    return total

"""Tasks on held leases: taken in, driven when it is their turn, and answered for afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease, LeaseState, Task
from qtandem.core.leases.queries import Filter
from qtandem.core.providers.base import TaskState
from qtandem.core.signals import Signals
from qtandem.daemons.drive import Caller, Driver, Live
from qtandem.daemons.logs import log
from qtandem.daemons.taskfiles import TaskFiles
from qtandem.daemons.turns import Rules, Turns

# What one uid may have under way: more is refused with "try again", so that nobody fills the disk.
MAX_TASKS, MAX_BYTES = 1000, 256 * 2**20
REMEMBERED = 4096
STOP_WAIT_S = 3.0
_VERSION = re.compile(r"v?\d+(\.\w+)+([+-][\w.]+)?")


class Ledger(Protocol):
    """The store's tasks, off the event loop."""

    async def add_task(self, task: Task) -> Task: ...

    async def update_task(self, task: Task) -> None: ...

    async def task(self, id: str) -> Task | None: ...

    async def tasks(self, where: Filter) -> list[Task]: ...


class Leases(Protocol):
    """The part of the lease service that tells what is held."""

    def lease(self, id: str) -> Lease | None: ...

    def leases(self) -> list[Lease]: ...

    def usable(self, id: str, uid: int) -> Lease: ...

    def holder(self, id: str) -> tuple[str, str | None] | None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What a resource adds to a task's record."""

    price: float | None = None
    currency: str = ""
    calibration_at: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def _unlimited(_resource: str) -> Rules:
    return Rules()


class Tasks:
    """Starts, follows and stops tasks, and answers for those of the past from the store."""

    def __init__(
        self,
        ledger: Ledger,
        leases: Leases,
        workers: Caller,
        state_dir: Path,
        signals: Signals,
        terms: Callable[[str], Terms],
        *,
        clock: Callable[[], float],
        rules: Callable[[str], Rules] = _unlimited,
    ) -> None:
        self.finished = 0
        self._ledger, self._leases, self._workers = ledger, leases, workers
        self._signals, self._terms, self._clock = signals, terms, clock
        self._files = TaskFiles(state_dir)
        self._live: dict[str, Live] = {}
        self._ended: OrderedDict[str, Task] = OrderedDict()
        self._rules = rules
        self._turns = Turns(self._begin, self._usable, leases.holder, rules, clock)
        self._finds: dict[str, bool] = {}
        self._told_versions: dict[str, Mapping[str, str]] = {}
        self._closing = False
        self._driver = Driver(workers, self._token, self._save, self._payload, self._finds_tasks, clock)

    async def open(self) -> None:
        """Take up again what was under way when the daemon ended."""
        for task in await self._ledger.tasks(Filter(open=True)):
            live = Live(task, resumed=True)
            self._live[task.id] = live
            if self._token(task.lease) is None:
                live.halt("the lease ended")
            self._turns.add(live)

    def answer_all(self) -> None:
        """Have every call that waits for a task answered with the task as it is."""
        self._closing = self._turns.closed = True
        for id in self._live:
            self._signals.send(f"task {id}")

    async def close(self) -> None:
        """Leave everything as it is on disk; vendors go on with what they have."""
        self._closing = self._turns.closed = True
        runners = [live.runner for live in self._live.values() if live.runner]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def start(self, lease: Lease, uid: int, payload: Mapping[str, Any], key: str) -> Task:
        """Accept a task on a held lease; the same key on it gives the task of then."""
        task = _new_task(lease, uid, payload, key, self._terms(lease.resource), self._clock())
        if self._turns.at_once(lease):
            task = replace(task, state=TaskState.SUBMITTING)
        size = len(json.dumps(payload))
        self._bound(lease, uid, size)
        live = Live(task, bytes=size)
        self._live[task.id] = live
        try:
            noted = await self._noted(task, payload)
        except BaseException:
            del self._live[task.id]
            raise
        if noted.id != task.id:
            del self._live[task.id]
            await asyncio.to_thread(self._files.drop_payload, task.id)
            return noted
        live.task = noted
        self._turns.add(live)
        return noted

    def choose_lease(self, uid: int, lease: str, resource: str, claim: str = "", *, everybody: bool = False) -> Lease:
        """The held lease that a call means: the one named, or the caller's only one (on the resource, of the claim)."""
        if lease:
            known = self._leases.lease(lease)
            found = self._leases.usable(lease, known.uid if known is not None and everybody else uid)
            if resource and found.resource != resource:
                raise QtandemError("no-lease", f"The lease {lease} is on {found.resource}, not on {resource}")
            return found
        held = [
            each
            for each in self._leases.leases()
            if each.uid == uid
            and resource in ("", each.resource)
            and claim in ("", each.claim)
            and self._usable(each.id)
        ]
        if not held:
            where = (f" on {resource}" if resource else "") + (f" by the claim {claim[:64]}" if claim else "")
            raise QtandemError("no-lease", f"You hold no lease{where}")
        if len(held) > 1:
            ids = ", ".join(each.id for each in held[:5])
            raise QtandemError("ambiguous", f"You hold {len(held)} leases there: {ids}", remedy="Name the lease.")
        return held[0]

    async def get(self, id: str) -> Task:
        """A task by id; raises `no-such-run`."""
        if id in self._live:
            return self._live[id].task
        task = self._ended.get(id) or await self._ledger.task(id)
        if task is None:
            raise QtandemError("no-such-run", f"There is no task {id[:64]!r}")
        return task

    async def of(self, where: Filter) -> list[Task]:
        return [self._live[task.id].task if task.id in self._live else task for task in await self._ledger.tasks(where)]

    async def wait(self, id: str, timeout: float) -> Task:
        """The task once its state is another than now, or it is final, or `timeout` seconds are over."""
        before = await self.get(id)
        with self._signals.watch(f"task {id}") as watch:
            task = await self.get(id)
            if task.state is before.state and not task.state.final and timeout > 0 and not self._closing:
                await watch.next(timeout)
        return await self.get(id)

    async def result(self, id: str) -> str:
        """The vendor's result text; `task-not-ready` before it is there, `task-failed` if it never will be."""
        task = await self.get(id)
        if not task.state.final:
            raise QtandemError("task-not-ready", f"The task {id} is {task.state}", retry_after=1.0)
        if task.state is not TaskState.COMPLETED:
            why = f": {task.reason}" if task.reason else ""
            raise QtandemError("task-failed", f"The task {id} is {task.state}{why}")
        kept = await asyncio.to_thread(self._files.result, id, task.uid)
        if kept is not None:
            return kept
        text = str(await self._call(task, "task_result", task.vendor_task))
        await asyncio.to_thread(self._files.put_result, id, task.uid, text)
        return text

    async def logs(self, id: str) -> str:
        task = await self.get(id)
        if task.vendor_task is None:
            return f"{task.state}{f': {task.reason}' if task.reason else ''}\n"
        return str(await self._call(task, "task_logs", task.vendor_task))

    async def stop(self, id: str) -> Task:
        """Cancel if still possible; an ended task is no error. Returns within seconds, whatever the vendor does."""
        await self._halt([live for live in [self._live.get(id)] if live], "stopped by its owner")
        return await self.get(id)

    async def stop_owners(self, owners: Collection[str], reason: str = "the lease ended") -> None:
        """Stop all tasks of these runs and claims, before their leases are given back."""
        await self._halt([live for live in self._live.values() if live.task.owner in owners], reason)

    async def watch_leases(self) -> None:
        """Stop the tasks of leases that ended in another way than by `stop_owners`; runs for ever."""
        with self._signals.watch("leases") as watch:
            while True:
                await watch.next()
                orphans = [
                    live for live in self._live.values() if live.stop is None and self._token(live.task.lease) is None
                ]
                if orphans:
                    await self._halt(orphans, "the lease ended")

    async def sweep(self) -> None:
        await asyncio.to_thread(self._files.sweep, self._clock())

    def under_way(self) -> dict[str, int]:
        """Tasks that have not ended, by state."""
        counts: dict[str, int] = {}
        for live in self._live.values():
            counts[live.task.state.value] = counts.get(live.task.state.value, 0) + 1
        return counts

    def _bound(self, lease: Lease, uid: int, size: int) -> None:
        most = self._rules(lease.resource).of_lease
        if most is not None and sum(live.task.lease == lease.id for live in self._live.values()) >= most:
            raise QtandemError(
                "too-many-tasks", f"The lease has {most} tasks under way, the most on {lease.resource}", retry_after=1.0
            )
        mine = [live for live in self._live.values() if live.task.uid == uid]
        if len(mine) >= MAX_TASKS or sum(live.bytes for live in mine) + size > MAX_BYTES:
            raise QtandemError(
                "too-many-tasks", f"You have {len(mine)} tasks under way, which is the most", retry_after=5.0
            )

    def _begin(self, live: Live) -> None:
        live.runner = asyncio.create_task(self._run(live), name=f"task {live.task.id}")

    async def _run(self, live: Live) -> None:
        task = live.task
        try:
            await self._driver.drive(live)
        except Exception:
            # Its row stays as it is: the next daemon takes the task up again.
            log("fault").exception("fault", loop="task", task=task.id)
            self._live.pop(task.id, None)
        finally:
            self._turns.ended(live)
        await asyncio.to_thread(self._files.drop_payload, task.id)

    async def _halt(self, lives: list[Live], reason: str) -> None:
        for live in lives:
            live.halt(reason)
            self._turns.hurry(live)
        runners = [live.runner for live in lives if live.runner]
        if runners:
            await asyncio.wait(runners, timeout=STOP_WAIT_S)

    async def _noted(self, task: Task, payload: Mapping[str, Any]) -> Task:
        """The task as it stands on disk, with its payload: both at once, since each takes a while."""
        kept = asyncio.create_task(asyncio.to_thread(self._files.put_payload, task.id, payload))
        try:
            noted = await self._ledger.add_task(task)
        except BaseException:
            await asyncio.wait([kept])
            await asyncio.to_thread(self._files.drop_payload, task.id)
            raise
        try:
            await kept
        except QtandemError as error:
            if noted.id == task.id:
                await self._ledger.update_task(replace(task, state=TaskState.FAILED, reason=error.message))
            raise
        return noted

    async def _save(self, live: Live, task: Task, result: str | None = None) -> None:
        if task.state is TaskState.COMPLETED and task.cost is None:
            versions = {**task.versions, **await self._versions(task)}
            task = replace(task, cost=self._terms(task.resource).price, versions=versions)
        kept = self._keep_result(task, result) if result is not None else asyncio.sleep(0)
        await asyncio.gather(self._ledger.update_task(task), kept)
        live.task = task
        if task.state.final:
            self.finished += 1
            self._live.pop(task.id, None)
            self._ended[task.id] = task
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
            log("tasks").info("task ended", task=task.id, state=str(task.state), resource=task.resource)
        self._signals.send(f"task {task.id}")

    def _usable(self, id: str) -> Lease | None:
        lease = self._leases.lease(id)
        if lease is None or lease.state is not LeaseState.HELD:
            return None
        try:
            return self._leases.usable(id, lease.uid)
        except QtandemError:
            return None

    def _token(self, lease: str) -> str | None:
        usable = self._usable(lease)
        return usable.token if usable is not None else None

    async def _payload(self, id: str) -> Mapping[str, Any] | None:
        return await asyncio.to_thread(self._files.payload, id)

    async def _keep_result(self, task: Task, text: str) -> None:
        """The vendor still has what the disk does not take: whoever asks for it asks the vendor then."""
        try:
            await asyncio.to_thread(self._files.put_result, task.id, task.uid, text)
        except QtandemError as error:
            log("tasks").warning("result not kept", task=task.id, why=error.one_line())

    async def _call(self, task: Task, method: str, *args: object) -> object:
        return await self._workers.call(task.resource, method, *args, purpose="execute", uid=task.uid)

    async def _versions(self, task: Task) -> Mapping[str, str]:
        """Versions of the programs that took part, as the provider tells them; asked once in the daemon's life."""
        resource = task.resource
        if resource not in self._told_versions:
            try:
                told = await self._call(task, "metadata")
            except QtandemError:
                return {}
            pairs = told.items() if isinstance(told, dict) else ()
            self._told_versions[resource] = {key: value for key, value in pairs if _VERSION.fullmatch(str(value))}
        return self._told_versions[resource]

    async def _finds_tasks(self, task: Task) -> bool:
        resource = task.resource
        if resource not in self._finds:
            found = await self._call(task, "capabilities")
            self._finds[resource] = isinstance(found, dict) and bool(found.get("finds_tasks"))
        return self._finds[resource]


def _new_task(lease: Lease, uid: int, payload: Mapping[str, Any], key: str, terms: Terms, now: float) -> Task:
    kind = payload.get("kind")
    if not isinstance(kind, str) or not kind or len(kind) > 64:
        raise QtandemError(
            "bad-payload", "The payload has no kind", remedy="Give kind: qasm2, qasm3 or qiskit-primitive."
        )
    shots = payload.get("shots")
    if shots is not None and (not isinstance(shots, int) or isinstance(shots, bool) or not 0 <= shots < 2**31):
        # 0 asks some simulators for the exact result; others refuse it.
        raise QtandemError("bad-payload", "shots is not a whole number that a machine could run")
    id = uuid.uuid4().hex
    return Task(
        id=id,
        lease=lease.id,
        owner=lease.owner,
        resource=lease.resource,
        uid=uid,
        key=key or id,
        kind=kind,
        created_at=now,
        state=TaskState.QUEUED,
        payload_sha256=_digest(payload),
        circuit_sha256=_digest(payload.get("program", payload.get("input", payload))),
        shots=shots,
        currency=terms.currency,
        calibration_at=terms.calibration_at,
        versions=dict(terms.versions),
    )


def _digest(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

"""Tasks on held leases: taken in, driven when it is their turn, and answered for afterwards."""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease, LeaseState, Task
from qtandem.core.leases.queries import Filter
from qtandem.core.providers.base import TaskState
from qtandem.core.signals import Signals
from qtandem.daemons.drive import Driver, Live
from qtandem.daemons.logs import log
from qtandem.daemons.noted import Terms, new_task, priced
from qtandem.daemons.results import Results
from qtandem.daemons.taskfiles import TaskFiles
from qtandem.daemons.turns import Rules, Turns
from qtandem.daemons.vendorcalls import Calls

# What one uid may have under way: more is refused with "try again", so that nobody fills the disk.
MAX_TASKS, MAX_BYTES = 1000, 256 * 2**20
# A payload of up to so many bytes waits for its turn in memory too.
SMALL = 64 * 1024
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


def _unlimited(_resource: str) -> Rules:
    return Rules()


class Tasks:
    """Starts, follows and stops tasks, and answers for those of the past from the store."""

    def __init__(
        self,
        ledger: Ledger,
        leases: Leases,
        calls: Calls,
        state_dir: Path,
        signals: Signals,
        terms: Callable[[str], Terms],
        *,
        clock: Callable[[], float],
        rules: Callable[[str], Rules] = _unlimited,
    ) -> None:
        self.finished = 0
        self._ledger, self._leases, self._calls = ledger, leases, calls
        self._signals, self._terms, self._clock = signals, terms, clock
        self._files = TaskFiles(state_dir)
        self._results = Results(self._files, calls)
        self._live: dict[str, Live] = {}
        # Tasks that have ended and are being written.
        self._settling: dict[str, Live] = {}
        self._ended: OrderedDict[str, Task] = OrderedDict()
        self._rules = rules
        self._turns = Turns(self._begin, self._usable, leases.holder, rules, clock)
        self._finds: dict[str, bool] = {}
        self._told_versions: dict[str, Mapping[str, str]] = {}
        self._closing = False
        self._driver = Driver(
            calls, self._token, self._save, self._tell, self._results, self._payload, self._finds_tasks, clock
        )

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
        runners = [live.runner for live in [*self._live.values(), *self._settling.values()] if live.runner]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def start(self, lease: Lease, uid: int, payload: Mapping[str, Any], key: str) -> Task:
        """Accept a task on a held lease; the same key on it gives the task of then."""
        task = new_task(lease, uid, payload, key, self._terms(lease.resource), self._clock())
        if self._turns.at_once(lease):
            task = replace(task, state=TaskState.SUBMITTING)
        size = len(json.dumps(payload))
        self._bound(lease, uid, size)
        live = Live(task, bytes=size, payload=payload if size <= SMALL else None)
        self._live[task.id] = live
        try:
            noted = await self._noted(task, payload)
        except BaseException:
            del self._live[task.id]
            raise
        if noted.id != task.id:
            del self._live[task.id]
            await asyncio.to_thread(self._files.drop_payload, task.id)
            return self._newest(noted)
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
            ids = ", ".join(f"{each.id} ({each.resource})" for each in held[:5])
            remedy = "Name the QPU (--resource NAME), or the claim (QTANDEM_CLAIM=ID), or do it inside the job."
            raise QtandemError("ambiguous", f"You hold {len(held)} leases there: {ids}", remedy=remedy)
        return held[0]

    async def get(self, id: str) -> Task:
        """A task by id; raises `no-such-run`."""
        if id in self._live:
            return self._live[id].task
        task = self._ended.get(id) or await self._ledger.task(id)
        if task is None:
            raise QtandemError("no-such-run", f"There is no task {id[:64]!r}", remedy="See: qtandem task list")
        return task

    async def of(self, where: Filter) -> list[Task]:
        return [self._newest(task) for task in await self._ledger.tasks(where)]

    def _newest(self, task: Task) -> Task:
        live = self._live.get(task.id)
        return live.task if live is not None else self._ended.get(task.id, task)

    async def wait(self, id: str, timeout: float) -> Task:
        """The task once its state is another than now, or it is final, or `timeout` seconds are over."""
        before = await self.get(id)
        with self._signals.watch(f"task {id}") as watch:
            task = await self.get(id)
            if task.state is before.state and not task.state.final and timeout > 0 and not self._closing:
                await watch.next(timeout)
        return await self.get(id)

    async def result(self, id: str) -> BinaryIO:
        """A file with the vendor's text; `task-not-ready` before it is there, `task-failed` if it never will be."""
        task = await self.get(id)
        if not task.state.final:
            raise QtandemError("task-not-ready", f"The task {id} is {task.state}", retry_after=1.0)
        if task.state is not TaskState.COMPLETED:
            why = f": {task.reason}" if task.reason else ""
            raise QtandemError("task-failed", f"The task {id} is {task.state}{why}")
        return await self._results.open(task)

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
        await self.written()

    async def written(self) -> None:
        """Return when the tasks that have ended are on disk, or after a few seconds."""
        runners = [live.runner for live in self._settling.values() if live.runner]
        if runners:
            await asyncio.wait(runners, timeout=STOP_WAIT_S)

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

    def look(self, resource: str, vendor_task: str) -> None:
        """Have the vendor's task looked at now."""
        for live in self._live.values():
            if (live.task.vendor_task, live.task.resource) == (vendor_task, resource):
                live.nudge.set()

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
            self._settling.pop(task.id, None)
            self._turns.ended(live)
        if live.task.usage_s is not None:
            self._turns.used(live)
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

    async def _save(self, live: Live, task: Task) -> None:
        if task.vendor_task is not None:
            task = replace(priced(task, self._terms), versions={**task.versions, **await self._versions(task)})
        await self._ledger.update_task(task)
        self._tell(live, task)

    def _tell(self, live: Live, task: Task) -> None:
        """Let everybody see how the task stands. One that has ended makes room for the next."""
        ended = task.state.final and not live.task.state.final
        live.task = task = priced(task, self._terms)
        if task.state.final:
            self._ended[task.id] = task
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        if ended:
            self.finished += 1
            self._live.pop(task.id, None)
            self._settling[task.id] = live
            log("tasks").info("task ended", task=task.id, state=str(task.state), resource=task.resource)
        self._signals.send(f"task {task.id}")
        if ended:
            self._turns.ended(live)

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

    async def _call(self, task: Task, method: str, *args: object) -> object:
        return await self._calls.call(task.resource, method, *args, purpose="execute", uid=task.uid)

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

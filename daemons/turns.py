"""Whose task is next: at most `slots` of a lease at once, and at most so many of a resource as the site says.

Within a lease the order is that of arrival. Between leases it matters only where the resource is limited; there

- `fair`: the user who has had least of the resource lately goes first, then the lease that has had least. What
  somebody has had is counted in seconds that their tasks took, and halves every hour;
- `priority`: the highest number of the lease's user or account goes first, equal ones are `fair`;
- `arrival`: the task that came first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from qtandem.core.leases.model import Lease, Task
from qtandem.daemons.drive import Live

Order = Literal["fair", "priority", "arrival"]
HALF_LIFE_S = 3600.0
# What a task is taken to last while nothing is known of its resource.
FIRST_GUESS_S = 1.0
_NEWEST_WEIGHS = 0.2
_FORGOTTEN_S = 0.01


@dataclass(frozen=True, slots=True)
class Rules:
    """A resource's limits: tasks at the vendor at once, tasks of one lease that have not ended; None is no limit.

    `priority` is by user or account; nobody named there has 0.
    """

    at_once: int | None = None
    of_lease: int | None = None
    order: Order = "fair"
    priority: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Share:
    """Seconds that somebody has had, as they weigh at `at`."""

    seconds: float = 0.0
    at: float = 0.0

    def now(self, time: float) -> float:
        return self.seconds * math.exp2(-max(0.0, time - self.at) / HALF_LIFE_S)

    def add(self, seconds: float, time: float) -> None:
        self.seconds, self.at = max(0.0, self.now(time) + seconds), time


@dataclass(slots=True)
class _Queue:
    """One lease's tasks."""

    lease: str
    uid: int
    waiting: deque[tuple[int, Live]] = field(default_factory=deque)
    running: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Started:
    at: float
    charged: float


@dataclass(slots=True)
class _Line:
    """One resource's leases with tasks, what is under way, and who has had how much of it."""

    queues: dict[str, _Queue] = field(default_factory=dict)
    running: dict[str, _Started] = field(default_factory=dict)
    shares: dict[int | str, _Share] = field(default_factory=dict)
    usual_s: float = FIRST_GUESS_S

    def share(self, who: int | str, now: float) -> float:
        found = self.shares.get(who)
        return found.now(now) if found else 0.0

    def charge(self, task: Task, seconds: float, now: float) -> None:
        for who in (task.uid, task.lease):
            self.shares.setdefault(who, _Share()).add(seconds, now)


class Turns:
    """`begin` is called for each task whose turn it is; `usable` gives a lease that can execute, or None.

    `holder` gives the user and the account of a lease. A task of a lease that cannot execute, and one that is
    stopped or already at the vendor, waits for nothing.
    """

    def __init__(
        self,
        begin: Callable[[Live], None],
        usable: Callable[[str], Lease | None],
        holder: Callable[[str], tuple[str, str | None] | None],
        rules: Callable[[str], Rules],
        clock: Callable[[], float],
    ) -> None:
        self._begin, self._usable, self._holder = begin, usable, holder
        self._rules, self._clock = rules, clock
        self._lines: dict[str, _Line] = {}
        self._arrivals = 0
        self.closed = False

    def at_once(self, lease: Lease) -> bool:
        """Whether a new task of the lease would surely begin at once."""
        if self._rules(lease.resource).at_once is not None:
            return False
        line = self._lines.get(lease.resource)
        queue = line.queues.get(lease.id) if line else None
        return queue is None or (not queue.waiting and len(queue.running) < lease.slots)

    def waiting(self, resource: str) -> int:
        line = self._lines.get(resource)
        return sum(len(queue.waiting) for queue in line.queues.values()) if line else 0

    def add(self, live: Live) -> None:
        task = live.task
        line = self._lines.setdefault(task.resource, _Line())
        queue = line.queues.setdefault(task.lease, _Queue(task.lease, task.uid))
        if task.vendor_task is not None:
            self._start(line, queue, live)
            return
        self._arrivals += 1
        queue.waiting.append((self._arrivals, live))
        self._pump(task.resource, queue)

    def ended(self, live: Live) -> None:
        """A task is over, and makes room for another; told twice, it is over once."""
        task, now = live.task, self._clock()
        line = self._lines[task.resource]
        started = line.running.pop(task.id, None)
        if started is None:
            return
        queue = line.queues[task.lease]
        queue.running.discard(task.id)
        took = task.usage_s if task.usage_s is not None else max(0.0, now - started.at)
        live.charged = took
        line.charge(task, took - started.charged, now)
        line.usual_s += _NEWEST_WEIGHS * (took - line.usual_s)
        self._pump(task.resource, queue)
        self._tidy(line, queue, now)

    def used(self, live: Live) -> None:
        """The vendor has counted what a task that is over has used."""
        task = live.task
        if task.usage_s is not None and task.usage_s != live.charged:
            self._lines[task.resource].charge(task, task.usage_s - live.charged, self._clock())
            live.charged = task.usage_s

    def hurry(self, live: Live) -> None:
        """Begin a task that shall be stopped, so that its end is written at once."""
        line = self._lines.get(live.task.resource)
        queue = line.queues.get(live.task.lease) if line else None
        place = next((place for place in queue.waiting if place[1] is live), None) if queue else None
        if line is not None and queue is not None and place is not None and not self.closed:
            queue.waiting.remove(place)
            self._start(line, queue, live)

    def _pump(self, resource: str, changed: _Queue) -> None:
        line, rules = self._lines[resource], self._rules(resource)
        while not self.closed:
            free = (queue for queue in self._meant(line, rules, changed) if queue.waiting and self._has_room(queue))
            if rules.at_once is None or len(line.running) < rules.at_once:
                queue = min(free, key=lambda queue: self._rank(line, rules, queue), default=None)
            else:
                queue = next((each for each in free if self._usable(each.lease) is None), None)
            if queue is None:
                return
            self._start(line, queue, queue.waiting.popleft()[1])

    def _meant(self, line: _Line, rules: Rules, changed: _Queue) -> Iterator[_Queue]:
        """Without a limit of the resource no lease's task waits for another lease's."""
        return iter([changed] if rules.at_once is None else list(line.queues.values()))

    def _has_room(self, queue: _Queue) -> bool:
        lease = self._usable(queue.lease)
        return lease is None or len(queue.running) < lease.slots

    def _rank(self, line: _Line, rules: Rules, queue: _Queue) -> tuple[float, ...]:
        arrival = queue.waiting[0][0]
        if rules.order == "arrival":
            return (arrival,)
        now = self._clock()
        fair = (line.share(queue.uid, now), line.share(queue.lease, now), arrival)
        return fair if rules.order == "fair" else (-self._priority(rules, queue.lease), *fair)

    def _priority(self, rules: Rules, lease: str) -> int:
        names = [name for name in self._holder(lease) or () if name is not None]
        return max((rules.priority[name] for name in names if name in rules.priority), default=0)

    def _start(self, line: _Line, queue: _Queue, live: Live) -> None:
        now = self._clock()
        queue.running.add(live.task.id)
        line.running[live.task.id] = _Started(now, line.usual_s)
        line.charge(live.task, line.usual_s, now)
        self._begin(live)

    def _tidy(self, line: _Line, queue: _Queue, now: float) -> None:
        if not queue.waiting and not queue.running:
            line.queues.pop(queue.lease, None)
            gone = [who for who, share in line.shares.items() if share.now(now) < _FORGOTTEN_S]
            for who in gone:
                del line.shares[who]
            if self._usable(queue.lease) is None:
                line.shares.pop(queue.lease, None)

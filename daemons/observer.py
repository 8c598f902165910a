"""The observer: polls each resource on its own schedule and keeps its newest fact in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Mapping

from pydantic import ValidationError

from qtandem.core.availability.estimate import Pace, differs, from_error, from_observation
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Fact, Observation
from qtandem.core.resources import Resource
from qtandem.core.settings import Timing
from qtandem.core.signals import Signals
from qtandem.core.verdicts import openness
from qtandem.daemons.logs import log
from qtandem.daemons.steady import keep
from qtandem.daemons.vendorcalls import Calls

# However many ask for it, a resource is not polled again before this time has passed.
NUDGED_S = 1.0


class Observer:
    """One task a resource, so that a slow vendor delays nobody and no resource is polled twice at once.

    `facts` is replaced fact by fact; the topic `facts` is told (with the resource) when one says something new.
    `open_at`: when each resource was last seen with room for a job.
    `wanted` tells which resources jobs wait for: these are polled faster.
    """

    def __init__(
        self,
        calls: Calls,
        signals: Signals,
        *,
        clock: Callable[[], float],
        wanted: Callable[[], frozenset[str]] = frozenset,
        rng: random.Random | None = None,
    ) -> None:
        self.facts: dict[str, Fact] = {}
        self.open_at: dict[str, float] = {}
        self.polls = 0
        self.errors = 0
        self._calls = calls
        self._signals = signals
        self._clock = clock
        self._wanted = wanted
        self._random = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._nudges: dict[str, asyncio.Event] = {}
        self._resources: dict[str, Resource] = {}

    def configure(self, resources: Iterable[Resource], timing: Timing) -> None:
        """Take up these resources: new and changed ones are polled at once, the others go on undisturbed."""
        wanted = {resource.name: resource for resource in resources if resource.has_provider}
        for name in [name for name, old in self._resources.items() if wanted.get(name) != old]:
            self._drop(name)
        for name, resource in wanted.items():
            if name not in self._tasks:
                self._resources[name] = resource
                self._nudges[name] = asyncio.Event()
                self._tasks[name] = self._start(resource, timing)
        for name in self.facts.keys() - wanted.keys():
            del self.facts[name]
            self.open_at.pop(name, None)
        self._signals.send("facts")

    def nudge(self, names: Iterable[str]) -> None:
        """Poll these soon, because somebody has begun to wait for them, or met something else than was seen."""
        for name in names:
            if name in self._nudges:
                self._nudges[name].set()

    async def first_facts(self, names: Iterable[str], timeout: float) -> bool:
        """Wait until each of the resources was seen once; False if that took longer than `timeout`."""
        missing = set(names) & self._resources.keys()
        with contextlib.suppress(TimeoutError), self._signals.watch("facts") as watch:
            async with asyncio.timeout(timeout):
                while not missing <= self.facts.keys():
                    await watch.next()
        return missing <= self.facts.keys()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for name in list(self._tasks):
            self._drop(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, resource: Resource, timing: Timing) -> asyncio.Task[None]:
        name = f"observe {resource.name}"
        return asyncio.create_task(keep(name, lambda: self._watch(resource, timing)), name=name)

    def _drop(self, name: str) -> None:
        self._tasks.pop(name).cancel()
        self._nudges.pop(name)
        self._resources.pop(name)

    async def _watch(self, resource: Resource, timing: Timing) -> None:
        nudge = self._nudges[resource.name]
        pace = Pace(resource.poll_s, timing.poll_waiting_s, timing.backoff_max_s, self._random.random)
        while True:
            nudge.clear()
            fact = await self._poll(resource, pace, resource.poll_s * timing.fact_ttl_periods)
            if openness(resource, fact, 0, fact.at).open:
                self.open_at[resource.name] = fact.at
            self._keep(fact)
            delay = pace.delay_s(resource.name in self._wanted())
            floor = min(NUDGED_S, delay)
            await asyncio.sleep(floor)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: that of Python 3.11 can swallow a cancellation.
                async with asyncio.timeout(delay - floor):
                    await nudge.wait()

    async def _poll(self, resource: Resource, pace: Pace, ttl_s: float) -> Fact:
        self.polls += 1
        try:
            seen = Observation.model_validate(await self._calls.call(resource.name, "observe", purpose="observe"))
        except (QtandemError, ValidationError) as failure:
            self.errors += 1
            pace.failed()
            error = _as_error(resource, failure)
            if pace.failures == 1:
                log("observer").warning("poll failed", resource=resource.name, code=error.code, why=error.one_line())
            previous = self.facts.get(resource.name)
            return from_error(resource.name, error, at=self._clock(), ttl_s=ttl_s, previous=previous)
        pace.succeeded()
        return from_observation(resource.name, seen, at=self._clock(), ttl_s=ttl_s)

    def _keep(self, fact: Fact) -> None:
        old = self.facts.get(fact.resource)
        self.facts[fact.resource] = fact
        if old is not None and old.seen_as(self._clock()) != old.availability:
            self._signals.send("facts", fact.resource)  # It was stale, so even the same words are news.
        elif differs(old, fact):
            log("observer").info(
                "fact",
                resource=fact.resource,
                availability=str(fact.availability),
                reason=fact.reason,
                queue=fact.queue,
                free_slots=fact.free_slots,
            )
            self._signals.send("facts", fact.resource)


def summary(facts: Mapping[str, Fact], now: float) -> dict[str, int]:
    """How many resources are in each state, stale ones as unknown."""
    out: dict[str, int] = {}
    for fact in facts.values():
        seen = str(fact.seen_as(now))
        out[seen] = out.get(seen, 0) + 1
    return out


def _as_error(resource: Resource, failure: QtandemError | ValidationError) -> QtandemError:
    if isinstance(failure, QtandemError):
        return failure
    return QtandemError("vendor-error", f"The observation of {resource.name} cannot be read", cause=str(failure)[:300])

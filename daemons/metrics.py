"""Prometheus metrics: counted while serving, and a picture of the daemon's state. No user and no job names."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qtandem.core.facts import Availability, Fact
from qtandem.core.files import write_atomic
from qtandem.core.providers.pool import WorkerStats
from qtandem.core.resources import Resource
from qtandem.core.verdicts import Situation
from qtandem.daemons import steady
from qtandem.daemons.context import Context

CONTENT_TYPE = "text/plain; version=0.0.4"
_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 10.0)


@dataclass(frozen=True, slots=True)
class Sensors:
    """How one manager's publisher is."""

    manager: str
    ok: bool
    failing: int
    last_ok: float | None


@dataclass(frozen=True, slots=True)
class Picture:
    """The daemon's state at one time, copied, so that another thread can write it out."""

    situation: Situation
    resources: tuple[Resource, ...]
    waiting: Mapping[str, int]
    sensors: tuple[Sensors, ...]
    leases: Mapping[str, int]
    tasks: Mapping[str, int]
    workers: tuple[WorkerStats, ...]
    faults: Mapping[str, int]
    polls: int
    errors: int


class Metrics:
    """The counters of the daemon and the registry that is served. A scrape calls no manager and no vendor."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()
        self._state = _State()
        self._lock = threading.Lock()
        self.verdicts = self._counter("verdicts", "Verdicts given", ["event", "verdict"])
        self.lookups = self._counter("lookups", "Look-ups of the planner", ["event", "outcome"])
        self.placements = self._counter("placements", "Jobs that plans pinned, ordered or released", ["outcome"])
        self.reloads = self._counter("reloads", "Reloads of the configuration", ["outcome"])
        self.requests = prometheus.Histogram(
            "qtandem_request_seconds",
            "Time to answer a call",
            ["route", "status"],
            registry=self._registry,
            buckets=_LATENCY_S,
        )
        self._registry.register(self._state)

    async def text(self, context: Context) -> bytes:
        """What a scrape gets; only the copying is done on the event loop."""
        workers = await asyncio.to_thread(context.workers.stats)
        return await asyncio.to_thread(self._written, _picture(context, workers))

    async def write(self, context: Context, path: Path) -> None:
        """For a node exporter's textfile collector: whole or not at all, readable by everybody."""
        await asyncio.to_thread(write_atomic, path, await self.text(context))

    def _written(self, picture: Picture) -> bytes:
        with self._lock:
            self._state.picture = picture
            return prometheus.generate_latest(self._registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> prometheus.Counter:
        return prometheus.Counter(f"qtandem_{name}", text, labels, registry=self._registry)


def _picture(context: Context, workers: list[WorkerStats]) -> Picture:
    situation = context.situation()
    resources = tuple(context.catalog.resources.values())
    return Picture(
        situation=Situation(dict(situation.facts), situation.leased, situation.now),
        resources=resources,
        waiting={resource.name: context.pending.waiting(resource.name) for resource in resources},
        sensors=tuple(
            Sensors(name, each.health.word() == "ok", len(each.health.failing), each.health.last_ok)
            for name, each in context.publishers.items()
        ),
        leases=Counter(lease.state.value for lease in context.leases.leases()),
        tasks=context.tasks.under_way(),
        workers=tuple(workers),
        faults=dict(steady.faults),
        polls=context.observer.polls,
        errors=context.observer.errors,
    )


class _State(Collector):
    picture: Picture | None = None

    def collect(self) -> Iterator[Metric]:
        if self.picture is not None:
            yield from _resources(self.picture)
            yield from _sensors(self.picture)
            yield from _work(self.picture)


def _resources(picture: Picture) -> Iterator[Metric]:
    facts, now = picture.situation.facts, picture.situation.now
    state = _gauge("resource_state", "1 for the state that a resource is in", "resource", "state")
    slots = _gauge("resource_slots", "Slots, all and open to a job now", "resource", "kind")
    numbers: list[tuple[str, str, Callable[[str, Fact | None], float | None]]] = [
        (
            "queue",
            "Jobs queued at the vendor; absent where it does not say",
            lambda _, fact: None if fact is None else fact.queue,
        ),
        ("wait_seconds", "The vendor's estimate of a wait", lambda _, fact: None if fact is None else fact.wait_s),
        ("fact_age_seconds", "Age of the newest fact", lambda _, fact: None if fact is None else fact.age_s(now)),
        ("leased_slots", "Slots of open leases", lambda name, _: picture.situation.leased.get(name, 0)),
        ("waiting_jobs", "Jobs pending in the managers for it", lambda name, _: picture.waiting[name]),
    ]
    families = [(_gauge(f"resource_{name}", text, "resource"), read) for name, text, read in numbers]
    for resource in picture.resources:
        fact = facts.get(resource.name)
        seen = fact.seen_as(now) if fact else Availability.UNKNOWN
        for kind in Availability:
            state.add_metric([resource.name, kind.value], float(kind is seen))
        slots.add_metric([resource.name, "total"], resource.slots)
        slots.add_metric([resource.name, "free"], picture.situation.openness(resource).free)
        for family, read in families:
            value = read(resource.name, fact)
            if value is not None:
                family.add_metric([resource.name], value)
    yield from (state, slots, *(family for family, _ in families))


def _sensors(picture: Picture) -> Iterator[Metric]:
    ok = _gauge("publisher_ok", "Whether all sensors of the manager are confirmed", "manager")
    age = _gauge("publisher_last_ok_seconds", "Seconds since all sensors were confirmed", "manager")
    failing = _gauge("publisher_failing_sensors", "Sensors that did not read back as wanted", "manager")
    for each in picture.sensors:
        ok.add_metric([each.manager], float(each.ok))
        failing.add_metric([each.manager], each.failing)
        if each.last_ok is not None:
            age.add_metric([each.manager], picture.situation.now - each.last_ok)
    yield from (ok, age, failing)


def _work(picture: Picture) -> Iterator[Metric]:
    yield _counts("leases", "Open leases by state", "state", picture.leases)
    yield _counts("tasks", "Tasks that have not ended, by state", "state", picture.tasks)
    yield _counts("faults", "Faults of background loops since the start", "loop", picture.faults)
    polls = {"ok": picture.polls - picture.errors, "error": picture.errors}
    yield _counts("polls", "Polls of vendors since the start", "outcome", polls)
    workers = _gauge("workers", "Worker processes", "type", "purpose")
    memory = _gauge("workers_resident_bytes", "Memory of worker processes", "type", "purpose")
    kills = _gauge("workers_killed", "Workers killed at a deadline or for a fault", "type", "purpose")
    for key in dict.fromkeys((each.type, each.purpose) for each in picture.workers):
        group = [each for each in picture.workers if (each.type, each.purpose) == key]
        workers.add_metric(key, sum(each.pid is not None for each in group))
        memory.add_metric(key, sum(each.rss for each in group))
        kills.add_metric(key, sum(each.kills for each in group))
    yield from (workers, memory, kills)


def _counts(name: str, text: str, label: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
    family = _gauge(name, text, label)
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"qtandem_{name}", text, labels=labels)

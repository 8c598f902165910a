"""Prometheus metrics: counted while serving, read from memory when scraped. No user and no job names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qtandem.core.facts import Availability
from qtandem.daemons import steady
from qtandem.daemons.context import Context

CONTENT_TYPE = "text/plain; version=0.0.4"
_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 10.0)


class Metrics:
    """The counters of the daemon and the registry that is served. A scrape calls no manager and no vendor."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.verdicts = self._counter("verdicts", "Verdicts given", ["event", "verdict"])
        self.reloads = self._counter("reloads", "Reloads of the configuration", ["outcome"])
        self.requests = Histogram(
            "qtandem_request_seconds",
            "Time to answer a call",
            ["route", "status"],
            registry=self.registry,
            buckets=_LATENCY_S,
        )

    def observe(self, context: Context) -> None:
        """Have scrapes read the daemon's state from `context`."""
        self.registry.register(_State(context))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def write(self, path: Path) -> None:
        """For a node exporter's textfile collector: whole or not at all, readable by everybody."""
        part = path.with_name(f".{path.name}.part")
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(self.text())
        part.replace(path)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"qtandem_{name}", text, labels, registry=self.registry)


class _State(Collector):
    def __init__(self, context: Context) -> None:
        self._context = context

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._resources()
        yield from self._publishers()
        yield from self._work()

    def _resources(self) -> Iterator[Metric]:
        context, situation = self._context, self._context.situation()
        state = _gauge("resource_state", "1 for the state that a resource is in", "resource", "state")
        numbers: dict[str, tuple[GaugeMetricFamily, Callable[[str], float | None]]] = {
            "queue": (
                _gauge("resource_queue", "Jobs queued at the vendor; absent where it does not say", "resource"),
                lambda name: _of(situation.facts.get(name), "queue"),
            ),
            "wait": (
                _gauge("resource_wait_seconds", "The vendor's estimate of a wait", "resource"),
                lambda name: _of(situation.facts.get(name), "wait_s"),
            ),
            "age": (
                _gauge("resource_fact_age_seconds", "Age of the newest fact", "resource"),
                lambda name: situation.facts[name].age_s(situation.now) if name in situation.facts else None,
            ),
            "leased": (
                _gauge("resource_leased_slots", "Slots of open leases", "resource"),
                lambda name: situation.leased.get(name, 0),
            ),
            "waiting": (
                _gauge("resource_waiting_jobs", "Jobs pending in the managers for it", "resource"),
                context.pending.waiting,
            ),
        }
        slots = _gauge("resource_slots", "Slots, all and open to a job now", "resource", "kind")
        for resource in context.catalog.resources.values():
            fact = situation.facts.get(resource.name)
            seen = fact.seen_as(situation.now) if fact else Availability.UNKNOWN
            for kind in Availability:
                state.add_metric([resource.name, kind.value], float(kind is seen))
            slots.add_metric([resource.name, "total"], resource.slots)
            slots.add_metric([resource.name, "free"], situation.openness(resource).free)
            for family, read in numbers.values():
                value = read(resource.name)
                if value is not None:
                    family.add_metric([resource.name], value)
        yield state
        yield slots
        for family, _ in numbers.values():
            yield family

    def _publishers(self) -> Iterator[Metric]:
        now = self._context.clock()
        ok = _gauge("publisher_ok", "Whether all sensors of the manager are confirmed", "manager")
        age = _gauge("publisher_last_ok_seconds", "Seconds since all sensors were confirmed", "manager")
        failing = _gauge("publisher_failing_sensors", "Sensors that did not read back as wanted", "manager")
        for name, publisher in self._context.publishers.items():
            health = publisher.health
            ok.add_metric([name], float(health.word() == "ok"))
            failing.add_metric([name], len(health.failing))
            if health.last_ok is not None:
                age.add_metric([name], now - health.last_ok)
        yield from (ok, age, failing)

    def _work(self) -> Iterator[Metric]:
        context = self._context
        leases = _gauge("leases", "Open leases by state", "state")
        counts: dict[str, int] = {}
        for lease in context.leases.leases():
            counts[lease.state.value] = counts.get(lease.state.value, 0) + 1
        for state, count in counts.items():
            leases.add_metric([state], count)
        tasks = _gauge("tasks", "Tasks that have not ended, by state", "state")
        for state, count in context.tasks.under_way().items():
            tasks.add_metric([state], count)
        workers = _gauge("workers", "Worker processes", "type", "purpose")
        memory = _gauge("workers_resident_bytes", "Memory of worker processes", "type", "purpose")
        kills = _gauge("workers_killed", "Workers killed at a deadline or for a fault", "type", "purpose")
        sums: dict[tuple[str, str], list[float]] = {}
        for worker in context.workers.stats():
            row = sums.setdefault((worker.type, worker.purpose), [0.0, 0.0, 0.0])
            row[0] += worker.pid is not None
            row[1] += worker.rss
            row[2] += worker.kills
        for key, (running, rss, killed) in sums.items():
            workers.add_metric(key, running)
            memory.add_metric(key, rss)
            kills.add_metric(key, killed)
        faults = _gauge("faults", "Faults of background loops since the start", "loop")
        for loop, count in steady.faults.items():
            faults.add_metric([loop], count)
        polls = _gauge("polls", "Polls of vendors since the start", "outcome")
        polls.add_metric(["ok"], context.observer.polls - context.observer.errors)
        polls.add_metric(["error"], context.observer.errors)
        yield from (leases, tasks, workers, memory, kills, faults, polls)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"qtandem_{name}", text, labels=labels)


def _of(fact: object, name: str) -> float | None:
    value = getattr(fact, name, None)
    return None if value is None else float(value)

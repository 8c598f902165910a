"""Publishers: one task a manager that keeps its sensors as facts and leases say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from qtandem.core.availability.publish import due, next_expiry, opened, sensor_values
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Fact
from qtandem.core.managers import Manager, Published, SensorValue
from qtandem.core.resources import Catalog
from qtandem.core.settings import Timing
from qtandem.core.signals import Signals
from qtandem.daemons.logs import log
from qtandem.daemons.steady import keep

# Changes that come together (100 resources flipping) are written together.
GATHER_S = 0.005
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
# A manager's own commands have deadlines; this one is for an implementation that forgot.
PUBLISH_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class View:
    """What a publication is computed from, slots by resource name.

    `foreign` are leased by others than the manager's own jobs, `own` by those.
    """

    catalog: Catalog
    facts: Mapping[str, Fact]
    foreign: Mapping[str, int]
    own: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PublisherHealth:
    """How one manager's sensors are; `failing` maps natives to the reason that they were not confirmed.

    `busy_since` is when the pass began that has not come to its end: it hangs, or breaks off each time.
    """

    failures: int = 0
    last_ok: float | None = None
    failing_since: float | None = None
    failing: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    busy_since: float | None = None

    def stuck(self, now: float, limit_s: float) -> bool:
        return self.busy_since is not None and now - self.busy_since > limit_s

    def word(self) -> str:
        """`ok`, `starting`, or what is wrong."""
        if self.failing_since is None:
            return "ok" if self.last_ok is not None else "starting"
        shown = "; ".join(f"{native}: {why}" for native, why in list(self.failing.items())[:3])
        return f"failing: {self.error or shown}"


class Publisher:
    """Wakes when a fact or lease changed, when a fact goes stale, and every re-assert period.

    Never two publications at once; what did not read back is tried again with back-off. A resource that
    opened, or of which a job gave slots back, is followed by a kick of the manager: some look at jobs that wait
    for a native resource only every half minute. `retired` are sensors of resources that the configuration has no
    more: they are kept closed.
    """

    def __init__(
        self,
        manager: Manager,
        view: Callable[[], View],
        timing: Timing,
        signals: Signals,
        *,
        clock: Callable[[], float],
        retired: Iterable[SensorValue] = (),
    ) -> None:
        self.manager = manager
        self.health = PublisherHealth()
        self.confirmed: dict[str, SensorValue] = {}
        self._view = view
        self._timing = timing
        self._clock = clock
        self._signals = signals
        self._retired = {value.native: replace(value, closed=value.total) for value in retired}
        self._disturbed: set[str] = set()
        self._own: dict[str, int] = {}
        self._reassert_at = clock()
        self._retry_at: float | None = None
        self._retries = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        name = f"publish {self.manager.name}"
        self._task = asyncio.create_task(keep(name, self._run), name=name)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        with self._signals.watch("facts", "leases") as watch:
            while True:
                await asyncio.sleep(GATHER_S)
                await self.publish()
                changed = await watch.next(self._idle_s())
                natives = self._view().catalog.natives
                self._disturbed |= {natives[name] for name in changed if name in natives}

    async def publish(self) -> None:
        """One publication, of what is due now."""
        now, view = self._clock(), self._view()
        if self.health.busy_since is None:
            self.health.busy_since = now
        wanted = self._retired | sensor_values(view.catalog.resources.values(), view.facts, view.foreign, now)
        whole = now >= self._reassert_at
        values = self._due(wanted, now, whole)
        opening: frozenset[str] = frozenset()
        if values:
            log("publisher").debug("publish", manager=self.manager.name, natives=[value.native for value in values])
            outcome, error = await self._write(values)
            self._judge(values, outcome, error, now)
            opening = self._settle(wanted, outcome)
        elif not wanted and self.health.failing_since is None:
            self.health.last_ok = now
        await self._kick(opening | self._freed(view))
        if whole and not self.health.error:
            self._reassert_at = now + self._timing.reassert_s
        self.health.busy_since = None

    async def _write(self, values: list[SensorValue]) -> tuple[Published, str]:
        try:
            async with asyncio.timeout(PUBLISH_DEADLINE_S):
                return await self.manager.publish(values), ""
        except QtandemError as error:
            return Published(failed={value.native: error.message for value in values}), error.one_line()
        except TimeoutError:
            return Published(failed={value.native: "no answer" for value in values}), "no answer in time"

    def _due(self, wanted: Mapping[str, SensorValue], now: float, whole: bool) -> list[SensorValue]:
        paused = self._retry_at is not None and now < self._retry_at
        if paused and self.health.error:
            # While the manager fails, news waits for the next try: a storm of tries would not mend it.
            return []
        disturbed, self._disturbed = self._disturbed, set()
        values = list(wanted.values()) if whole else due(wanted, self.confirmed, disturbed)
        return [value for value in values if not paused or value.native not in self.health.failing]

    def _judge(self, values: list[SensorValue], outcome: Published, error: str, now: float) -> None:
        health = self.health
        tried = {value.native for value in values}
        lost = dict.fromkeys(tried - outcome.confirmed - outcome.failed.keys(), "was not confirmed")
        left = {native: why for native, why in health.failing.items() if native not in tried}
        health.failing, health.error = {**left, **outcome.failed, **lost}, error
        if not health.failing:
            if health.failing_since is not None:
                log("publisher").info("publishing again", manager=self.manager.name)
            health.last_ok, health.failing_since = now, None
            self._retry_at, self._retries = None, 0
            return
        if not outcome.failed and not lost:
            return
        if health.failing_since is None:
            health.failing_since = now
            log("publisher").warning("publication failed", manager=self.manager.name, why=health.word()[:500])
        health.failures += 1
        self._retry_at = now + min(RETRY_FIRST_S * 2.0 ** min(self._retries, 16), RETRY_MAX_S)
        self._retries += 1

    def _settle(self, wanted: Mapping[str, SensorValue], outcome: Published) -> frozenset[str]:
        """Note what holds now; returns the natives that opened."""
        before = dict(self.confirmed)
        for native in outcome.confirmed:
            if native in wanted:
                self.confirmed[native] = wanted[native]
        for native in self.health.failing:
            self.confirmed.pop(native, None)
        for native in self.confirmed.keys() - wanted.keys():
            del self.confirmed[native]
        return opened(before, self.confirmed, outcome.confirmed)

    def _freed(self, view: View) -> frozenset[str]:
        """Natives that are open and of which the manager's own jobs hold less than at the last look."""
        before, self._own = self._own, dict(view.own)
        natives = view.catalog.natives
        fewer = {natives[name] for name, slots in before.items() if name in natives and view.own.get(name, 0) < slots}
        return frozenset(native for native in fewer if native in self.confirmed and self.confirmed[native].open)

    async def _kick(self, natives: frozenset[str]) -> None:
        if not natives:
            return
        try:
            await self.manager.kick(natives)
        except QtandemError as error:
            # The manager's own next cycle starts the jobs then, only later.
            log("publisher").warning("kick failed", manager=self.manager.name, why=error.one_line())

    def _idle_s(self) -> float:
        now = self._clock()
        waits = [] if self.health.error else [self._reassert_at - now]
        if self._retry_at is not None:
            waits.append(self._retry_at - now)
        expiry = next_expiry(self._view().facts.values(), now)
        if expiry is not None:
            waits.append(expiry + 0.01)
        return max(0.01, min(waits))

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.model import Lease
from qtandem.core.leases.service import LeaseService
from qtandem.core.leases.store import Store
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId, Run
from qtandem.core.signals import Signals
from tests.fakes.vendor import FakeVendor

KEY = bytes(range(32))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Timing:
    reserve_ttl_s: float = 120.0
    claim_ttl_s: float = 28800.0
    backoff_max_s: float = 300.0


def make_run(job: str = "1", attempt: int = 0, uid: int = 1001, index: int | None = None) -> Run:
    id = JobId("slurm", "c", job, index).run(attempt)
    return Run(id, uid, f"user{uid}", account="physics", partition="main", nodes=("n1", "n2"), time_limit_s=600)


@dataclass
class Site:
    """A lease service over a database file and a vendor that both outlive it."""

    path: Path
    vendor: FakeVendor
    clock: Clock = field(default_factory=Clock)
    signals: Signals = field(default_factory=Signals)
    timing: Timing = field(default_factory=Timing)
    service: LeaseService = field(init=False)
    store: Store = field(init=False)

    async def start(self) -> None:
        self.store = Store(f"sqlite:///{self.path}", Cipher(KEY))
        self.service = LeaseService(
            self.store,
            self.vendor,
            lambda resource: self.vendor.slots.get(resource, 0),
            self.clock,
            self.signals,
            lambda: self.timing,
        )
        await self.service.open()

    async def stop(self) -> None:
        await self.service.close()
        self.store.close()

    async def restart(self) -> None:
        """As after a kill: what was under way is cut off where it stands."""
        await self.stop()
        await self.start()

    async def later(self, seconds: float) -> None:
        self.clock.now += seconds
        await self.service.sweep(self.clock.now)
        await self.service.settled()

    async def begin(self, run: Run, *grants: tuple[str, int]) -> tuple[Lease, ...]:
        return await self.service.begin(run, [Grant(name, slots) for name, slots in grants or [("fez", 1)]])

    async def end(self, job: str = "1", attempt: int | None = 0) -> int:
        return await self.service.end(JobId("slurm", "c", job), attempt, "ended", 0)

    def states(self) -> list[str]:
        return sorted(lease.state for lease in self.service.leases())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database to copy."""
    path = tmp_path_factory.mktemp("template") / "qtandem.db"
    Store(f"sqlite:///{path}", Cipher(KEY)).close()
    return path


@pytest.fixture
def database(tmp_path: Path, template: Path) -> Path:
    return shutil.copy(template, tmp_path / "qtandem.db")


@pytest.fixture
async def site(database: Path) -> AsyncIterator[Site]:
    site = Site(database, FakeVendor({"fez": 1, "torino": 2, "garnet": 4}))
    await site.start()
    yield site
    await site.stop()
    assert site.vendor.offences() == []


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{database}", Cipher(KEY))
    yield store
    store.close()


@pytest.fixture
def run() -> Callable[..., Run]:
    return make_run

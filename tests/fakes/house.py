"""The daemon's parts put together on fakes: a real lease service and store, a manager and workers in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from qtandem.core.config import Configuration
from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.service import LeaseService
from qtandem.core.leases.store import Store
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import DaemonSettings, Settings, Timing
from qtandem.core.signals import Signals
from qtandem.daemons.authority import Authority
from qtandem.daemons.context import Context
from qtandem.daemons.lifecycle import Lifecycle
from qtandem.daemons.metrics import Metrics
from qtandem.daemons.noted import Terms
from qtandem.daemons.observer import Observer
from qtandem.daemons.pending import Pending
from qtandem.daemons.planners import launch_of
from qtandem.daemons.planning import Planning
from qtandem.daemons.proxy import Proxy
from qtandem.daemons.records import Records
from qtandem.daemons.refusals import Refusals
from qtandem.daemons.reported import Reported
from qtandem.daemons.tasks import Tasks
from qtandem.daemons.turns import Rules
from qtandem.daemons.userkeys import UserKeys
from qtandem.daemons.vendorcalls import VendorCalls
from tests.fakes.manager import FakeManager
from tests.fakes.workers import FakeWorkers


def settings(tmp_path: Path, **timing: float) -> Settings:
    daemon = DaemonSettings(
        socket=tmp_path / "q.sock", runtime_dir=tmp_path, state_dir=tmp_path, master_key=tmp_path / "key", metrics=""
    )
    return Settings(daemon=daemon, timing=Timing(**timing))


class House:
    """`async with House(tmp_path, {"fez": 2}) as house`; `resources` may be whole `Resource`s too."""

    def __init__(self, tmp_path: Path, resources: Mapping[str, int | Resource], **timing: float) -> None:
        catalog = Catalog(
            {
                name: each if isinstance(each, Resource) else Resource(name, "simulator", name, slots=each, poll_s=0.05)
                for name, each in resources.items()
            }
        )
        # Polls are quick; their facts shall not go stale because the machine is slow just then.
        given = settings(tmp_path, **{"fact_ttl_periods": 200.0, **timing})
        slots = {name: each.slots for name, each in catalog.resources.items()}
        self.workers, self.manager = FakeWorkers(slots), FakeManager(natives=catalog.natives)
        self.store = Store(f"sqlite:///{tmp_path / 'q.db'}", Cipher(bytes(32)))
        self.signals, clock = Signals(), time.time
        self.keys = UserKeys(tmp_path, self.store.cipher, self._leased)
        self.calls = VendorCalls(self.workers, self.keys, lambda name: self.context.catalog.resources.get(name))
        self.leases = self.calls.leases = LeaseService(
            self.store, self.calls, slots.__getitem__, clock, self.signals, lambda: given.timing
        )
        self.pending = Pending(clock=clock, on_new=lambda names: self.observer.nudge(names))
        self.observer = Observer(self.calls, self.signals, clock=clock, wanted=self.pending.wanted)
        records = Records(self.leases, self.store)
        self.context = Context(
            configuration=Configuration(given, catalog),
            clock=clock,
            signals=self.signals,
            records=records,
            leases=self.leases,
            workers=self.workers,  # type: ignore[arg-type]
            observer=self.observer,
            pending=self.pending,
            authority=Authority({}),
            metrics=Metrics(),
            calls=self.calls,
            managers={self.manager.name: self.manager},
        )
        self.tasks = self.new_tasks(tmp_path)
        self.lifecycle = Lifecycle(self.context, Refusals(records, lambda: given.timing, clock=clock))
        self.context.proxy = Proxy(self.context, self.store.cipher)
        self.context.tasks, self.context.lifecycle = self.tasks, self.lifecycle
        self.context.reported = Reported(self.context)
        self.context.planning = Planning(self.context, launch_of(None))

    def new_tasks(self, tmp_path: Path) -> Tasks:
        """As a daemon that starts makes them."""
        terms = Terms(price=2.0, currency="EUR", calibration_at=123.0)
        records, signals, clock = self.context.records, self.signals, self.context.clock
        return Tasks(
            records, self.leases, self.calls, tmp_path, signals, lambda _: terms, clock=clock, rules=self._rules
        )

    async def __aenter__(self) -> House:
        self.keys.open()
        await self.leases.open()
        self.observer.configure(self.context.catalog.resources.values(), self.context.settings.timing)
        await self.tasks.open()
        return self

    def _rules(self, name: str) -> Rules:
        found = self.context.catalog.resources[name]
        return Rules(found.max_tasks, found.max_tasks_lease, found.task_order, found.priority)

    def _leased(self, uid: int, resource: str) -> bool:
        return any(lease.uid == uid and lease.resource == resource for lease in self.leases.leases())

    async def __aexit__(self, *_: object) -> None:
        await self.lifecycle.close()
        await self.context.planning.close()
        await self.pending.close()
        await self.observer.close()
        await self.tasks.close()
        await self.leases.close()
        self.store.close()

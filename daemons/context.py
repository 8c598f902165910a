"""What the parts of the daemon share: the configuration in force, and each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qtandem.core.config import Configuration
from qtandem.core.errors import QtandemError
from qtandem.core.managers import Manager
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.core.signals import Signals
from qtandem.core.verdicts import Situation

if TYPE_CHECKING:
    from qtandem.core.leases.service import LeaseService
    from qtandem.core.providers.pool import Workers
    from qtandem.daemons.authority import Authority
    from qtandem.daemons.lifecycle import Lifecycle
    from qtandem.daemons.metrics import Metrics
    from qtandem.daemons.observer import Observer
    from qtandem.daemons.pending import Pending
    from qtandem.daemons.planning import Planning
    from qtandem.daemons.proxy import Proxy
    from qtandem.daemons.publishers import Publisher
    from qtandem.daemons.records import Records
    from qtandem.daemons.reported import Reported
    from qtandem.daemons.tasks import Tasks
    from qtandem.daemons.upkeep import Upkeep
    from qtandem.daemons.userkeys import UserKeys
    from qtandem.daemons.vendorcalls import VendorCalls


@dataclass(slots=True)
class Context:
    """Parts that a reload replaces (`configuration`, `managers`, `authority`, `publishers`) are read anew each time.

    `clock` gives Unix time. `problems` and `secret_problems` are sentences for `/v1/healthz`: what
    is wrong but does not stop us.
    """

    configuration: Configuration
    clock: Callable[[], float]
    signals: Signals
    records: Records
    leases: LeaseService
    workers: Workers
    observer: Observer
    pending: Pending
    authority: Authority
    metrics: Metrics
    calls: VendorCalls
    managers: Mapping[str, Manager] = field(default_factory=dict)
    publishers: Mapping[str, Publisher] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    secret_problems: list[str] = field(default_factory=list)
    tasks: Tasks = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    reported: Reported = field(init=False)
    upkeep: Upkeep = field(init=False)
    proxy: Proxy = field(init=False)
    planning: Planning = field(init=False)

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    @property
    def keys(self) -> UserKeys:
        return self.calls.keys

    @property
    def catalog(self) -> Catalog:
        return self.configuration.catalog

    def manager(self, name: str, cluster: str = "") -> Manager:
        """The configured manager; an empty cluster means its own. Raises `bad-request`."""
        manager = self.managers.get(name)
        if manager is None:
            known = ", ".join(self.managers) or "none"
            raise QtandemError("bad-request", f"No manager {name!r} is configured", remedy=f"Configured: {known}.")
        if cluster and cluster != manager.cluster:
            raise QtandemError(
                "bad-request", f"{name} is configured for the cluster {manager.cluster!r}, not {cluster!r}"
            )
        return manager

    def situation(self) -> Situation:
        leased = {name: self.leases.leased(name) for name in self.catalog.resources}
        return Situation(self.observer.facts, leased, self.clock())

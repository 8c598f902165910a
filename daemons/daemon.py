"""The daemon: builds every part, takes up a new configuration, and stops without losing anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from qtandem.core.config import Configuration, load
from qtandem.core.credentials import credential
from qtandem.core.errors import QtandemError
from qtandem.core.launching import Launcher
from qtandem.core.leases import cipher
from qtandem.core.leases.service import LeaseService
from qtandem.core.leases.store import Store
from qtandem.core.managers import Closing, Manager, SensorValue
from qtandem.core.providers.base import ProviderSpec
from qtandem.core.providers.pool import Workers
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import DaemonSettings, Settings, Timing
from qtandem.core.signals import Signals
from qtandem.core.wire import Health
from qtandem.daemons import authority, registry, strays
from qtandem.daemons.answers import VERSION, health
from qtandem.daemons.authority import Authority
from qtandem.daemons.context import Context
from qtandem.daemons.heartbeat import mirror, names_text
from qtandem.daemons.lifecycle import Lifecycle
from qtandem.daemons.logs import log, masker
from qtandem.daemons.metrics import Metrics
from qtandem.daemons.noted import Terms
from qtandem.daemons.notify import Notifier
from qtandem.daemons.observer import Observer
from qtandem.daemons.pending import Pending
from qtandem.daemons.planners import launch_of
from qtandem.daemons.planning import Planning
from qtandem.daemons.proxy import Proxy
from qtandem.daemons.publishers import Publisher, View
from qtandem.daemons.reaping import Reaping
from qtandem.daemons.records import Records
from qtandem.daemons.refusals import Refusals
from qtandem.daemons.reported import Reported
from qtandem.daemons.servers import Servers, make_folders
from qtandem.daemons.steady import every, keep
from qtandem.daemons.tasks import Tasks
from qtandem.daemons.tending import Tending
from qtandem.daemons.turns import Rules
from qtandem.daemons.upkeep import Upkeep
from qtandem.daemons.userkeys import UserKeys
from qtandem.daemons.vendorcalls import VendorCalls

# Calls and vendor work under way get so long at a stop; what is not done then is taken up by the next daemon.
GRACE_S = 15.0
TEXTFILE_S, FILES_S = 15.0, 3600.0
# Keys of [daemon] that a reload changes.
LIVE = ("admins", "login_hosts", "textfile", "keep_days")

Build = Callable[[str, object, Mapping[str, str]], Manager]


class Daemon:
    """One daemon. `open`, then `serve` until `stop` is set, then `close`."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        clock: Callable[[], float] = time.time,
        notifier: Notifier | None = None,
        build: Build | None = None,
    ) -> None:
        self.stop = asyncio.Event()
        socket = configuration.settings.daemon.launcher
        self._launcher = Launcher(Path(socket)) if socket else None
        self._clock, self._build = clock, build or partial(registry.build, launcher=self._launcher)
        self._notifier = notifier or Notifier()
        self._path = configuration.path
        self._background: list[asyncio.Task[None]] = []
        self._mirroring: asyncio.Task[None] | None = None
        self._retired: dict[str, SensorValue] = {}
        self.context = self._assemble(configuration)
        self._servers = Servers(self.context)

    async def open(self) -> None:
        """Everything is running when this returns; raises `bad-config`, `already-exists`."""
        context = self.context
        await self._servers.bind()
        await asyncio.to_thread(context.keys.open)
        await context.upkeep.open()
        await context.leases.open()
        await self._take_up(context.configuration)
        await context.tasks.open()
        context.planning.open()
        reaping = Reaping(context)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "reap": reaping.reap_forever,
            "sweep": reaping.sweep_forever,
            "forget": reaping.forget_forever,
            "orphans": context.tasks.watch_leases,
            "tend": Tending(context).forever,
        }
        self._background = [asyncio.create_task(keep(name, loop), name=name) for name, loop in loops.items()]
        self._mirroring = asyncio.create_task(self._mirror(), name="mirror")
        self._background.append(every("files", lambda: FILES_S, context.tasks.sweep))
        self._background.append(every("strays", lambda: strays.LOOK_S, strays.Strays(context).look))
        self._background.append(every("secrets", lambda: context.settings.timing.secrets_s, context.upkeep.rotate))
        self._background.append(every("discover", context.upkeep.period_s, context.upkeep.discover))
        self._background.append(every("textfile", lambda: TEXTFILE_S, self._textfile))
        if self._notifier.watchdog_s is not None:
            period = self._notifier.watchdog_s
            self._background.append(every("watchdog", lambda: period, self._alive))
        await self._servers.start(GRACE_S)
        self._notifier.ready(f"{len(context.catalog.resources)} resources")
        log("daemon").info("ready", version=VERSION, socket=str(context.settings.daemon.socket))

    async def serve(self) -> None:
        await self.stop.wait()

    async def close(self) -> None:
        """Take no more calls, finish those under way, then stop. Held leases stay held in the store."""
        log("daemon").info("stopping")
        self._notifier.stopping()
        self.stop.set()
        context = self.context
        self._servers.refuse()
        context.lifecycle.break_off()
        context.tasks.answer_all()
        await self._servers.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, *filter(None, [self._mirroring]), return_exceptions=True)
        await context.lifecycle.close()
        await context.planning.close()
        await asyncio.gather(*(publisher.close() for publisher in context.publishers.values()))
        await context.pending.close()
        await _close(context.managers)
        await context.observer.close()
        await context.tasks.close()
        await context.leases.close(GRACE_S)
        await context.workers.close()
        self._store.close()
        log("daemon").info("stopped")

    async def reload(self) -> bool:
        """Take up the configuration that is on disk; a bad one is refused whole, with the reason, and all goes on."""
        async with self.context.upkeep.lock:
            self._notifier.reloading()
            try:
                fresh = await asyncio.to_thread(load, self._path)
                if fresh.errors:
                    faults = "\n".join(str(problem) for problem in fresh.errors)
                    raise QtandemError("bad-config", f"{self._path} has faults", cause=faults)
                await self._take_up(await self.context.upkeep.completed(fresh))
            except QtandemError as error:
                why = f"{error.message}: {error.cause}" if error.cause else error.message
                self.context.problems[:] = [f"reload refused, the last good configuration holds: {why}"]
                self.context.metrics.reloads.labels("refused").inc()
                log("daemon").error("reload refused", why=why)
                return False
            finally:
                self._notifier.ready(f"{len(self.context.catalog.resources)} resources")
            self.context.metrics.reloads.labels("done").inc()
            log("daemon").info("reloaded", resources=len(fresh.catalog.resources))
            return True

    def _assemble(self, configuration: Configuration) -> Context:
        settings, clock, signals = configuration.settings, self._clock, Signals()
        know_secrets(configuration.catalog)
        make_folders(settings.daemon)
        self._store = Store(database_url(settings), cipher.load(master_key(settings.daemon)))
        workers = Workers(
            specs(configuration.catalog),
            settings.timing.workers,
            settings.timing.vendor_call_s,
            memory_bytes=settings.timing.worker_memory_mb << 20,
            launch=self._launcher.worker if self._launcher else None,
        )
        keys = UserKeys(settings.daemon.state_dir, self._store.cipher, self._leased)
        calls = VendorCalls(workers, keys, lambda name: self.context.catalog.resources.get(name))
        leases = calls.leases = LeaseService(self._store, calls, self._slots, clock, signals, self._timing)
        pending = Pending(clock=clock, on_new=lambda names: self.context.observer.nudge(names))
        context = Context(
            configuration=configuration,
            clock=clock,
            signals=signals,
            records=Records(leases, self._store),
            leases=leases,
            workers=workers,
            observer=Observer(calls, signals, clock=clock, wanted=pending.wanted),
            pending=pending,
            authority=authority_of(settings),
            metrics=Metrics(),
            calls=calls,
        )
        state_dir = settings.daemon.state_dir
        context.tasks = Tasks(
            context.records, leases, calls, state_dir, signals, self._terms, clock=clock, rules=self._rules
        )
        calls.due = context.tasks.look
        refusals = Refusals(context.records, self._timing, clock=clock)
        context.lifecycle = Lifecycle(context, refusals)
        context.reported = Reported(context)
        context.proxy = Proxy(context, self._store.cipher)
        context.planning = Planning(context, launch_of(self._launcher))
        context.upkeep = Upkeep(context, self._take_up, self._staff)
        return context

    async def _take_up(self, configuration: Configuration) -> None:
        """Put a configuration in force. Managers are built first, since they may refuse their settings."""
        context, natives = self.context, configuration.catalog.natives
        settings = configuration.settings
        managers = {name: self._build(name, manager, natives) for name, manager in settings.managers.items()}
        self._retire(context.catalog, configuration.catalog)
        await self._staff(context.catalog, configuration.catalog)
        old = list(context.publishers.values())
        fixed = _fixed(context.settings, settings)
        context.configuration = configuration
        context.authority = authority_of(settings)
        crowded = context.workers.crowded()
        context.problems[:] = [*(str(problem) for problem in configuration.problems), *fixed, *filter(None, [crowded])]
        for problem in context.problems:
            log("daemon").warning("configuration", problem=problem)
        await asyncio.gather(*(publisher.close() for publisher in old))
        gone, context.managers = context.managers, managers
        context.publishers = {name: self._publisher(manager, settings) for name, manager in managers.items()}
        context.observer.configure(configuration.catalog.resources.values(), settings.timing)
        context.pending.configure(managers.values(), settings.timing)
        for publisher in context.publishers.values():
            publisher.start()
        await _close(gone)

    def _publisher(self, manager: Manager, settings: Settings) -> Publisher:
        return Publisher(
            manager,
            lambda: self._view(manager),
            settings.timing,
            self.context.signals,
            clock=self._clock,
            retired=self._retired.values(),
        )

    def _view(self, manager: Manager) -> View:
        context = self.context
        mine = f"run {manager.name}:{manager.cluster}:"
        foreign: dict[str, int] = {}
        own: dict[str, int] = {}
        for lease in context.leases.leases():
            side = own if lease.owner.startswith(mine) else foreign
            side[lease.resource] = side.get(lease.resource, 0) + lease.slots
        return View(context.catalog, context.observer.facts, foreign, own)

    def _retire(self, old: Catalog, new: Catalog) -> None:
        """Sensors of resources that go keep their last value in the managers for ever, unless they are closed."""
        kept = set(new.natives.values())
        for resource in old.resources.values():
            if resource.native not in kept:
                self._retired[resource.native] = SensorValue(resource.native, resource.slots, resource.slots)
        self._retired = {native: value for native, value in self._retired.items() if native not in kept}

    async def _staff(self, old: Catalog, new: Catalog) -> None:
        """Workers for the new resources, and for old ones that still have leases to give back."""
        know_secrets(new)
        leased = {lease.resource for lease in self.context.leases.leases()}
        going = {name: spec for name, spec in specs(old).items() if name in leased}
        observing = {name: each.observe_spec() for name, each in _all(new).items() if each.observing}
        await self.context.workers.update(going | specs(new), observing)

    def _leased(self, uid: int, resource: str) -> bool:
        leases = self.context.leases.leases()
        return any(lease.uid == uid and lease.resource == resource for lease in leases)

    def _slots(self, resource: str) -> int:
        found = self.context.catalog.resources.get(resource)
        return found.slots if found else 0

    def _timing(self) -> Timing:
        return self.context.settings.timing

    def _terms(self, resource: str) -> Terms:
        found, fact = self.context.catalog.resources.get(resource), self.context.observer.facts.get(resource)
        calibration = fact.calibration if fact else None
        return Terms(
            price=found.price if found else None,
            currency=found.currency if found else "",
            calibration_at=calibration.taken_at if calibration else None,
            versions={"qtandem": VERSION},
        )

    def _rules(self, resource: str) -> Rules:
        found = self.context.catalog.resources.get(resource)
        if found is None:
            return Rules()
        return Rules(found.max_tasks, found.max_tasks_lease, found.task_order, found.priority)

    async def _mirror(self) -> None:
        """The files of this host's own runtime directory, by the relay's function."""

        async def state() -> Health:
            return health(self.context)

        async def names() -> str:
            return names_text(self.context.catalog.resources.values())

        daemon, timing = self.context.settings.daemon, self.context.settings.timing
        await mirror(daemon.runtime_dir, state, names, timing.heartbeat_s, self.stop)

    async def _textfile(self) -> None:
        path = self.context.settings.daemon.textfile
        if path:
            await self.context.metrics.write(self.context, Path(path))

    async def _alive(self) -> None:
        self._notifier.alive()


async def _close(managers: Mapping[str, Manager]) -> None:
    await asyncio.gather(*(manager.close() for manager in managers.values() if isinstance(manager, Closing)))


def specs(catalog: Catalog) -> dict[str, ProviderSpec]:
    """What workers need of each resource that has a provider, by name."""
    return {name: each.spec() for name, each in _all(catalog).items() if each.has_provider}


def _all(catalog: Catalog) -> dict[str, Resource]:
    """Dynamic resources among them, since their vendors are asked what there is."""
    return {**catalog.templates, **catalog.resources}


def authority_of(settings: Settings) -> Authority:
    """Who may say what at this site."""
    services = {
        name: authority.service(manager.service_users, manager.control_hosts)
        for name, manager in settings.managers.items()
    }
    return Authority(services, settings.daemon.admins, settings.daemon.login_hosts)


def _fixed(old: Settings, new: Settings) -> list[str]:
    """Sentences on what a reload cannot change."""
    changed = [
        f"daemon.{name}"
        for name in type(old.daemon).model_fields
        if name not in LIVE and getattr(old.daemon, name) != getattr(new.daemon, name)
    ]
    changed += [
        f"timing.{name}"
        for name in ("workers", "worker_memory_mb", "vendor_call_s", "heartbeat_s")
        if getattr(old.timing, name) != getattr(new.timing, name)
    ]
    return [f"{name} was changed; it takes effect at the next start" for name in changed]


def master_key(settings: DaemonSettings) -> Path:
    """The key's file; what the service manager handed over comes before the configured path."""
    return credential("master.key") or settings.master_key


def database_url(settings: Settings) -> str:
    """SQLAlchemy URL of the store."""
    return settings.daemon.database or f"sqlite:///{settings.daemon.state_dir / 'qtandem.db'}"


def know_secrets(catalog: Catalog) -> None:
    """Have the log mask every setting of a vendor that may be a secret."""
    for resource in _all(catalog).values():
        masker.know(value for key, value in resource.settings.items() if _secret(key, value))


def _secret(key: str, value: str) -> bool:
    plain = ("ENDPOINT", "URL", "BUCKET", "REGION", "MODE", "TTL", "dir", "backend", "qubits", "seed", "SECONDS")
    return not key.endswith(plain) and not value.startswith("/")

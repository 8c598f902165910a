"""What changes without a reload: secrets, and the devices behind dynamic resources."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from qtandem.core import discovery
from qtandem.core.config import Configuration
from qtandem.core.discovery import Device
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.files import write_atomic
from qtandem.core.resources import Catalog, Resource, native_name
from qtandem.core.wire import DiscoveredAnswer
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log
from qtandem.daemons.rotation import Rotation

# A listing that failed is asked for again this soon; and nobody can have it asked for more often than that.
AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Listing:
    """What a vendor listed for one dynamic resource."""

    at: float
    devices: tuple[Device, ...]


class Upkeep:
    """One at a time with reloads, by `lock`. `put` puts a configuration in force, `renew` only a catalog's secrets."""

    def __init__(
        self,
        context: Context,
        put: Callable[[Configuration], Awaitable[None]],
        renew: Callable[[Catalog, Catalog], Awaitable[None]],
    ) -> None:
        self.lock = asyncio.Lock()
        self._context, self._put, self._renew = context, put, renew
        self._rotation = Rotation(context.clock)
        self._listings: dict[str, Listing] = {}
        self._failures: dict[str, str] = {}
        self._tried_at: float | None = None
        self._file = context.settings.daemon.state_dir / "discovered.json"

    async def open(self) -> None:
        """What was known when the last daemon ended: its devices may have leases to give back."""
        self._listings = await asyncio.to_thread(_read, self._file)
        old = self._context.catalog
        self._context.configuration = await self.completed(self._context.configuration)
        await self._renew(old, self._context.catalog)

    async def completed(self, configuration: Configuration) -> Configuration:
        """With the secrets of now, and with the devices that are known."""
        return replace(configuration, catalog=self._extended(await self._filled(configuration.catalog)))

    async def rotate(self) -> None:
        """Put changed secrets in force; nothing else of the configuration is touched."""
        context = self._context
        async with self.lock:
            old, fresh = context.catalog, await self._filled(context.catalog)
            if fresh is old:
                return
            context.configuration = replace(context.configuration, catalog=fresh)
            await self._renew(old, fresh)
            context.observer.configure(fresh.resources.values(), context.settings.timing)
            changed = [name for name, each in fresh.resources.items() if each is not old.resources[name]]
            log("daemon").info("secrets renewed", resources=changed)

    async def discover(self) -> None:
        """Ask vendors what there is behind each dynamic resource, and put it in force if it is something else."""
        context = self._context
        self._tried_at = context.clock()
        for template in list(context.catalog.templates.values()):
            await self._list(template)
        async with self.lock:
            fresh = await self.completed(context.configuration)
            if fresh.catalog.resources.keys() != context.catalog.resources.keys():
                log("daemon").info("discovered", resources=[each.name for each in _made(fresh.catalog)])
                await self._put(fresh)

    async def discovered(self, *, now: bool) -> list[DiscoveredAnswer]:
        """All devices that were listed, and what became of each; asked for anew `now`, within bounds."""
        clock = self._context.clock()
        if now and (self._tried_at is None or not 0 <= clock - self._tried_at < AGAIN_S):
            await self.discover()
        catalog = self._context.catalog
        return [
            DiscoveredAnswer(
                **asdict(device), template=template.name, type=template.type, **_fate(catalog, template, device)
            )
            for template in catalog.templates.values()
            for device in self._known(template)
        ]

    def period_s(self) -> float:
        """Until the next `discover`."""
        return AGAIN_S if self._failures else self._context.settings.timing.discover_s

    async def _list(self, template: Resource) -> None:
        details = discovery.needs_details(template.filter)
        try:
            rows = await self._context.calls.call(template.name, "discover", details, purpose="observe")
            found = discovery.devices(row for row in _rows(rows) if isinstance(row, Mapping))
            if not found:
                raise QtandemError("vendor-error", f"{template.name}: the vendor lists no device at all")
        except QtandemError as error:
            self._failures[template.name] = f"{template.name} was not looked up: {error.one_line()}"
            log("daemon").warning("not discovered", template=template.name, why=error.one_line())
            return
        self._failures.pop(template.name, None)
        self._listings[template.name] = Listing(self._context.clock(), tuple(found))
        await asyncio.to_thread(_write, self._file, self._listings)

    async def _filled(self, catalog: Catalog) -> Catalog:
        facts = self._context.observer.facts.values()
        refused = [fact.resource for fact in facts if fact.availability is Availability.FORBIDDEN]
        filled = await self._rotation.fill(catalog, refused)
        self._context.secret_problems[:] = [*self._rotation.problems.values(), *self._failures.values()]
        return filled

    def _extended(self, catalog: Catalog) -> Catalog:
        """The same object when nothing changes."""
        resources = {name: each for name, each in catalog.resources.items() if not each.template}
        natives = {each.native for each in resources.values()}
        for template in catalog.templates.values():
            for device in self._known(template):
                native = native_name(device.name)
                taken = device.name in resources or native in natives or device.name in catalog.classes
                if not taken and not discovery.refusal(template.filter, device):
                    made = discovery.made_from(template, device, native)
                    known = catalog.resources.get(device.name)
                    resources[device.name] = known if known == made and known is not None else made
                    natives.add(native)
        same = list(resources) == list(catalog.resources) and all(
            each is catalog.resources[name] for name, each in resources.items()
        )
        return catalog if same else replace(catalog, resources=resources)

    def _known(self, template: Resource) -> tuple[Device, ...]:
        listing = self._listings.get(template.name)
        return listing.devices if listing else ()


def _fate(catalog: Catalog, template: Resource, device: Device) -> dict[str, str]:
    made = catalog.resources.get(device.name)
    if made is not None and made.template == template.name:
        return {"resource": made.name, "why": ""}
    why = discovery.refusal(template.filter, device) or "another resource or class has its name"
    return {"resource": "", "why": why}


def _made(catalog: Catalog) -> list[Resource]:
    return [each for each in catalog.resources.values() if each.template]


def _rows(answer: object) -> list[object]:
    if not isinstance(answer, list):
        raise QtandemError("vendor-error", "The provider's listing is no list")
    return answer


def _read(file: Path) -> dict[str, Listing]:
    try:
        document = json.loads(file.read_text())
        return {
            name: Listing(each["at"], tuple(Device(**row) for row in each["devices"]))
            for name, each in document.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log("daemon").warning("known devices not read", file=str(file), why=str(error))
        return {}


def _write(file: Path, listings: Mapping[str, Listing]) -> None:
    try:
        write_atomic(file, json.dumps({name: asdict(each) for name, each in listings.items()}).encode())
    except OSError as error:
        log("daemon").warning("known devices not kept", file=str(file), why=str(error))

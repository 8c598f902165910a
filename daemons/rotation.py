"""Secrets as they are now: files that changed are read again, commands whose time is over are run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from qtandem.core import sources
from qtandem.core.resources import Catalog, Resource
from qtandem.core.sources import Source, SourceError, Stamp
from qtandem.daemons.logs import log, masker

# A command that failed, or whose secret the vendor refused, is not run more often than this.
AGAIN_S = 30.0
AT_ONCE = 4

Place = tuple[str, str, str]


@dataclass(slots=True)
class _Kept:
    """A secret as it was last read. `value` is None while it never was; `tried_at` is the last attempt."""

    source: Source
    value: str | None = None
    stamp: Stamp | None = None
    read_at: float = 0.0
    tried_at: float | None = None


class Rotation:
    """Keeps what each source gave. A source that fails keeps its last secret, and is a problem to show."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Place, _Kept] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)
        self.problems: dict[Place, str] = {}

    async def fill(self, catalog: Catalog, refused: Collection[str] = ()) -> Catalog:
        """The catalog with the secrets of now; the same object when nothing changed.

        `refused` are resources whose credential the vendor does not take: their commands are run again early.
        """
        wanted = {
            (each.name, purpose, key): source
            for each in catalog.resources.values()
            for purpose, key, source in _of(each)
        }
        self._kept = {place: kept for place, kept in self._kept.items() if wanted.get(place) == kept.source}
        self.problems = {place: why for place, why in self.problems.items() if place in wanted}
        await asyncio.gather(*(self._renew(place, source, place[0] in refused) for place, source in wanted.items()))
        masker.know(kept.value for kept in self._kept.values() if kept.value is not None)
        resources = {name: self._filled(each) for name, each in catalog.resources.items()}
        changed = [name for name, each in resources.items() if each is not catalog.resources[name]]
        return replace(catalog, resources=resources) if changed else catalog

    async def _renew(self, place: Place, source: Source, refused: bool) -> None:
        kept = self._kept.setdefault(place, _Kept(source))
        try:
            if source.command:
                await self._run(kept, refused)
            else:
                await asyncio.to_thread(_read, kept)
        except SourceError as error:
            if place not in self.problems:
                log("rotation").warning("secret not read", resource=place[0], name=place[2], why=str(error))
            self.problems[place] = f"resources.{place[0]}: {place[2]}: {error}; {error.fix}"
        else:
            self.problems.pop(place, None)

    async def _run(self, kept: _Kept, refused: bool) -> None:
        now = self._clock()
        due = kept.value is None or refused or now - kept.read_at >= kept.source.refresh_s
        pause = min(AGAIN_S, kept.source.refresh_s)
        if not due or (kept.tried_at is not None and 0 <= now - kept.tried_at < pause):
            return
        kept.tried_at = now
        async with self._limit:
            kept.value = await sources.ask(kept.source)
        kept.read_at = now

    def _filled(self, resource: Resource) -> Resource:
        settings = {**resource.settings, **self._values(resource.name, "execute", resource.sources)}
        observing = {**resource.observing, **self._values(resource.name, "observe", resource.observe_sources)}
        if settings == resource.settings and observing == resource.observing:
            return resource
        return replace(resource, settings=settings, observing=observing)

    def _values(self, resource: str, purpose: str, named: Mapping[str, Source]) -> dict[str, str]:
        found = {key: self._kept[resource, purpose, key].value for key in named}
        return {key: value for key, value in found.items() if value is not None}


def _of(resource: Resource) -> list[tuple[str, str, Source]]:
    execute = [("execute", key, source) for key, source in resource.sources.items()]
    return execute + [("observe", key, source) for key, source in resource.observe_sources.items()]


def _read(kept: _Kept) -> None:
    """Read a file if it is another than last time; looked at before, so that a change meanwhile shows next time."""
    seen = sources.stamp(kept.source)
    if seen is None or seen != kept.stamp or kept.value is None:
        kept.value = sources.read(kept.source)
        kept.stamp = seen

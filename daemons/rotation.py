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
    """Keeps what each source gave, once for all that name it.

    A source that fails keeps its last secret, and is a problem to show.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Source, _Kept] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)
        self.problems: dict[Source, str] = {}

    async def fill(self, catalog: Catalog, refused: Collection[str] = ()) -> Catalog:
        """The catalog with the secrets of now; the same object when nothing changed.

        `refused` are resources whose credential the vendor does not take: their commands are run again early.
        """
        wanted: dict[Source, list[Place]] = {}
        for each in [*catalog.templates.values(), *catalog.resources.values()]:
            for purpose, key, source in _of(each):
                wanted.setdefault(source, []).append((each.name, purpose, key))
        self._kept = {source: kept for source, kept in self._kept.items() if source in wanted}
        self.problems = {source: why for source, why in self.problems.items() if source in wanted}
        await asyncio.gather(*(self._renew(source, places, refused) for source, places in wanted.items()))
        masker.know(kept.value for kept in self._kept.values() if kept.value is not None)
        resources, templates = self._each(catalog.resources), self._each(catalog.templates)
        if resources is catalog.resources and templates is catalog.templates:
            return catalog
        return replace(catalog, resources=resources, templates=templates)

    def _each(self, resources: Mapping[str, Resource]) -> Mapping[str, Resource]:
        filled = {name: self._filled(each) for name, each in resources.items()}
        return filled if any(each is not resources[name] for name, each in filled.items()) else resources

    async def _renew(self, source: Source, places: list[Place], refused: Collection[str]) -> None:
        kept = self._kept.setdefault(source, _Kept(source))
        resource, _, key = places[0]
        try:
            if source.command:
                await self._run(kept, any(place[0] in refused for place in places))
            else:
                await asyncio.to_thread(_read, kept)
        except SourceError as error:
            if source not in self.problems:
                log("rotation").warning("secret not read", resource=resource, name=key, why=str(error))
            self.problems[source] = f"resources.{resource}: {key}: {error}; {error.fix}"
        else:
            self.problems.pop(source, None)

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
        settings = {**resource.settings, **self._values(resource.sources)}
        observing = {**resource.observing, **self._values(resource.observe_sources)}
        if settings == resource.settings and observing == resource.observing:
            return resource
        return replace(resource, settings=settings, observing=observing)

    def _values(self, named: Mapping[str, Source]) -> dict[str, str]:
        found = {key: self._kept[source].value for key, source in named.items()}
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

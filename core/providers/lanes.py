"""Which calls share a worker process, and which of them wait for each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from qtandem.core.providers.base import ProviderSpec
from qtandem.core.providers.secrecy import credential, digest
from qtandem.core.providers.worker import Worker

Purpose = Literal["observe", "execute"]


class Whose(NamedTuple):
    """What a call is for, and the digest of the secrets that came with it."""

    purpose: Purpose
    secrets: str


class Family(NamedTuple):
    """What may share a worker: one type, credential and purpose."""

    type: str
    credential: str
    whose: Whose


@dataclass(eq=False, slots=True)
class Lane:
    """The queue in front of one worker; the lock is first come, first served."""

    family: Family
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    worker: Worker | None = None
    told: dict[str, ProviderSpec] = field(default_factory=dict)
    used_at: float = 0.0
    calls: int = 0
    kills: int = 0


class Lanes:
    """Resources with the same settings share a lane, those of different credentials never do.

    Those with the same credential but other settings get lanes of their own as far as `limit` workers are enough for
    all credentials and both purposes, and at most a quarter of them. A resource whose poll has hung is polled in a
    lane apart until it answers, so that it delays no other one of its credential.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._share = 1
        self.credentials = 0
        self._lanes: dict[tuple[Family, str], Lane] = {}
        self._apart: dict[Family, Lane] = {}
        self._hung: set[tuple[Family, str]] = set()

    def expect(self, specs: Iterable[ProviderSpec]) -> None:
        """Divide the workers between the credentials of these resources."""
        self.credentials = len({(spec.type, digest(credential(spec.settings))) for spec in specs})
        self._share = min(max(1, self._limit // 4), max(1, self._limit // (2 * max(1, self.credentials))))

    def of(self, spec: ProviderSpec, whose: Whose) -> Lane:
        """The lane of a resource: the same while its settings are, but for a poll that has hung."""
        key = _key(spec, whose)
        if key in self._hung:
            return self._apart.setdefault(key[0], Lane(key[0]))
        if key not in self._lanes:
            members = [lane for kin, lane in self._lanes.items() if kin[0] == key[0]]
            crowd = Counter(members)
            full = len(crowd) >= self._share
            self._lanes[key] = min(crowd, key=crowd.__getitem__) if full else Lane(key[0])
        return self._lanes[key]

    def hung(self, spec: ProviderSpec, whose: Whose) -> None:
        """A call did not end in time. What executes keeps its place: its worker may hold what it needs."""
        if whose.purpose == "observe":
            self._hung.add(_key(spec, whose))

    def answered(self, spec: ProviderSpec, whose: Whose) -> None:
        if self._hung:
            self._hung.discard(_key(spec, whose))

    def all(self) -> set[Lane]:
        return {*self._lanes.values(), *self._apart.values()}

    def keep(self, wanted: Callable[[Family, str], bool]) -> set[Lane]:
        """Forget all lanes but those of wanted settings; the forgotten ones."""
        before = self.all()
        self._lanes = {key: lane for key, lane in self._lanes.items() if wanted(*key)}
        self._hung = {key for key in self._hung if wanted(*key)}
        self._apart = {
            family: lane for family, lane in self._apart.items() if any(family == key[0] for key in self._hung)
        }
        return before - self.all()

    def clear(self) -> None:
        self._lanes.clear()
        self._apart.clear()


def _key(spec: ProviderSpec, whose: Whose) -> tuple[Family, str]:
    return Family(spec.type, digest(credential(spec.settings)), whose), digest(spec.settings)

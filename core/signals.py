"""Changes that other tasks of one event loop wait for, so that nobody has to poll or sleep."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import TracebackType
from typing import Self


class Watch:
    """Keys of the watched topics that changed since the last `next`; several changes of a key are one.

    Use as a context manager: a watch that is left costs nothing any more.
    """

    def __init__(self, signals: Signals, topics: tuple[str, ...]) -> None:
        self._signals, self._topics = signals, topics
        self._changed: set[str] = set()
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        for topic in self._topics:
            self._signals.watches[topic].add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for topic in self._topics:
            self._signals.watches[topic].discard(self)

    def tell(self, key: str) -> None:
        self._changed.add(key)
        self._event.set()

    async def next(self, timeout: float | None = None) -> frozenset[str]:
        """The changed keys, as soon as there is one; empty when `timeout` seconds pass without any."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return frozenset()
        changed = frozenset(self._changed)
        self._changed.clear()
        self._event.clear()
        return changed


class Signals:
    """Named topics (`leases`, `facts`, `tasks` …); a key says what changed, for example a resource."""

    def __init__(self) -> None:
        self.watches: defaultdict[str, set[Watch]] = defaultdict(set)

    def send(self, topic: str, key: str = "") -> None:
        """Wake everybody who watches `topic`. Call it on the event loop."""
        for watch in tuple(self.watches[topic]):
            watch.tell(key)

    def watch(self, *topics: str) -> Watch:
        """Changes from the moment that the result is entered."""
        return Watch(self, topics)

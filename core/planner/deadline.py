"""One budget for all phases of a solve, in wall-clock time or in deterministic work."""

from __future__ import annotations

import time
from collections.abc import Callable

# What one second buys when work is counted instead of time; near the speed of one core of a 2025 server.
MOVES_PER_SECOND = 4_000_000
ITERATIONS_PER_SECOND = 20_000


class Deadline:
    """How much of a solve's budget is left.

    In wall-clock mode time passes by itself. In deterministic mode only `charge` spends, in seconds' worth of
    counted work, so that two runs with the same seed take the same decisions on any machine.
    """

    def __init__(
        self, limit_s: float, *, clock: Callable[[], float] = time.monotonic, deterministic: bool = False
    ) -> None:
        self.limit_s = limit_s
        self.deterministic = deterministic
        self._clock = clock
        self._start = clock()
        self._charged = 0.0

    def spent(self) -> float:
        return self._charged if self.deterministic else self._clock() - self._start

    def left(self) -> float:
        return max(0.0, self.limit_s - self.spent())

    def expired(self) -> bool:
        return self.spent() >= self.limit_s

    def charge(self, seconds: float) -> None:
        if self.deterministic:
            self._charged += seconds

    def share(self, seconds: float) -> float:
        """As many seconds as were asked for, or what is left."""
        return min(seconds, self.left())

    def rest(self) -> Deadline:
        """A deadline of its own for what is left; charges this one too."""
        return _Part(self, self.left())

    def part(self, seconds: float) -> Deadline:
        """A shorter deadline that ends with this one at the latest; charging either charges both."""
        return _Part(self, self.share(seconds))


class _Part(Deadline):
    """Counts by the clock of the whole, whoever charges that."""

    def __init__(self, whole: Deadline, limit_s: float) -> None:
        super().__init__(limit_s, clock=whole._clock, deterministic=whole.deterministic)
        self._whole = whole
        self._began = whole.spent()

    def spent(self) -> float:
        return self._whole.spent() - self._began

    def charge(self, seconds: float) -> None:
        self._whole.charge(seconds)

"""From a poll, or from its failure, to a fact; and when to poll next. No I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Fact, Observation

# Waiting halves at most: two daemons that failed together must not come back together.
_JITTER = 0.5


def from_observation(resource: str, seen: Observation, *, at: float, ttl_s: float, credential: str = "site") -> Fact:
    """The fact that one poll at `at` (Unix seconds) gives; it holds for `ttl_s` seconds."""
    return Fact(**dict(seen), resource=resource, at=at, ttl_s=ttl_s, credential=credential)


def from_error(
    resource: str, error: QtandemError, *, at: float, ttl_s: float, previous: Fact | None, credential: str = "site"
) -> Fact:
    """The fact that a failed poll gives.

    A refused credential or plan is `forbidden`, whatever else is `unknown`. While the previous fact is still
    fresh a passing vendor fault does not replace it: what was seen a period ago is better than nothing, and
    it runs out by itself.
    """
    forbidden = error.code in ("bad-credentials", "policy")
    if error.retryable and not forbidden and previous is not None and not previous.stale(at):
        return previous
    return Fact(
        availability=Availability.FORBIDDEN if forbidden else Availability.UNKNOWN,
        reason=f"{error.message} ({error.cause})" if error.cause else error.message,
        calibration=previous.calibration if previous else None,
        resource=resource,
        at=at,
        ttl_s=ttl_s,
        credential=credential,
    )


def differs(old: Fact | None, new: Fact) -> bool:
    """Whether anything but the time of reading changed."""
    if old is None:
        return True
    return old != new.model_copy(update={"at": old.at, "ttl_s": old.ttl_s})


@dataclass(slots=True)
class Pace:
    """When to poll one resource next.

    `period_s` normally, `waiting_s` while jobs wait for it (never slower than `period_s`), and after the
    n-th failure in a row `period · 2ⁿ`, at most `backoff_max_s`, with jitter. `random` gives [0, 1).
    """

    period_s: float
    waiting_s: float
    backoff_max_s: float
    random: Callable[[], float]
    failures: int = 0

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self) -> None:
        self.failures += 1

    def delay_s(self, waiting: bool) -> float:
        base = min(self.period_s, self.waiting_s) if waiting else self.period_s
        if not self.failures:
            return base
        # Beyond 2^32 the cap holds anyway; an unbounded power would overflow after a week of failures.
        grown = min(base * 2.0 ** min(self.failures, 32), max(self.backoff_max_s, base))
        return grown * (1.0 - _JITTER * self.random())


def waits_s(fact: Fact | None, now: float) -> float | None:
    """Seconds until the resource probably serves a new job; None where nobody can tell."""
    if fact is None or fact.stale(now):
        return None
    if fact.availability is Availability.ONLINE:
        return fact.wait_s if fact.wait_s is not None else (0.0 if not fact.queue else None)
    if fact.opens_at is not None:
        return max(0.0, fact.opens_at - now) + (fact.wait_s or 0.0)
    return None

"""How often one job may start anew where its owner reports starts and ends: each start is a call of the vendor.

LSF itself starts a job again within seconds of each end, so a few at once are nobody's fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qtandem.core.runs import JobId

# Starts of one job at once; then one each so many seconds.
AT_ONCE, EVERY_S = 20, 60.0
# Jobs in mind, from which on those are forgotten that may start as often as any.
KEPT = 4096


@dataclass(slots=True)
class Pace:
    """Starts that jobs have left, as `(number, time)`. A job that is not here has all of them."""

    at_once: int = AT_ONCE
    every_s: float = EVERY_S
    _left: dict[JobId, tuple[float, float]] = field(default_factory=dict)

    def wait_s(self, job: JobId, now: float) -> float:
        """Seconds until the job may start, 0 for now."""
        return max(0.0, 1.0 - self._now(job, now)) * self.every_s

    def take(self, job: JobId, now: float) -> bool:
        """Count a start; returns whether it was the last one that was free."""
        left = self._now(job, now) - 1.0
        if len(self._left) >= KEPT and job not in self._left:
            self._left = {each: told for each, told in self._left.items() if self._now(each, now) < self.at_once}
        self._left[job] = left, now
        return left < 1.0

    def _now(self, job: JobId, now: float) -> float:
        left, at = self._left.get(job, (float(self.at_once), now))
        return min(float(self.at_once), left + max(0.0, now - at) / self.every_s)

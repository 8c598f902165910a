"""Facts: timestamped readings of a resource, and what they mean for whoever waits for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Availability(StrEnum):
    """How the vendor says that a resource is; `unknown` where it does not say, or not lately."""

    ONLINE = "online"
    PAUSED = "paused"
    OFFLINE = "offline"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Calibration(_Frozen):
    """A vendor's own description of a device at one time.

    `two_qubit_error` is the median over all pairs; times are in seconds; `taken_at` is a Unix time.
    None means that the vendor did not say; it is never zero.
    """

    qubits: int
    taken_at: float | None = None
    basis_gates: tuple[str, ...] = ()
    coupling: tuple[tuple[int, int], ...] = ()
    two_qubit_error: float | None = None
    readout_error: float | None = None
    t1_s: float | None = None
    t2_s: float | None = None
    gate_time_s: float | None = None
    max_shots: int | None = None


class Observation(_Frozen):
    """What one poll of a vendor saw. Numbers are None where the vendor does not say."""

    availability: Availability
    reason: str = ""
    queue: Annotated[int, Field(ge=0)] | None = None
    free_slots: Annotated[int, Field(ge=0)] | None = None
    total_slots: Annotated[int, Field(ge=0)] | None = None
    wait_s: Annotated[float, Field(ge=0)] | None = None
    opens_at: float | None = None
    calibration: Calibration | None = None


class Fact(Observation):
    """An observation with its time (`at`, Unix), its time to live (`ttl_s`) and whose credential saw it.

    `free_slots` counts what users outside this daemon leave free; our own leases are not subtracted.
    """

    resource: str
    at: float
    ttl_s: float
    credential: str = "site"

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.at)

    def stale(self, now: float) -> bool:
        return self.age_s(now) > self.ttl_s

    def seen_as(self, now: float) -> Availability:
        """The availability that may be acted on: a stale fact is `unknown`."""
        return Availability.UNKNOWN if self.stale(now) else self.availability

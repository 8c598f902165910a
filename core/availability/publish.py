"""From facts and leases to what the sensors of one manager shall show. No I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from qtandem.core.facts import Fact
from qtandem.core.managers import SensorValue
from qtandem.core.resources import Resource
from qtandem.core.verdicts import closed_slots


def sensor_values(
    resources: Iterable[Resource],
    facts: Mapping[str, Fact],
    foreign: Mapping[str, int],
    now: float,
) -> dict[str, SensorValue]:
    """The value of each resource's sensor, by native name.

    `foreign` are slots leased by anybody but this manager's own jobs, by resource name: claims and other
    managers' runs. The manager counts its own jobs itself.
    """
    values: dict[str, SensorValue] = {}
    for resource in resources:
        fact = facts.get(resource.name)
        total, closed = closed_slots(resource, fact, now)
        closed = min(total, closed + foreign.get(resource.name, 0))
        values[resource.native] = SensorValue(resource.native, total, closed)
    return values


def due(
    wanted: Mapping[str, SensorValue], confirmed: Mapping[str, SensorValue], disturbed: Collection[str] = ()
) -> list[SensorValue]:
    """The values that must be written now.

    `disturbed` are natives whose leases changed: a manager may compute what a partly closed sensor leaves
    from its own use at the moment of writing (Slurm does), so these are written again though the value stands.
    """
    return [
        value
        for native, value in wanted.items()
        if confirmed.get(native) != value or (native in disturbed and 0 < value.closed < value.total)
    ]


def opened(
    before: Mapping[str, SensorValue], after: Mapping[str, SensorValue], natives: Iterable[str]
) -> frozenset[str]:
    """Those of `natives` that leave more open slots than before: jobs that wait for them want a look now."""
    return frozenset(
        native
        for native in natives
        if native in after and after[native].open > (before[native].open if native in before else 0)
    )


def next_expiry(facts: Iterable[Fact], now: float) -> float | None:
    """Seconds until the first fresh fact goes stale, which changes a sensor without any news."""
    left = [fact.at + fact.ttl_s - now for fact in facts if not fact.stale(now)]
    return max(0.0, min(left)) if left else None

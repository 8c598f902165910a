from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qtandem.core.availability.publish import due, next_expiry, opened, sensor_values
from qtandem.core.facts import Availability, Fact
from qtandem.core.managers import SensorValue
from qtandem.core.resources import Resource

NOW = 1000.0


def fact(name: str = "fez", **fields: object) -> Fact:
    return Fact(**{"resource": name, "at": NOW, "ttl_s": 30.0, "availability": Availability.ONLINE, **fields})


def value(resource: Resource, seen: Fact | None, foreign: int = 0, now: float = NOW) -> SensorValue:
    facts = {seen.resource: seen} if seen else {}
    return sensor_values([resource], facts, {resource.name: foreign}, now)[resource.native]


def qpu(slots: int = 3, **fields: object) -> Resource:
    return Resource(**{"name": "fez", "type": "simulator", "native": "q_fez", "slots": slots, **fields})


def test_a_resource_is_open_only_while_it_is_online_and_fresh() -> None:
    assert value(qpu(), fact()) == SensorValue("q_fez", 3, 0)
    assert value(qpu(), None).open == 0
    assert value(qpu(), fact(), now=NOW + 31.0).open == 0
    for kind in Availability:
        assert value(qpu(), fact(availability=kind)).open == (3 if kind is Availability.ONLINE else 0)


def test_slots_of_outsiders_claims_and_other_managers_are_kept_from_jobs() -> None:
    assert value(qpu(), fact(free_slots=2)).closed == 1
    assert value(qpu(), fact(free_slots=2), foreign=1).closed == 2
    assert value(qpu(), fact(free_slots=0), foreign=2).closed == 3


def test_a_long_queue_or_wait_closes() -> None:
    assert value(qpu(max_queue=5), fact(queue=5)).open == 3
    assert value(qpu(max_queue=5), fact(queue=6)).open == 0
    assert value(qpu(max_wait_s=60.0), fact(wait_s=61.0)).open == 0
    assert value(qpu(max_queue=5), fact(queue=None)).open == 3


def test_an_admin_may_have_unknown_mean_open() -> None:
    effects = dict.fromkeys(Availability, "open")
    assert value(qpu(effects=effects), None).open == 3


@given(
    slots=st.integers(1, 9),
    free=st.none() | st.integers(0, 12),
    foreign=st.integers(0, 12),
    kind=st.sampled_from(Availability),
    age=st.floats(0, 60),
)
def test_a_sensor_never_shows_more_than_there_is(
    slots: int, free: int | None, foreign: int, kind: Availability, age: float
) -> None:
    shown = value(qpu(slots), fact(availability=kind, free_slots=free, at=NOW - age), foreign)
    assert 0 <= shown.closed <= shown.total == slots
    assert shown.open <= max(0, min(slots, slots if free is None else free) - foreign) or shown.open == 0
    if kind is not Availability.ONLINE or age > 30.0:
        assert shown.open == 0


def test_only_what_changed_is_written() -> None:
    wanted = {"a": SensorValue("a", 1, 0), "b": SensorValue("b", 1, 1)}
    assert due(wanted, {}) == [*wanted.values()]
    assert due(wanted, wanted) == []
    assert due(wanted, {**wanted, "b": SensorValue("b", 1, 0)}) == [wanted["b"]]


def test_a_partly_closed_sensor_is_written_again_when_its_leases_change() -> None:
    wanted = {"part": SensorValue("part", 3, 1), "open": SensorValue("open", 3, 0), "shut": SensorValue("shut", 3, 3)}
    assert due(wanted, wanted, {"part", "open", "shut"}) == [wanted["part"]]


def test_what_leaves_more_open_than_before_is_kicked() -> None:
    before = {"a": SensorValue("a", 2, 2), "b": SensorValue("b", 2, 0)}
    after = {"a": SensorValue("a", 2, 1), "b": SensorValue("b", 2, 1), "c": SensorValue("c", 1, 0)}
    assert opened(before, after, ["a", "b", "c"]) == {"a", "c"}
    assert opened(before, after, ["b"]) == frozenset()


def test_the_next_staleness_is_foreseen() -> None:
    facts = [fact(at=NOW - 10.0), fact("b", at=NOW - 25.0), fact("c", at=NOW - 99.0)]
    assert next_expiry(facts, NOW) == 5.0
    assert next_expiry([], NOW) is None

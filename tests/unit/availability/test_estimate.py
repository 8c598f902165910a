from __future__ import annotations

import pytest

from qtandem.core.availability.estimate import Pace, differs, from_error, from_observation, waits_s
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Fact, Observation

ONLINE = Observation(availability=Availability.ONLINE, queue=3, free_slots=1)


def fact(at: float = 100.0, **fields: object) -> Fact:
    return Fact(**{"resource": "fez", "at": at, "ttl_s": 30.0, "availability": Availability.ONLINE, **fields})


def test_a_fact_keeps_all_that_was_seen() -> None:
    made = from_observation("fez", ONLINE, at=5.0, ttl_s=9.0, credential="reader")
    assert (made.queue, made.free_slots, made.at, made.ttl_s, made.credential) == (3, 1, 5.0, 9.0, "reader")


def test_a_passing_fault_keeps_what_was_seen_until_it_is_stale() -> None:
    error = QtandemError("vendor-error", "500")
    assert from_error("fez", error, at=110.0, ttl_s=30.0, previous=fact()) == fact()
    later = from_error("fez", error, at=131.0, ttl_s=30.0, previous=fact())
    assert (later.availability, later.reason) == (Availability.UNKNOWN, "500")


@pytest.mark.parametrize("code", ["bad-credentials", "policy"])
def test_a_refused_credential_is_forbidden_at_once_and_says_why(code: str) -> None:
    error = QtandemError(code, "401 from the vendor", cause="key expired")
    made = from_error("fez", error, at=101.0, ttl_s=30.0, previous=fact())
    assert made.availability is Availability.FORBIDDEN
    assert made.reason == "401 from the vendor (key expired)"


def test_only_the_time_of_reading_is_no_news() -> None:
    assert not differs(fact(at=1.0), fact(at=2.0))
    assert differs(fact(), fact(queue=1))
    assert differs(None, fact())


def test_polls_are_faster_while_jobs_wait_but_never_slower_than_normal() -> None:
    cloud = Pace(60.0, 15.0, 300.0, random=lambda: 0.0)
    assert (cloud.delay_s(False), cloud.delay_s(True)) == (60.0, 15.0)
    simulator = Pace(1.0, 15.0, 300.0, random=lambda: 0.0)
    assert simulator.delay_s(True) == 1.0


def test_failures_back_off_to_the_most_and_a_success_ends_that() -> None:
    pace = Pace(60.0, 15.0, 300.0, random=lambda: 0.0)
    delays = []
    for _ in range(5):
        pace.failed()
        delays.append(pace.delay_s(False))
    assert delays == [120.0, 240.0, 300.0, 300.0, 300.0]
    pace.succeeded()
    assert pace.delay_s(False) == 60.0


def test_back_off_is_jittered_and_survives_a_week_of_failures() -> None:
    low, high = (Pace(60.0, 15.0, 300.0, random=lambda value=value: value, failures=9999) for value in (0.999, 0.0))
    assert high.delay_s(False) == 300.0
    assert 150.0 <= low.delay_s(False) < 151.0


def test_the_wait_is_told_only_where_somebody_can_tell() -> None:
    assert waits_s(fact(queue=0), 101.0) == 0.0
    assert waits_s(fact(queue=7), 101.0) is None
    assert waits_s(fact(queue=7, wait_s=40.0), 101.0) == 40.0
    paused = fact(availability=Availability.PAUSED, opens_at=161.0, wait_s=5.0)
    assert waits_s(paused, 101.0) == 65.0
    assert waits_s(fact(), 1000.0) is None
    assert waits_s(None, 0.0) is None

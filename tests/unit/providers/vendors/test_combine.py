"""Signals of a vendor that disagree."""

import math

import pytest

from qtandem.core.facts import Availability as A
from qtandem.core.providers.combine import Signals, count, observation


@pytest.mark.parametrize(
    ("signals", "availability", "reason"),
    [
        (Signals(words=("online",), operational=True), A.ONLINE, ""),
        (Signals(words=("paused",), operational=True), A.PAUSED, "paused"),
        (Signals(words=("online", "maintenance"), operational=True), A.PAUSED, "maintenance"),
        (Signals(words=("online", "offline", "paused")), A.OFFLINE, "offline"),
        (Signals(words=("online",), operational=False), A.OFFLINE, "not operational"),
        (Signals(words=("paused",), operational=False), A.PAUSED, "paused"),
        (Signals(words=("online",), locked=True), A.PAUSED, "locked by a reservation"),
        (Signals(words=("offline",), locked=True), A.OFFLINE, "offline"),
        (Signals(words=("online",), locked=None), A.ONLINE, ""),
        (Signals(words=("online",), busy=True), A.ONLINE, "busy"),
        (Signals(operational=True), A.ONLINE, ""),
        (Signals(operational=False), A.OFFLINE, "not operational"),
        (Signals(), A.UNKNOWN, "the vendor does not say its status"),
        (Signals(words=(None, "")), A.UNKNOWN, "the vendor does not say its status"),
        (Signals(words=("sleeping",)), A.UNKNOWN, "the vendor's status is 'sleeping'"),
        (Signals(words=("online", "sleeping"), operational=True), A.UNKNOWN, "the vendor's status is 'sleeping'"),
        (Signals(words=(" ACTIVE ",)), A.ONLINE, ""),
        (Signals(words=("paused",), reason="cooling down"), A.PAUSED, "cooling down"),
    ],
)
def test_the_most_closed_signal_wins(signals, availability, reason):
    seen = observation(signals)
    assert (seen.availability, seen.reason) == (availability, reason)


def test_of_several_queues_the_largest_holds_and_a_missing_one_is_not_zero():
    assert observation(Signals(words=("online",), queues=(0, 3))).queue == 3
    assert observation(Signals(words=("online",), queues=(None, 0))).queue == 0
    assert observation(Signals(words=("online",), queues=(None,))).queue is None
    assert observation(Signals(words=("online",))).queue is None
    assert observation(Signals(words=("online",), queues=(-1, "n/a"))).queue is None


def test_free_places_are_the_fewest_and_never_more_than_there_are():
    assert observation(Signals(free=(4, 2), total=3)).free_slots == 2
    assert observation(Signals(free=(9,), total=3)).free_slots == 3
    assert observation(Signals(total=3)).free_slots is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7), (">2000", 2000), ("12 jobs", 12), (3.0, 3), (True, None), (None, None), (-1, None), ("-1", None),
        (math.nan, None), (math.inf, None), ([], None), ("", None),
    ],
)  # fmt: skip
def test_a_count_is_a_number_or_nothing(value, number):
    assert count(value) == number

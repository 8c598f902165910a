"""How signals that disagree become one observation: the one place where it is decided.

1. What is not said is not known: no status word and no flag make `unknown`, and so does a word that nobody knows.
   A missing number, or one that makes no sense (negative, a text without digits), is None and never zero.
2. The most closed signal wins: offline, then paused, then online. "Operational" with a paused status is paused;
   "online" with `operational: false` is offline, or paused where the word names a pause.
3. A lock (somebody else's reservation) pauses a resource that is online, whatever else is said.
4. Of several counts of waiting jobs the largest holds: a vendor that says zero while jobs are seen to be queued is
   wrong about zero.
5. Of several counts of free places the smallest holds; it is never more than the total.
6. `busy` closes nothing: a busy resource queues. It is told in the reason only.
7. The reason is the vendor's own, else what the signals say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qtandem.core.facts import Availability, Calibration, Observation

# Status words of all vendors, in lower case.
WORDS: Mapping[str, Availability] = {
    **dict.fromkeys(("online", "active", "available", "operational", "ready", "up", "idle"), Availability.ONLINE),
    **dict.fromkeys(
        ("paused", "maintenance", "calibrating", "calibration", "internal", "reserved", "dedicated", "busy-reserved"),
        Availability.PAUSED,
    ),
    **dict.fromkeys(
        ("offline", "retired", "unavailable", "down", "error", "inactive", "disabled", "stopped"), Availability.OFFLINE
    ),
}
_CLOSEDNESS = (Availability.OFFLINE, Availability.PAUSED, Availability.UNKNOWN, Availability.ONLINE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Signals:
    """What a vendor said; None or empty where it did not.

    `words` are status words of different endpoints. `operational` and `locked` are flags. `queues` are counts of
    waiting jobs from different places, `free` of free places; each may be a number, a text such as `>2000`, or None.
    """

    words: tuple[object, ...] = ()
    operational: object = None
    locked: object = None
    busy: object = None
    queues: tuple[object, ...] = ()
    free: tuple[object, ...] = ()
    total: object = None
    wait_s: object = None
    reason: str = ""
    opens_at: float | None = None


def observation(signals: Signals, calibration: Calibration | None = None) -> Observation:
    """The observation that the rules at the top of this module make of the signals."""
    availability, why = _availability(signals)
    total = count(signals.total)
    free = _least(signals.free)
    if total is not None and free is not None:
        free = min(free, total)
    return Observation(
        availability=availability,
        reason=signals.reason or why,
        queue=_most(signals.queues),
        free_slots=free,
        total_slots=total,
        wait_s=seconds(signals.wait_s),
        opens_at=signals.opens_at,
        calibration=calibration,
    )


def count(value: object) -> int | None:
    """A whole number from 0 up, also from a text such as `>2000`; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        found = _NUMBER.search(value)
        return int(found[0]) if found and "-" not in value else None
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return int(value)
    return None


def seconds(value: object) -> float | None:
    """A finite number from 0 up; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _availability(signals: Signals) -> tuple[Availability, str]:
    said = [(_word(word), str(word)) for word in signals.words if isinstance(word, str) and word]
    state, why = min(said, key=lambda each: _CLOSEDNESS.index(each[0])) if said else (None, "")
    if state is None:
        state = Availability.ONLINE if signals.operational is True else Availability.UNKNOWN
        why = "" if signals.operational is True else "the vendor does not say its status"
    elif state is Availability.UNKNOWN:
        why = f"the vendor's status is {why[:40]!r}"
    if signals.operational is False and state is not Availability.PAUSED:
        state, why = Availability.OFFLINE, "not operational"
    if state is Availability.ONLINE:
        if signals.locked is True:
            return Availability.PAUSED, "locked by a reservation"
        return state, "busy" if signals.busy is True else ""
    return state, why


def _word(word: str) -> Availability:
    return WORDS.get(word.strip().lower(), Availability.UNKNOWN)


def _most(values: Iterable[object]) -> int | None:
    return max((found for value in values if (found := count(value)) is not None), default=None)


def _least(values: Iterable[object]) -> int | None:
    return min((found for value in values if (found := count(value)) is not None), default=None)

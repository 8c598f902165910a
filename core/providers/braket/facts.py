"""What Braket says of a device, read from `GetDevice` as it is: the SDK's own models refuse what they do not know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from qtandem.core.facts import Calibration
from qtandem.core.providers.braket.settings import Reservation
from qtandem.core.providers.calibrations import unix_time
from qtandem.core.providers.combine import Signals, count
from qtandem.core.providers.parts import list_of, median_of, object_of

TASKS = "QUANTUM_TASKS_QUEUE"
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_GROUPS = {"everyday": range(7), "weekdays": range(5), "weekend": range(5, 7), "weekends": range(5, 7)}
_DAY_S = 86_400
_REASONS = {
    "OUTSIDE_AVAILABILITY_WINDOW": "outside its availability window",
    "MAINTENANCE": "maintenance",
    "RESERVATION": "reserved by somebody else",
}
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Window:
    """A span of a day (0 is Monday, UTC) in which a device runs tasks; it may go on into the next day."""

    day: int
    start_s: int
    length_s: int


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a unit: shot, minute, hour or task."""

    amount: float
    unit: str

    def task(self, shots: int | None, per_task: float | None) -> float | None:
        """What a task costs; None where it depends on how long it ran."""
        if self.unit == "shot" and shots is not None and per_task is not None:
            return round(per_task + self.amount * shots, 6)
        return self.amount if self.unit == "task" else None


def capabilities(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """The device's own description; empty where it cannot be read."""
    said = device.get("deviceCapabilities")
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            return {}
    return object_of(said)


def signals(device: Mapping[str, Any], now: float, reservation: Reservation | None) -> Signals:
    """Status, availability windows and queue. Tasks in a reservation pass by the queue and the windows."""
    word, why = str(device.get("deviceStatus") or ""), object_of(device.get("deviceStatusReason"))
    reason = _REASONS.get(str(why.get("reason")), str(why.get("reason") or ""))
    opens_at = _unix(why.get("estimatedEndAt"))
    if word == "OFFLINE" and why.get("reason") in _REASONS:
        word = "paused"
    if reservation is not None:
        return _reserved(word, reason, now, reservation)
    closed_until = opening(windows(capabilities(device)), now)
    if word == "ONLINE" and closed_until is not None:
        return Signals(words=(word, "paused"), reason=_REASONS["OUTSIDE_AVAILABILITY_WINDOW"], opens_at=closed_until)
    if opens_at is None and reason == _REASONS["OUTSIDE_AVAILABILITY_WINDOW"]:
        opens_at = closed_until
    return Signals(words=(word,), queues=(queue(device),), reason=reason, opens_at=opens_at)


def _reserved(word: str, reason: str, now: float, reservation: Reservation) -> Signals:
    running = reservation.running(now)
    if running is None:
        return Signals(words=(word,), reason=reason)
    if running:
        # The device is closed to everybody else then, and Braket says so to everybody.
        ours = "ONLINE" if reason == _REASONS["RESERVATION"] else word
        return Signals(words=(ours,), reason="" if ours != word else reason)
    early = reservation.start is not None and now < reservation.start
    why = "the reservation has not begun" if early else "the reservation is over"
    return Signals(words=(word, "paused"), reason=why, opens_at=reservation.start if early else None)


def queue(device: Mapping[str, Any]) -> int | None:
    """Tasks that wait, as far as Braket says (`>2000` counts as 2000): those of hybrid jobs go before the others."""
    sizes = [
        count(each.get("queueSize"))
        for each in map(object_of, list_of(device.get("deviceQueueInfo")))
        if each.get("queue") == TASKS
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def windows(said: Mapping[str, Any]) -> list[Window]:
    """The availability windows; those that cannot be read are left out."""
    found = []
    for each in map(object_of, list_of(object_of(said.get("service")).get("executionWindows"))):
        start, end = _clock(each.get("windowStartHour")), _clock(each.get("windowEndHour"))
        day = str(each.get("executionDay", "")).lower()
        days = _GROUPS.get(day) or ([_DAYS.index(day)] if day in _DAYS else [])
        if start is None or end is None:
            continue
        # A window until 23:59:59 or 23:59 goes on to midnight.
        end = _DAY_S if end >= _DAY_S - 60 else end
        length = end - start if end > start else end - start + _DAY_S
        found += [Window(number, start, length) for number in days]
    return found


def opening(spans: Iterable[Window], now: float) -> float | None:
    """When the device opens next; None if a window is open, or there is none."""
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    starts = []
    for span in spans:
        for ahead in range(-7, 8):
            day = midnight + timedelta(days=ahead)
            if day.weekday() != span.day:
                continue
            start = day.timestamp() + span.start_s
            if start <= now < start + span.length_s:
                return None
            if start > now:
                starts.append(start)
    return min(starts, default=None)


def price(said: Mapping[str, Any]) -> Price | None:
    cost = object_of(object_of(said.get("service")).get("deviceCost"))
    amount = _number(cost.get("price"))
    unit = str(cost.get("unit") or "").lower().rstrip("s")
    return Price(amount, unit) if amount is not None and unit else None


def shots_range(said: Mapping[str, Any], reserved: bool) -> tuple[int, int] | None:
    """The least and the most shots of a task."""
    service = object_of(said.get("service"))
    found = list_of(service.get("reservationShotsRange")) if reserved else []
    found = found or list_of(service.get("shotsRange"))
    if len(found) == 2 and all(isinstance(each, int) for each in found):
        return found[0], found[1]
    return None


def calibration(said: Mapping[str, Any]) -> Calibration | None:
    """From the paradigm and the standardized properties, or from IonQ's and AQT's means; None without qubits."""
    paradigm, standard = object_of(said.get("paradigm")), object_of(said.get("standardized"))
    provider = object_of(said.get("provider"))
    qubits = count(paradigm.get("qubitCount"))
    if not qubits:
        return None
    ones = [object_of(each) for each in object_of(standard.get("oneQubitProperties")).values()]
    pairs = [object_of(each) for each in object_of(standard.get("twoQubitProperties")).values()]
    mean, timing = object_of(provider.get("fidelity")), object_of(provider.get("timing"))
    best = [min(found) for each in pairs if (found := list(_gate_errors(each)))]
    limits = shots_range(said, reserved=False)
    return Calibration(
        qubits=qubits,
        taken_at=unix_time(object_of(said.get("service")).get("updatedAt")),
        basis_gates=tuple(gate for gate in list_of(paradigm.get("nativeGateSet")) if isinstance(gate, str)),
        coupling=tuple(_coupling(object_of(paradigm.get("connectivity")))),
        two_qubit_error=_first(median_of(best), _error(object_of(mean.get("2Q")).get("mean"))),
        readout_error=_first(median_of(_readout(ones)), _error(object_of(mean.get("spam")).get("mean"))),
        t1_s=_first(median_of(_times(ones, "T1")), _number(timing.get("T1"))),
        t2_s=_first(median_of(_times(ones, "T2")), _number(timing.get("T2"))),
        gate_time_s=_number(timing.get("2Q")),
        max_shots=limits[1] if limits and limits[1] > 0 else None,
    )


def _coupling(connectivity: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    """The pairs of a graph; none where everything is connected, which the graph does not spell out."""
    for one, others in object_of(connectivity.get("connectivityGraph")).items():
        for other in list_of(others):
            first, second = count(one), count(other)
            if first is not None and second is not None:
                yield first, second


def _gate_errors(pair: Mapping[str, Any]) -> Iterable[float]:
    for each in map(object_of, list_of(pair.get("twoQubitGateFidelity"))):
        error = _error(each.get("fidelity"))
        if error is not None:
            yield error


def _readout(ones: Iterable[Mapping[str, Any]]) -> Iterable[float]:
    for one in ones:
        for each in map(object_of, list_of(one.get("oneQubitFidelity"))):
            kind = str(object_of(each.get("fidelityType")).get("name", "")).upper()
            error = _error(each.get("fidelity")) if kind.startswith("READOUT") else None
            if error is not None:
                yield error
                break


def _times(ones: Iterable[Mapping[str, Any]], name: str) -> Iterable[float]:
    for one in ones:
        said = object_of(one.get(name))
        value, unit = _number(said.get("value")), str(said.get("unit") or "s").lower()
        if value is not None and unit in _UNITS:
            yield value * _UNITS[unit]


def _error(fidelity: object) -> float | None:
    """Of a part that works: a fidelity of zero means that it does not."""
    value = _number(fidelity)
    return round(1 - value, 12) if value is not None and 0 < value <= 1 else None


def _clock(value: object) -> int | None:
    try:
        parts = [int(each) for each in str(value).split(":")]
    except ValueError:
        return None
    if len(parts) not in (2, 3):
        return None
    hours, minutes, seconds = [*parts, 0][:3]
    return hours * 3600 + minutes * 60 + seconds


def _unix(value: object) -> float | None:
    return value.timestamp() if isinstance(value, datetime) else unix_time(value)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)

"""Calibrations: read now and then, and from IBM's `{configuration, properties}`, whatever of it the vendor gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.parts import list_of, median_of, object_of

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
AGAIN_S = 600.0


class Recent:
    """A device's calibration, read again every ten minutes; what was known stays while the vendor does not give it.

    Of what `read` raises, the codes in `told` are raised on: they are no matter of a moment.
    """

    def __init__(
        self, read: Callable[[], Calibration | None], clock: Callable[[], float], told: Collection[str] = ()
    ) -> None:
        self._read, self._clock, self._told = read, clock, told
        self._known: Calibration | None = None
        self._read_at: float | None = None

    def get(self) -> Calibration | None:
        if self._read_at is None or self._clock() - self._read_at >= AGAIN_S:
            try:
                found = self._read()
            except QtandemError as error:
                if error.code in self._told:
                    raise
                return self._known
            self._known, self._read_at = found or self._known, self._clock()
        return self._known


def digest(description: Mapping[str, Any]) -> Calibration | None:
    """Medians over the parts that work (error below 1); None without a number of qubits.

    Fields that are absent, null or of another type count as not said.
    """
    conf, props = object_of(description.get("configuration")), object_of(description.get("properties"))
    qubits = conf.get("n_qubits")
    if isinstance(qubits, bool) or not isinstance(qubits, int) or qubits < 1:
        return None
    basis = [gate for gate in list_of(conf.get("basis_gates")) if isinstance(gate, str)]
    pairs = [
        list_of(gate.get("parameters"))
        for gate in map(object_of, list_of(props.get("gates")))
        if len(list_of(gate.get("qubits"))) == 2 and gate.get("gate") in basis
    ]
    rows = [list_of(row) for row in list_of(props.get("qubits"))]
    shots = conf.get("max_shots")
    return Calibration(
        qubits=qubits,
        taken_at=unix_time(props.get("last_update_date")),
        basis_gates=tuple(basis),
        coupling=tuple(_pairs(conf.get("coupling_map"))),
        two_qubit_error=median_of(_values(pairs, "gate_error")),
        gate_time_s=median_of(_values(pairs, "gate_length")),
        readout_error=median_of(_values(rows, "readout_error")),
        t1_s=median_of(_values(rows, "T1")),
        t2_s=median_of(_values(rows, "T2")),
        max_shots=shots if isinstance(shots, int) and not isinstance(shots, bool) and shots > 0 else None,
    )


def unix_time(value: object) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, UTC where it names no zone; None if it is none."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _values(rows: Iterable[list[Any]], name: str) -> Iterable[float]:
    for row in rows:
        for entry in map(object_of, row):
            value = entry.get("value")
            if entry.get("name") != name or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not (name.endswith("_error") and value == 1):
                yield float(value) * _SECONDS.get(str(entry.get("unit") or ""), 1.0)


def _pairs(value: object) -> Iterable[tuple[int, int]]:
    for pair in map(list_of, list_of(value)):
        if len(pair) == 2 and all(isinstance(each, int) for each in pair):
            yield (pair[0], pair[1])

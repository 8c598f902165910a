"""A device's calibration from IBM's `{configuration, properties}`, whatever of it the vendor gives."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from qtandem.core.facts import Calibration

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def digest(description: Mapping[str, Any]) -> Calibration | None:
    """Medians over the parts that work (error below 1); None without a number of qubits.

    Fields that are absent, null or of another type count as not said.
    """
    conf, props = _object(description.get("configuration")), _object(description.get("properties"))
    qubits = conf.get("n_qubits")
    if isinstance(qubits, bool) or not isinstance(qubits, int) or qubits < 1:
        return None
    basis = [gate for gate in _list(conf.get("basis_gates")) if isinstance(gate, str)]
    pairs = [
        _list(gate.get("parameters"))
        for gate in map(_object, _list(props.get("gates")))
        if len(_list(gate.get("qubits"))) == 2 and gate.get("gate") in basis
    ]
    rows = [_list(row) for row in _list(props.get("qubits"))]
    shots = conf.get("max_shots")
    return Calibration(
        qubits=qubits,
        taken_at=unix_time(props.get("last_update_date")),
        basis_gates=tuple(basis),
        coupling=tuple(_pairs(conf.get("coupling_map"))),
        two_qubit_error=_median(_values(pairs, "gate_error")),
        gate_time_s=_median(_values(pairs, "gate_length")),
        readout_error=_median(_values(rows, "readout_error")),
        t1_s=_median(_values(rows, "T1")),
        t2_s=_median(_values(rows, "T2")),
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
        for entry in map(_object, row):
            value = entry.get("value")
            if entry.get("name") != name or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not (name.endswith("_error") and value == 1):
                yield float(value) * _SECONDS.get(str(entry.get("unit") or ""), 1.0)


def _pairs(value: object) -> Iterable[tuple[int, int]]:
    for pair in map(_list, _list(value)):
        if len(pair) == 2 and all(isinstance(each, int) for each in pair):
            yield (pair[0], pair[1])


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

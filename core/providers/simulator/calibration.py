"""What the simulated device says of itself: an ideal one, or the snapshot of a real one.

The snapshots are the JSON files of qiskit-ibm-runtime's fake backends. They are read as files: importing that
package would cost a poll half a second and 100 MB.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration

IDEAL = "ideal"
_PREFIX = "fake_"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def ideal(qubits: int, max_shots: int) -> Calibration:
    return Calibration(qubits=qubits, max_shots=max_shots, two_qubit_error=0.0, readout_error=0.0)


def ideal_description(qubits: int, max_shots: int) -> dict[str, object]:
    configuration = {
        "backend_name": IDEAL,
        "n_qubits": qubits,
        "simulator": True,
        "max_shots": max_shots,
        "basis_gates": [],
        "coupling_map": None,
    }
    return {"configuration": configuration, "properties": None}


def snapshot(backend: str, cache: Path) -> Calibration:
    """The calibration of a fake backend; digested once, then kept in the folder `cache`.

    Raises `bad-config` for a name that no fake backend has, `no-provider` when the extra is not installed.
    """
    file = cache / f"calibration-{Path(backend).name}.json"
    try:
        return Calibration.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        found = digest(description(backend))
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(found.model_dump_json())
    fresh.replace(file)
    return found


def description(backend: str) -> dict[str, Any]:
    """`{configuration, properties}` of a fake backend, the form of QRMI's `target()` for IBM machines."""
    if backend not in backends():
        known = ", ".join([IDEAL, *backends()])
        raise QtandemError(
            "bad-config", f"No simulated backend is called {backend!r}", remedy=f"Choose one of: {known}"
        )
    name = backend.removeprefix(_PREFIX)
    folder = _backends() / name
    return {
        "configuration": json.loads((folder / f"conf_{name}.json").read_text()),
        "properties": json.loads((folder / f"props_{name}.json").read_text()),
    }


def backends() -> list[str]:
    """The fake backends that this installation has."""
    return sorted(f"{_PREFIX}{file.parent.name}" for file in _backends().glob("*/conf_*.json"))


def digest(description: Mapping[str, Any]) -> Calibration:
    """Medians over the parts that work (error below 1), from a device's `{configuration, properties}`."""
    conf, props = description["configuration"], description["properties"]
    pairs = [gate for gate in props["gates"] if len(gate["qubits"]) == 2 and gate["gate"] in conf["basis_gates"]]
    return Calibration(
        qubits=conf["n_qubits"],
        taken_at=datetime.fromisoformat(props["last_update_date"].replace("Z", "+00:00")).timestamp(),
        basis_gates=tuple(conf["basis_gates"]),
        coupling=tuple((a, b) for a, b in conf.get("coupling_map") or ()),
        two_qubit_error=_median(_values([gate["parameters"] for gate in pairs], "gate_error")),
        gate_time_s=_median(_values([gate["parameters"] for gate in pairs], "gate_length")),
        readout_error=_median(_values(props["qubits"], "readout_error")),
        t1_s=_median(_values(props["qubits"], "T1")),
        t2_s=_median(_values(props["qubits"], "T2")),
        max_shots=conf.get("max_shots"),
    )


def _values(rows: Sequence[Sequence[Mapping[str, Any]]], name: str) -> Iterable[float]:
    for row in rows:
        for entry in row:
            broken = name.endswith("_error") and entry["value"] == 1
            if entry["name"] == name and entry["value"] is not None and not broken:
                yield float(entry["value"]) * _SECONDS.get(entry.get("unit", ""), 1.0)


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _backends() -> Path:
    # For a top-level name this finds the package without importing it.
    spec = importlib.util.find_spec("qiskit_ibm_runtime")
    if spec is None or spec.origin is None:
        raise QtandemError(
            "no-provider",
            "The backends of real devices come from qiskit-ibm-runtime, which is not installed",
            remedy="pip install 'qtandem[simulator]', or set backend = ideal.",
        )
    return Path(spec.origin).parent / "fake_provider" / "backends"

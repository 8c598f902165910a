"""What the simulated device says of itself: an ideal one, or the snapshot of a real one.

The snapshots are the JSON files of qiskit-ibm-runtime's fake backends. They are read as files: importing that
package would cost a poll half a second and 100 MB.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.calibrations import digest

IDEAL = "ideal"
# What Aer runs as it is.
IDEAL_GATES = (
    *("id", "x", "y", "z", "h", "s", "sdg", "t", "tdg", "sx", "sxdg", "p", "rx", "ry", "rz", "u"),
    *("cx", "cy", "cz", "ecr", "swap", "cp", "rxx", "ryy", "rzz", "ccx"),
)
_PREFIX = "fake_"


def ideal(qubits: int, max_shots: int) -> Calibration:
    return Calibration(qubits=qubits, max_shots=max_shots, two_qubit_error=0.0, readout_error=0.0)


def ideal_description(qubits: int, max_shots: int) -> dict[str, object]:
    configuration = {
        "backend_name": IDEAL,
        "n_qubits": qubits,
        "simulator": True,
        "max_shots": max_shots,
        "basis_gates": list(IDEAL_GATES),
        "supported_instructions": ["measure", "reset", "delay"],
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
        assert found is not None
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

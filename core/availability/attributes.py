"""What a QPU is, as attributes that a manager can show and its users can select by. No I/O, no clock of its own.

A manager that has such things (LSF's numeric resources, Grid Engine's complexes, PBS's custom resources) names those it
shows in its capabilities; they come to it with each sensor's value. What the vendor does not say is not there: it is
never zero, and a selection by it must not match.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from qtandem.core.facts import Calibration, Fact
from qtandem.core.resources import Resource

Value = int | float | str
Attributes = tuple[tuple[str, Value], ...]
# Names, and whether they are numbers to compare or texts to match. Times are in seconds; errors are medians.
KINDS: Mapping[str, Literal["number", "text"]] = {
    "qubits": "number",
    "max_shots": "number",
    "queue": "number",
    "wait_s": "number",
    "error": "number",
    "readout_error": "number",
    "gate_time_s": "number",
    "t1_s": "number",
    "t2_s": "number",
    "simulator": "number",
    "vendor": "text",
    "type": "text",
    "basis": "text",
}
# What is true of now only: gone with a fact that is stale. The rest describes a device, and stays.
_PASSING = ("queue", "wait_s")


def attributes(resource: Resource, fact: Fact | None, now: float, shown: Collection[str]) -> Attributes:
    """Those of the names that are known of a resource, in the order of their names."""
    known = _known(resource, fact)
    stale = fact is None or fact.stale(now)
    return tuple(
        (name, value)
        for name in sorted(shown)
        if (value := known.get(name)) not in (None, "") and not (stale and name in _PASSING)
    )


def _known(resource: Resource, fact: Fact | None) -> dict[str, Value | None]:
    device = fact.calibration if fact is not None else None
    said = device or Calibration(qubits=0)
    return {
        "qubits": resource.qubits or said.qubits or None,
        "max_shots": resource.max_shots or said.max_shots,
        "queue": fact.queue if fact is not None else None,
        "wait_s": fact.wait_s if fact is not None else None,
        "error": said.two_qubit_error,
        "readout_error": said.readout_error,
        "gate_time_s": said.gate_time_s,
        "t1_s": said.t1_s,
        "t2_s": said.t2_s,
        "simulator": int(resource.simulator),
        "vendor": resource.vendor,
        "type": resource.type,
        "basis": "+".join(said.basis_gates),
    }

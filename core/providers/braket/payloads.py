"""What users send to Braket: OpenQASM 3, or an action of Braket's own in its JSON form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qtandem.core.errors import QtandemError

QASM, ACTION = "qasm3", "braket-action"
KINDS = frozenset({QASM, ACTION})
DEFAULT_SHOTS = 1000
_HEADER = re.compile(r"(?:\s+|//[^\n]*(?:\n|$)|/\*.*?\*/)*OPENQASM\s+3(?:\.\d+)?\s*;", re.DOTALL)
_SCHEMA = re.compile(r"braket\.ir\.[a-z_.]+")
_REMEDY = "Send OpenQASM 3 with Braket's gates (kind qasm3), or the JSON of an action (kind braket-action)."


@dataclass(frozen=True, slots=True)
class Work:
    """One task. `action` is Braket's JSON; `inputs` are values of an OpenQASM program's inputs."""

    kind: str
    shots: int
    program: str = ""
    action: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    verbatim: bool = False


def read(payload: Mapping[str, object], limits: tuple[int, int] | None) -> Work:
    """The task in a payload; raises `bad-payload`. `limits` are the least and the most shots."""
    kind = payload.get("kind")
    if kind not in KINDS:
        raise QtandemError("bad-payload", f"Braket takes {' and '.join(sorted(KINDS))}, not {kind!r}", remedy=_REMEDY)
    shots = _shots(payload, limits)
    parameters = _mapping(payload, "device_parameters")
    if kind == ACTION:
        return Work(ACTION, shots, action=_action(payload.get("action")), parameters=parameters)
    program = payload.get("program")
    if not isinstance(program, str) or not _HEADER.match(program):
        raise QtandemError("bad-payload", "The program does not begin with OPENQASM 3", remedy=_REMEDY)
    return Work(
        QASM,
        shots,
        program=program,
        inputs=_mapping(payload, "inputs"),
        parameters=parameters,
        verbatim=payload.get("disable_qubit_rewiring") is True,
    )


def _shots(payload: Mapping[str, object], limits: tuple[int, int] | None) -> int:
    shots = payload.get("shots", DEFAULT_SHOTS if limits is None else max(limits[0], min(DEFAULT_SHOTS, limits[1])))
    if isinstance(shots, bool) or not isinstance(shots, int) or shots < 0:
        raise QtandemError("bad-payload", f"shots = {shots!r} is not a whole number")
    if limits is not None and not limits[0] <= shots <= limits[1]:
        raise QtandemError("bad-payload", f"The device takes {limits[0]} to {limits[1]} shots, not {shots}")
    return shots


def _action(action: object) -> Mapping[str, Any]:
    if isinstance(action, str):
        try:
            action = json.loads(action)
        except ValueError as error:
            raise QtandemError("bad-payload", "The action is not JSON", cause=str(error)) from error
    header = action.get("braketSchemaHeader") if isinstance(action, dict) else None
    name = header.get("name") if isinstance(header, dict) else None
    if not isinstance(action, dict) or not isinstance(name, str) or not _SCHEMA.fullmatch(name):
        raise QtandemError("bad-payload", "The action has no braketSchemaHeader of Braket's", remedy=_REMEDY)
    return action


def _mapping(payload: Mapping[str, object], key: str) -> Mapping[str, Any]:
    value = payload.get(key) or {}
    if not isinstance(value, Mapping):
        raise QtandemError("bad-payload", f"{key} is not an object")
    return value

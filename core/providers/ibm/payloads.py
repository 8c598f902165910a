"""What users send to IBM: a primitive's input as it is, or OpenQASM 3 made into the input of a sampler.

Circuits must be in the device's own gates already; IBM compiles nothing. What cannot be judged without a parser
is judged by the vendor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qtandem.core.errors import QtandemError

KINDS = frozenset({"qasm3", "qiskit-primitive"})
DEFAULT_SHOTS = 1024
_COMMENTS = re.compile(r"(\s+|//[^\n]*(\n|$)|/\*.*?\*/)*", re.DOTALL)
_VERSION = re.compile(r"OPENQASM\s+3(\.\d+)?\s*;")
_REMEDY = "Send OpenQASM 3 in the device's own gates, or the input of a Qiskit primitive."


@dataclass(frozen=True, slots=True)
class Program:
    """One run of a program of IBM's."""

    id: str
    params: Mapping[str, Any]


def read(payload: Mapping[str, object], programs: Mapping[str, str], max_shots: int | None) -> Program:
    """The program in a payload; raises `bad-payload`.

    `programs` are those that the interface has, by the names that users write.
    """
    kind = payload.get("kind")
    if kind == "qasm3":
        return Program("sampler", _sampler(payload, max_shots))
    if kind == "qiskit-primitive":
        return _primitive(payload, programs)
    raise QtandemError("bad-payload", f"IBM takes {' and '.join(sorted(KINDS))}, not {kind!r}", remedy=_REMEDY)


def timeout_s(payload: Mapping[str, object]) -> int | None:
    """The limit that the user set for this task, in seconds."""
    value = payload.get("timeout_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise QtandemError("bad-payload", f"timeout_s = {value!r} is not a whole number from 1 up")
    return value


def _sampler(payload: Mapping[str, object], max_shots: int | None) -> dict[str, Any]:
    program, shots = payload.get("program"), payload.get("shots", DEFAULT_SHOTS)
    if not isinstance(program, str) or not _VERSION.match(program, _COMMENTS.match(program).end()):  # type: ignore[union-attr]
        raise QtandemError("bad-payload", "The program does not begin with OPENQASM 3", remedy=_REMEDY)
    if isinstance(shots, bool) or not isinstance(shots, int) or shots < 1:
        raise QtandemError("bad-payload", f"shots = {shots!r} is not a whole number from 1 up")
    if max_shots is not None and shots > max_shots:
        raise QtandemError("bad-payload", f"{shots} shots are more than the {max_shots} that the device runs at once")
    return {"pubs": [[program, None, shots]], "version": 2, "support_qiskit": False}


def _primitive(payload: Mapping[str, object], programs: Mapping[str, str]) -> Program:
    name, content = payload.get("program_id"), payload.get("input")
    if not isinstance(name, str) or name not in programs:
        raise QtandemError("bad-payload", f"IBM runs the programs {', '.join(sorted(programs))} here, not {name!r}")
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError as error:
            raise QtandemError("bad-payload", "The input is not JSON", cause=str(error)) from error
    if not isinstance(content, dict):
        raise QtandemError("bad-payload", "The input is not an object")
    pubs = content.get("pubs")
    if name in ("sampler", "estimator") and (not isinstance(pubs, list) or not pubs):
        raise QtandemError("bad-payload", "The input has no pubs")
    return Program(programs[name], content)

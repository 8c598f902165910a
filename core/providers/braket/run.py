"""A child of a worker: runs one task on a simulator of the SDK. Its standard input names the task's folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from qtandem.core.providers.frames import die_with_parent
from qtandem.core.providers.records import put

PAYLOAD, RESULT, ERROR, STOPPED = "payload.json", "result.json", "error.txt", "stopped"
_WORDS_KEPT = 400


def main() -> None:
    die_with_parent()
    place = Path(sys.stdin.read())
    task = json.loads((place / PAYLOAD).read_text())
    try:
        text = simulate(task["backend"], task["payload"])
    except Exception as error:
        # Whatever the simulator makes of a user's circuit is the user's to read.
        put(place / ERROR, f"{type(error).__name__}: {error}"[:_WORDS_KEPT])
    else:
        put(place / RESULT, text)


def simulate(backend: str, payload: dict[str, object]) -> str:
    """The result as the SDK's own JSON."""
    from importlib.metadata import entry_points

    from braket.ir.openqasm import Program
    from braket.schema_common import BraketSchemaBase

    from qtandem.core.providers.braket.payloads import ACTION, read

    work = read(payload, None)
    if work.kind == ACTION:
        program = BraketSchemaBase.parse_raw_schema(json.dumps(work.action))
    else:
        program = Program(source=work.program, inputs=dict(work.inputs) or None)
    # The SDK's LocalSimulator gives this answer in classes of its own only.
    simulator = next(iter(entry_points(group="braket.simulators", name=backend))).load()()
    result = simulator.run(program, shots=work.shots)
    # An exact result has no shots, and its own class refuses an empty list of them.
    none = {"measurements"} if getattr(result, "measurements", None) == [] else None
    return str(result.json(encoder=plain, exclude=none))


def plain(value: object) -> object:
    """Numbers of an exact result as Braket's service writes them: complex ones are pairs."""
    if isinstance(value, complex):
        return [value.real, value.imag]
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return to_list()

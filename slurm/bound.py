"""pyslurm, in a process of its own for each call: it blocks, and a fault in it ends the process that has loaded it.

usage: bound.py fits VERSION | nodes | jobs | release JOB

Prints one JSON value.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = ("Nodes", "Jobs", "Job", "RPCError")


def lack(module: Any, slurm: str) -> str:
    """Why a pyslurm is of no use for a Slurm of this version ("24.11"); empty if it fits."""
    if not all(hasattr(module, name) for name in _PLAIN):
        return "pyslurm is of an old form, without Nodes and Jobs"
    theirs = str(getattr(module, "__version__", "?"))
    if re.match(r"\d+\.\d+", theirs) is None or theirs.split(".")[:2] != slurm.split(".")[:2]:
        return f"pyslurm {theirs} is not for Slurm {slurm}"
    return ""


def answer(module: Any, call: str, arguments: Sequence[str]) -> Any:
    """What one call gives, in the form of `control.py`; raises the module's RPCError, ValueError for a wrong call."""
    if call == "nodes" and not arguments:
        return [_node(str(name), node) for name, node in module.Nodes.load().items()]
    if call == "jobs" and not arguments:
        return [_job(int(number), job) for number, job in module.Jobs.load().items()]
    if call == "release" and len(arguments) == 1 and re.fullmatch(r"\d{1,10}", arguments[0]):
        module.Job(int(arguments[0])).release()
        return True
    raise ValueError(f"{call[:20]!r} is not called like this")


def _node(name: str, node: Any) -> Mapping[str, Any]:
    return {
        "name": name,
        "state": words(node.state),
        "features": words(node.available_features),
        "partitions": words(node.partitions),
    }


def _job(number: int, job: Any) -> Mapping[str, Any]:
    licences = job.licenses
    text = ",".join(licences) if isinstance(licences, list | tuple) else str(licences or "")
    return {
        "job_id": number,
        "job_state": [str(job.state)],
        "user_id": int(job.user_id),
        "licenses": text,
        "priority": job.priority or 0,
    }


def words(value: object) -> list[str]:
    """pyslurm's lists, and texts that are lists."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[,+]", str(value or ""))
    return [str(part).strip() for part in parts if str(part).strip()]


def main(arguments: Sequence[str]) -> int:
    call, *rest = arguments or [""]
    try:
        module = importlib.import_module("pyslurm")
        if call == "fits" and len(rest) == 1:
            print(json.dumps(lack(module, rest[0])))
            return 0
        found = answer(module, call, rest)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        # pyslurm's RPCError is a RuntimeError, and so is what a build for another release raises at its import.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

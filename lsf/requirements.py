"""QPUs in LSF's resource requirements: one counted index a QPU, `qpu_NATIVE`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from qtandem.core.managers import Grant

PREFIX = "qpu_"
# Indices that are about no QPU in particular; a QPU cannot have one of these as its native name.
WORDS = ("ready", "qubits", "queue", "wait")
_ASKED = re.compile(r"(?<![A-Za-z0-9_])qpu_([A-Za-z0-9_]+)\s*(>=|==|>|=)\s*(\d{1,6})(?:\.0+)?(?![0-9.])")

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def name(native: str) -> str:
    """The index of a QPU, by its native name."""
    return PREFIX + native


def request(pairs: Iterable[tuple[str, int]]) -> str:
    """`qpu_fez=2,qpu_garnet=1`: what esub.qpu writes into a requirement's select and rusage."""
    return ",".join(f"{name(native)}={slots}" for native, slots in pairs)


def read_request(text: str, names: Mapping[str, str]) -> tuple[Grant, ...]:
    """The grants in a requirement; `names` maps natives to resources. What is not ours is left out.

    The same QPU in select and rusage is one request.
    """
    slots: dict[str, int] = {}
    for native, operator, number in _ASKED.findall(_QUOTED.sub("", text)):
        count = int(number) + (operator == ">")
        if native in names and count:
            slots[names[native]] = max(count, slots.get(names[native], 0))
    return tuple(Grant(resource, count) for resource, count in slots.items())


def taken_twice(natives: Iterable[str]) -> set[str]:
    """Native names that are words of ours."""
    return set(natives) & set(WORDS)

"""QPUs in LSF's resource requirements: one counted index a QPU, `qpu_NATIVE`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from qtandem.core.managers import Grant

PREFIX = "qpu_"
# Indices that are about no QPU in particular; a QPU cannot have one of these as its native name.
WORDS = ("ready", "qubits", "queue", "wait")
_ASKED = re.compile(r"(?<![A-Za-z0-9_])qpu_([A-Za-z0-9_]+)\s*(>=|==|>|=)\s*(\d{1,6})(?:\.0+)?(?![0-9.])")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_USAGE = re.compile(r"(?<![A-Za-z0-9_])rusage\s*\[([^\[\]]*)\]")
# Between `{…}` of which LSF takes one.
_OR = re.compile(r"\}\s*(?:@\s*\d+\s*)?\|\|[^{}]*\{")
_ENDS = re.compile(r"\bduration\s*=\s*0*[1-9]")


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


def reserved(text: str, names: Mapping[str, str]) -> tuple[Grant, ...]:
    """The grants that LSF itself reserves for a job with this requirement, as long as the job is there.

    That is what `rusage` says, whichever of its alternatives is taken. A condition (`select`) and a usage that ends
    (`duration`) keep nobody else from the QPU, so that they give no right to it.
    """
    ways = [_used(_USAGE.findall(way), names) for way in _OR.split(_QUOTED.sub("", text))]
    return tuple(Grant(resource, slots) for resource, slots in _in_all(ways).items())


def _used(usages: Iterable[str], names: Mapping[str, str]) -> dict[str, int]:
    """Slots by resource, of all of these usages together."""
    slots: dict[str, int] = {}
    for usage in usages:
        for resource, count in _in_all([_lasting(way, names) for way in usage.split("||")]).items():
            slots[resource] = max(count, slots.get(resource, 0))
    return slots


def _lasting(usage: str, names: Mapping[str, str]) -> dict[str, int]:
    """A duration is about all that stands with it between two commas."""
    kept = ",".join(part for part in usage.split(",") if not _ENDS.search(part))
    return {grant.resource: grant.slots for grant in read_request(kept, names)}


def _in_all(ways: Sequence[Mapping[str, int]]) -> dict[str, int]:
    common = [resource for resource in ways[0] if all(resource in way for way in ways)]
    return {resource: min(way[resource] for way in ways) for resource in common}


def taken_twice(natives: Iterable[str]) -> set[str]:
    """Native names that are words of ours."""
    return set(natives) & set(WORDS)

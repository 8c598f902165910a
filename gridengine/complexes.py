"""Grid Engine's complexes: one JOB consumable a QPU on the global host, and the words around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from qtandem.core.managers import Grant

PREFIX = "qpu_"
QUEUE, WAIT = "qpu_queue_", "qpu_wait_"
# What users write; the server JSV takes these out of a job again, so a cell without it lets no such job run.
REQUEST, SLOTS = "qpu", "qpu_slots"
_UNSET = {"", "none"}


def name(native: str) -> str:
    """The complex of a QPU, by its native name."""
    return PREFIX + native


def request(pairs: Iterable[tuple[str, int]]) -> str:
    """`qpu_fez=2,qpu_garnet=1`, as `-l` takes it."""
    return ",".join(f"{name(native)}={slots}" for native, slots in pairs)


def read_request(text: str, names: Mapping[str, str]) -> tuple[Grant, ...]:
    """The grants in a resource list; `names` maps natives to resources. What is not ours is left out."""
    grants = []
    for key, value in pairs(text).items():
        resource = names.get(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else None
        slots = whole(value)
        if resource is not None and slots:
            grants.append(Grant(resource, slots))
    return tuple(grants)


def pairs(text: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping; empty for NONE."""
    if text.strip().lower() in _UNSET:
        return {}
    parts = (part.strip().partition("=") for part in text.split(","))
    return {key: value for key, _, value in parts if key}


def whole(value: str) -> int | None:
    """A whole number as Grid Engine prints one (`2`, `2.000000`); None for anything else."""
    match = re.fullmatch(r"(-?\d+)(?:\.0+)?", value.strip())
    return int(match[1]) if match else None


def attributes(text: str) -> dict[str, str]:
    """An object as `qconf -sX` prints it, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (line.split(None, 1) for line in joined.splitlines() if line.strip() and not line.startswith("#"))
    return {words[0]: words[1].strip() if len(words) > 1 else "" for words in lines}


def edited(text: str, changes: Mapping[str, str]) -> str:
    """The object with some attributes changed, for `qconf -MX`."""
    return "".join(f"{key} {value}\n" for key, value in {**attributes(text), **changes}.items())


def defined(text: str) -> set[str]:
    """The names in `qconf -sc`."""
    return {line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")}


def families(names: Iterable[str]) -> list[str]:
    """Of the names those that belong to a QPU, known by its three complexes: what the daemon defined by itself."""
    there = set(names)
    natives = sorted(one.removeprefix(WAIT) for one in there if one.startswith(WAIT))
    wanted = [(name(native), QUEUE + native, WAIT + native) for native in natives]
    return [one for family in wanted if there.issuperset(family) for one in family]


def definitions(natives: Iterable[str]) -> dict[str, str]:
    """The lines that `qconf -Mc` needs for users' own words and for each QPU, by name."""
    lines = {REQUEST: "STRING == YES NO NONE 0", SLOTS: "INT <= YES NO 0 0"}
    for native in natives:
        lines[name(native)] = "INT <= YES JOB 0 0"
        lines[QUEUE + native] = "INT >= YES NO 0 0"
        lines[WAIT + native] = "TIME >= YES NO 0 0"
    return {key: f"{key} {key} {rest}" for key, rest in lines.items()}


def taken_twice(natives: Sequence[str]) -> set[str]:
    """Complex names that two meanings would share: a QPU called `queue_x` beside one called `x`."""
    own = {name(native) for native in natives}
    return own & {word + native for native in natives for word in (QUEUE, WAIT)} | own & {SLOTS}

"""Slurm's licences, as pure functions: what to type, how to read the answer, and what a value must be.

slurmctld computes `LastDeficit = max(0, LastConsumed - Used)` at the moment LastConsumed is written and keeps
it until the next write; `Free = Total - Used - LastDeficit`. A sensor is therefore right when its *deficit* is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qtandem.core.managers import Grant, SensorValue

SHARED = "slurmdb"
_ENTRY = re.compile(r"(?P<name>[^@:=(]+)@(?P<server>[^@:=(]+)(?:[:=](?P<count>\d+))?(?:\(.*\))?")
_FIELD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class Licence:
    """One licence as slurmctld counts it."""

    total: int
    used: int
    reserved: int
    consumed: int
    deficit: int

    @property
    def open(self) -> int:
        """What slurmctld would give to its next job."""
        return max(0, self.total - self.used - self.reserved - self.deficit)


def request(grants: Iterable[tuple[str, int]], server: str) -> str:
    """The text of `--licenses` for (native name, slots) pairs."""
    return ",".join(f"{native}@{server}:{slots}" for native, slots in grants)


def read_request(text: str, server: str, names: Mapping[str, str]) -> tuple[Grant, ...]:
    """The grants in a licence text; `names` maps native to configured names. Others' licences are left out.

    Slurm's own default server holds whatever licences a site has: there, unknown names are others' too.
    """
    slots: dict[str, int] = {}
    for entry in re.split(r"[,;|]", text):
        match = _ENTRY.fullmatch(entry.strip())
        if match and match["server"] == server:
            if server == SHARED and match["name"] not in {*names, *names.values()}:
                continue
            name = names.get(match["name"], match["name"])
            slots[name] = slots.get(name, 0) + int(match["count"] or 1)
    return tuple(Grant(name, count) for name, count in slots.items())


def others(text: str, server: str, names: Mapping[str, str]) -> list[str]:
    """The entries of a licence text that are no grants of ours."""
    entries = [entry.strip() for entry in text.split(",")]
    return [entry for entry in entries if entry and not read_request(entry, server, names)]


def read_show(text: str, server: str) -> dict[str, Licence]:
    """Licences of `server` by native name, from `scontrol -o show lic`."""
    found: dict[str, Licence] = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        name, at, of = fields.get("LicenseName", "").rpartition("@")
        if at and of == server:
            numbers = [
                int(fields.get(key) or 0) for key in ("Total", "Used", "Reserved", "LastConsumed", "LastDeficit")
            ]
            found[name] = Licence(*numbers)
    return found


def consumed(value: SensorValue, used: int) -> int:
    """What LastConsumed must be for the value, while this cluster's jobs use `used`.

    A closed sensor gets twice its total, so that no job that ends meanwhile opens it.
    """
    if value.closed >= value.total:
        return 2 * value.total
    return value.closed + used if value.closed else 0


def holds(value: SensorValue, licence: Licence) -> bool:
    """Whether slurmctld shows the value, and will go on showing it whatever its jobs do."""
    if licence.total != value.total:
        return False
    if value.closed >= value.total:
        return licence.deficit >= value.total and licence.consumed >= 2 * value.total
    if not value.closed:
        return licence.deficit == 0 and licence.consumed == 0
    return licence.deficit == value.closed


def show(value: SensorValue, licence: Licence | None) -> str:
    """Why a sensor is not as wanted, in words for an admin."""
    if licence is None:
        return "slurmctld has no such licence"
    return (
        f"wanted {value.closed} of {value.total} closed; slurmctld has Total={licence.total} Used={licence.used} "
        f"LastConsumed={licence.consumed} LastDeficit={licence.deficit}"
    )


def set_consumed(names: Sequence[str], value: int, server: str) -> list[str]:
    """Arguments of sacctmgr. Both name and server are given: either alone matches more than ours."""
    return _modify(names, server, f"lastconsumed={value}")


def resize(names: Sequence[str], count: int, value: int, server: str) -> list[str]:
    """Arguments of sacctmgr that set seats and value together."""
    return _modify(names, server, f"count={count}", f"lastconsumed={value}")


def add(names: Sequence[str], count: int, value: int, server: str, cluster: str) -> list[str]:
    """Arguments of sacctmgr that make resources of which this cluster may use all, with their first value."""
    return [
        "-i", "add", "resource", f"name={','.join(names)}", f"server={server}", "servertype=qtandem",
        "type=license", f"count={count}", f"lastconsumed={value}", f"cluster={cluster}", "allowed=100",
    ]  # fmt: skip


def remove(names: Sequence[str], server: str) -> list[str]:
    """Arguments of sacctmgr."""
    return ["-iQ", "delete", "resource", "where", f"name={','.join(names)}", f"server={server}"]


def _modify(names: Sequence[str], server: str, *settings: str) -> list[str]:
    return ["-i", "modify", "resource", "where", f"name={','.join(names)}", f"server={server}", "set", *settings]

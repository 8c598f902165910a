"""What PBS tells of jobs and of itself, as pure functions; one form for `qstat -F json` and for the library.

An attribute is `NAME` or `NAME.RESOURCE`, every value a text. `qstat` turns texts that look like numbers into
numbers, so values of users' own wording are not to be read here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState
from qtandem.core.runs import JobId

PREFIX = "qpu_"
# Of a user that this host does not know: no lease can be of use to that job here.
NO_UID = 2**32 - 2
COMMENT_CHARS = 1000
_JOB = re.compile(r"(?P<job>[0-9A-Za-z]+)(?:\[(?P<index>\d*)\])?(?:\.|$)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PAIR = re.compile(r"qpu_(?P<native>[A-Za-z0-9_]+)=(?P<slots>\d+)")
_STATES = {
    "Q": JobState.PENDING, "H": JobState.PENDING, "W": JobState.PENDING, "T": JobState.PENDING,
    "M": JobState.PENDING, "R": JobState.RUNNING, "B": JobState.RUNNING, "E": JobState.RUNNING,
    "S": JobState.SUSPENDED, "U": JobState.SUSPENDED, "F": JobState.ENDED, "X": JobState.ENDED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One object of PBS: a job, a vnode, the server."""

    name: str
    values: Mapping[str, str]

    def get(self, attribute: str) -> str:
        return self.values.get(attribute, "")


def resource(native: str) -> str:
    return f"{PREFIX}{native}"


def request(pairs: Iterable[tuple[str, int]]) -> str:
    """The text of `-l` for (native name, slots) pairs."""
    return ",".join(f"{resource(native)}={slots}" for native, slots in pairs)


def read_request(text: str, names: Mapping[str, str]) -> tuple[Grant, ...]:
    """The grants in a resource list; `names` maps native to configured names. Others' resources are left out."""
    slots: dict[str, int] = {}
    for part in text.split(","):
        match = _PAIR.fullmatch(part.strip())
        if match and int(match["slots"]):
            name = names.get(match["native"], match["native"])
            slots[name] = slots.get(name, 0) + int(match["slots"])
    return tuple(Grant(name, count) for name, count in slots.items())


def in_order(grants: Sequence[Grant], request: str) -> tuple[Grant, ...]:
    """The grants in the order in which the request that is kept with the job names them; PBS keeps its own."""
    words = _WORD.findall(request)
    place = {word: number for number, word in reversed(list(enumerate(words)))}
    return tuple(sorted(grants, key=lambda grant: place.get(grant.resource, len(words))))


def objects(text: str, kind: str) -> list[Record]:
    """The objects of a kind (`Jobs`, `Server`) in the answer of `qstat -f -F json`; raises `manager-unreachable`."""
    try:
        found = json.loads(text).get(kind, {})
        return [Record(name, _flat(values)) for name, values in found.items() if isinstance(values, dict)]
    except (ValueError, AttributeError) as error:
        raise QtandemError("manager-unreachable", "qstat's answer cannot be read", cause=str(error)) from error


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out |= {f"{name}.{key}": str(each) for key, each in value.items()}
        else:
            out[name] = str(value)
    return out


def sensors(server: Record, natives: Iterable[str]) -> dict[str, int]:
    """What the server would give to its next job; it counts what its own jobs use."""
    out: dict[str, int] = {}
    for native in natives:
        available = _whole(server.get(f"resources_available.{resource(native)}"))
        if available is not None:
            out[native] = max(0, available - (_whole(server.get(f"resources_assigned.{resource(native)}")) or 0))
    return out


def available(server: Record) -> dict[str, int]:
    """The numbers that were set for counted QPUs, by native name."""
    start = f"resources_available.{PREFIX}"
    found = {name.removeprefix(start): _whole(value) for name, value in server.values.items() if name.startswith(start)}
    return {native: value for native, value in found.items() if value is not None}


def job_id(name: str, cluster: str) -> JobId | None:
    """The canonical id of `12.server`, `12[3].server` or `12[].server`; None for what is no job."""
    match = _JOB.match(name)
    if match is None:
        return None
    return JobId("pbs", cluster, match["job"], int(match["index"]) if match["index"] else None)


def target(job: JobId, *, array: bool = False) -> str:
    """The job as PBS's commands take it; with `array` as the array that it is."""
    if array:
        return f"{job.job}[]"
    return job.job if job.index is None else f"{job.job}[{job.index}]"


def owner(record: Record) -> str:
    return record.get("euser") or record.get("Job_Owner").partition("@")[0]


def job(record: Record, cluster: str, names: Mapping[str, str], uids: Mapping[str, int]) -> Job | None:
    """One record as the daemon sees jobs. The attempt is PBS's run_version, which counts from the first run on."""
    id = job_id(record.name, cluster)
    if id is None:
        return None
    user = owner(record)
    state = _STATES.get(record.get("job_state")[:1], JobState.PENDING)
    native = ",".join(
        f"{name.removeprefix('Resource_List.')}={value}"
        for name, value in record.values.items()
        if name.startswith("Resource_List.")
    )
    said = record.get("comment")
    return Job(
        id=id,
        state=state,
        uid=uids.get(user, NO_UID),
        user=user,
        attempt=_whole(record.get("run_version")) or 0,
        account=record.get("Account_Name") or None,
        partition=record.get("queue") or None,
        nodes=hosts(record.get("exec_host")),
        time_limit_s=seconds(record.get("Resource_List.walltime")),
        can_requeue=record.get("Rerunable").lower() not in ("false", "n", "0") and not _yes(record.get("interactive")),
        reason=said if state is JobState.PENDING else "",
        comment=said,
        grants=in_order(read_request(native, names), record.get("Resource_List.qpu")),
        eligible_at=moment(record.get("Execution_Time")),
        whole="[]" in record.name,
    )


def hosts(exec_host: str) -> tuple[str, ...]:
    """`c1/0*2+c2/1` as host names."""
    return tuple(dict.fromkeys(part.partition("/")[0] for part in exec_host.split("+") if part))


def seconds(walltime: str) -> int | None:
    """`HH:MM:SS` or seconds; None for no limit."""
    parts = walltime.split(":")
    if not walltime or not all(part.isdigit() for part in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return total


def moment(text: str) -> float | None:
    """A time as the library gives it (seconds) or as qstat prints it."""
    if text.isdigit():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


def comment(text: str) -> str:
    """Words of ours as a comment of a job: one line, nothing that a terminal would obey, of bounded length."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:COMMENT_CHARS]


def _whole(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:
        return None


def _yes(text: str) -> bool:
    return text.lower() not in ("", "false", "0", "n")

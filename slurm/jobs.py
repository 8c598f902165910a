"""Slurm's jobs, as pure functions over the JSON of `squeue --json` and `scontrol show job --json`.

Written for 24.11 and later; numbers come as `{set, infinite, number}` or plain, states as a list or a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import unquote

from ClusterShell.NodeSet import NodeSet, NodeSetParseError
from ClusterShell.RangeSet import RangeSet, RangeSetParseError

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Job, JobState
from qtandem.core.runs import JobId
from qtandem.slurm.licences import read_request

Record = Mapping[str, Any]

_ENDED = {
    "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
    "OUT_OF_MEMORY", "REVOKED",
}  # fmt: skip
_TO_PENDING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_OURS = "qtandem: "
_CHOICES = re.compile(r"qtandem:choices=(?P<request>\S{1,4000});pinned=(?P<pinned>[^\s;]+)")
# Slurm's credentials live 120 s, and a requeued job waits until those of its last run have died.
REQUEUE_PAUSE_S = 130
# Reasons of a job that may start as soon as a licence is there. The job behind one that waits for a licence shows
# Priority, a heterogeneous one Resources, and one that was just looked at None.
WAITING = ("Licenses", "Resources", "Priority", "None")
# Elements of one waiting array that are looked at by themselves; the others follow as these start.
ELEMENTS = 32


def records(text: str, kind: str = "jobs") -> list[Record]:
    """The records of one kind in a JSON answer; raises `manager-unreachable` if it is not one."""
    try:
        found = json.loads(text)[kind]
    except (ValueError, KeyError, TypeError) as error:
        raise QtandemError("manager-unreachable", f"Slurm's answer cannot be read: {error}") from error
    return [record for record in found if isinstance(record, dict)]


def number(value: object) -> int | None:
    """A number of Slurm's JSON; None where it is not set or infinite."""
    if isinstance(value, Mapping):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def state(record: Record) -> JobState:
    """Our word for the job's state. A requeued job is pending, whatever flag it still carries."""
    words = record.get("job_state") or []
    flags = {words} if isinstance(words, str) else set(words)
    if flags & _TO_PENDING:
        return JobState.PENDING
    if flags & _ENDED:
        return JobState.ENDED
    return JobState.SUSPENDED if flags & {"SUSPENDED", "STOPPED"} else JobState.RUNNING


def job_id(record: Record, cluster: str) -> JobId:
    """The canonical id: an element of an array goes by its array's id and its index."""
    index, array = number(record.get("array_task_id")), number(record.get("array_job_id"))
    if index is not None and array:
        return JobId("slurm", cluster, str(array), index)
    return JobId("slurm", cluster, str(record["job_id"]))


def job(record: Record, cluster: str, server: str, names: Mapping[str, str]) -> Job:
    """One record as the daemon sees jobs; `names` maps native to configured names."""
    limit, now = number(record.get("time_limit")), state(record)
    request, pinned = choices(str(record.get("admin_comment") or ""))
    places = record.get("nodes") or (record.get("required_nodes") if now is JobState.PENDING else "")
    return Job(
        id=job_id(record, cluster),
        state=now,
        uid=int(record.get("user_id") or 0),
        user=str(record.get("user_name") or ""),
        attempt=number(record.get("restart_cnt")) or 0,
        account=record.get("account") or None,
        partition=record.get("partition") or None,
        nodes=nodes(str(places or "")),
        time_limit_s=limit * 60 if limit is not None else None,
        can_requeue=bool(record.get("requeue", True)) and bool(record.get("batch_flag", True)),
        reason=str(record.get("state_reason") or ""),
        comment=str(record.get("comment") or ""),
        grants=read_request(str(record.get("licenses") or ""), server, names),
        eligible_at=number(record.get("eligible_time")) or None,
        request=request,
        pinned=read_request(pinned, server, names),
        pausing=pausing(record),
    )


def choices(text: str) -> tuple[str, str]:
    """The request and the licences that the submit hook kept in AdminComment; two empty texts if it kept none.

    Who reads it gives the verdict anew: the text is a wish of the job's owner, never a right.
    """
    match = _CHOICES.search(text)
    return (unquote(match["request"]), match["pinned"]) if match else ("", "")


def pausing(record: Record) -> bool:
    """Whether the job waits for its time only since slurmctld put it two minutes ahead at a requeue."""
    queued, begins = number(record.get("submit_time")), number(record.get("eligible_time"))
    again = (number(record.get("restart_cnt")) or 0) > 0
    return again and queued is not None and begins is not None and 0 < begins - queued <= REQUEUE_PAUSE_S


def nodes(text: str) -> tuple[str, ...]:
    """`n[1-2]` as host names; an unreadable set is given back as one name."""
    try:
        return tuple(NodeSet(text)) if text else ()
    except NodeSetParseError:
        return (text,)


def pending_indices(record: Record) -> RangeSet | None:
    """Indices of the array elements that one pending record stands for; None if it is no such record."""
    text = str(record.get("array_task_string") or "").partition("%")[0]
    if not text or number(record.get("array_job_id")) in (None, 0):
        return None
    try:
        return RangeSet(text.replace(":", "/"))
    except RangeSetParseError:
        return None


def elements(record: Record, one: Job) -> list[Job]:
    """The job of a pending record; an array that other resources could serve too as its first elements, so that
    each can be moved by itself: Slurm takes an element that is changed out of its array's record."""
    indices = pending_indices(record)
    if indices is None or not one.request:
        return [one]
    array = str(number(record.get("array_job_id")))
    return [replace(one, id=replace(one.id, job=array, index=int(index))) for index in islice(indices, ELEMENTS)]


def lookup(wanted: Iterable[JobId], found: Sequence[tuple[Record, Job]]) -> dict[JobId, Job | None]:
    """Each wanted id with its job. An id may be canonical, an element's own number, or one of a pending array."""
    by_id: dict[JobId, Job] = {}
    arrays: dict[str, list[tuple[RangeSet, Job]]] = {}
    for record, one in found:
        indices = pending_indices(record)
        if indices is not None:
            arrays.setdefault(str(number(record.get("array_job_id"))), []).append((indices, one))
            by_id.setdefault(one.id, one)
            continue
        by_id[one.id] = one
        by_id.setdefault(JobId("slurm", one.id.cluster, str(record["job_id"])), one)
    out: dict[JobId, Job | None] = {}
    for job in wanted:
        out[job] = by_id.get(job) or _in_arrays(job, arrays)
    return out


def _in_arrays(job: JobId, arrays: Mapping[str, Sequence[tuple[RangeSet, Job]]]) -> Job | None:
    if job.index is None:
        return None
    found = next((one for indices, one in arrays.get(job.job, ()) if job.index in indices), None)
    return replace(found, id=job) if found else None


def target(job: JobId) -> str:
    """The job as scontrol and squeue take it."""
    return job.job if job.index is None else f"{job.job}_{job.index}"


def exactly(record: Record) -> str:
    """What scontrol takes for this record alone: not a whole array with its running elements, nor a whole
    heterogeneous job."""
    indices = pending_indices(record)
    if indices is not None:
        return f"{number(record.get('array_job_id'))}_[{str(record['array_task_string']).partition('%')[0]}]"
    leader = number(record.get("het_job_id"))
    if leader:
        return f"{leader}+{number(record.get('het_job_offset')) or 0}"
    return target(job_id(record, ""))


def comment_with(own: str, ours: str) -> str:
    """The owner's comment with our words behind it, in place of earlier ones. AdminComment is beyond an operator."""
    words = " ".join(ours.split())
    words = words if words.startswith(_OURS) else f"{_OURS}{words}"
    before = re.split(rf"(?:^| \| ){_OURS}", own, maxsplit=1)[0]
    return f"{before} | {words}" if before else words


def waiting(text: str, server: str) -> dict[str, list[str]]:
    """Ids of jobs that wait for a licence of ours, by native name: first those that wait for nothing else, by priority.

    `text` is `squeue -h -t PD -o "%i|%r|%Q|%W"`: nothing in it is of a user's own wording.
    """
    ranked: dict[str, list[tuple[bool, int, int, str]]] = {}
    for place, line in enumerate(text.splitlines()):
        fields = line.strip().split("|", 3)
        if len(fields) != 4 or fields[1] not in WAITING:
            continue
        identity, reason, priority, licences = fields
        for grant in read_request(licences, server, {}):
            rank = -int(priority) if priority.lstrip("-").isdigit() else 0
            row = (reason != WAITING[0], rank, place, re.split(r"_\[|\+", identity)[0])
            ranked.setdefault(grant.resource, []).append(row)
    return {native: [row[-1] for row in sorted(rows)] for native, rows in ranked.items()}

"""Jobs and values as LSF's commands print them. Pure.

Spectrum LSF 10.1 gives JSON (`bjobs -json`, from Fix Pack 2 on); the others the old texts: `bjobs -w` for what no
user can have worded, `bjobs -l` for the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qtandem.core.errors import QtandemError
from qtandem.core.managers import JobState
from qtandem.lsf.requirements import PREFIX

FIELDS = (
    "jobid", "jobindex", "user", "stat", "queue", "exec_host", "proj_name", "runtimelimit", "resreq",
    "combined_resreq", "effective_resreq", "pend_reason",
)  # fmt: skip
_STATES = {
    "PEND": JobState.PENDING, "PSUSP": JobState.PENDING, "WAIT": JobState.PENDING, "PROV": JobState.PENDING,
    "RUN": JobState.RUNNING, "UNKWN": JobState.RUNNING, "USUSP": JobState.SUSPENDED, "SSUSP": JobState.SUSPENDED,
    "DONE": JobState.ENDED, "EXIT": JobState.ENDED, "ZOMBI": JobState.ENDED,
}  # fmt: skip
_UNSET = {"", "-"}


@dataclass(frozen=True, slots=True)
class Record:
    """One job, or one element of an array (`index` 0: it is none). `requirement` is the newest that LSF tells."""

    job: str
    index: int
    user: str
    stat: str
    queue: str
    hosts: tuple[str, ...] = ()
    project: str = ""
    requirement: str = ""
    time_limit_s: int | None = None
    reason: str = ""

    @property
    def state(self) -> JobState:
        return _STATES.get(self.stat, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class Details:
    """What only `bjobs -l` tells; its owner may have worded it."""

    project: str = ""
    requirement: str = ""
    reason: str = ""


def from_json(text: str) -> list[Record]:
    """The jobs in `bjobs -json -o FIELDS`; raises ValueError where it is no JSON of that form."""
    found = json.loads(text)
    rows = found.get("RECORDS") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise ValueError("no RECORDS")
    return [_from_fields({str(key).lower(): str(value) for key, value in row.items()}) for row in rows if "STAT" in row]


def _from_fields(row: Mapping[str, str]) -> Record:
    told = [row.get(key, "") for key in ("effective_resreq", "combined_resreq", "resreq")]
    return Record(
        job=row["jobid"].partition("[")[0],
        index=int(row.get("jobindex") or 0),
        user=row["user"],
        stat=row["stat"],
        queue=row["queue"],
        hosts=hosts(row.get("exec_host", "")),
        project=_set(row.get("proj_name", "")),
        requirement=next((text for text in told if text not in _UNSET), ""),
        time_limit_s=_minutes(row.get("runtimelimit", "")),
        reason=_set(row.get("pend_reason", "")),
    )


def from_texts(wide: str, long: str) -> list[Record]:
    """The jobs in `bjobs -w` (who and where), with what `bjobs -l` tells of each (resources, project, reason)."""
    details = dict(_details(long))
    out: dict[tuple[str, int], Record] = {}
    for record in _wide(wide):
        key = record.job, record.index
        if key in out:
            # A name with a line break in it can look like a job; who a job belongs to must not be doubtful.
            raise QtandemError("manager-unreachable", f"bjobs tells of job {record.job} twice")
        told = details.get(key, Details())
        out[key] = replace(record, project=told.project, requirement=told.requirement, reason=told.reason)
    return list(out.values())


_ROW = re.compile(r"(?P<job>\d+)\s+(?P<user>\S+)\s+(?P<stat>[A-Z]+)\s+(?P<queue>\S+)\s+(?P<origin>\S+)\s+(?P<rest>.*)")
_INDEX = re.compile(r"\[(\d+)\]")


def _wide(text: str) -> Iterator[Record]:
    head = ""
    for line in text.splitlines():
        if line.startswith("JOBID"):
            head = line
            continue
        match = _ROW.match(line)
        if match is None or match["stat"] not in _STATES:
            continue
        pending = _STATES[match["stat"]] is JobState.PENDING
        place, name = ("", match["rest"]) if pending else _first_word(match["rest"])
        index = _INDEX.search(name)
        yield Record(
            job=match["job"],
            index=int(index[1]) if index else 0,
            user=match["user"],
            stat=match["stat"],
            queue=match["queue"],
            hosts=hosts(place),
        )
    if not head and text.strip():
        raise QtandemError("manager-unreachable", "bjobs' answer cannot be read", cause=text[:200])


def _first_word(text: str) -> tuple[str, str]:
    word, _, rest = text.partition(" ")
    return word, rest


_JOB = re.compile(r"Job <(\d+)(?:\[(\d+)\])?>")


def _details(text: str) -> Iterator[tuple[tuple[str, int], Details]]:
    """By job and index. Lines are cut at 80 characters and go on indented."""
    joined = re.sub(r"\n {20,}", "", text)
    for block in re.split(r"\n(?=Job <\d)", "\n" + joined):
        match = _JOB.match(block.strip())
        if match is None:
            continue
        head, _, rest = block.strip().partition("\n")
        reason = re.search(r"PENDING REASONS:\n\s*(.*)", rest)
        details = Details(
            project=_angled(head, "Project"),
            requirement=_angled(rest, "Requested Resources"),
            reason=reason[1].strip().rstrip(";") if reason else "",
        )
        yield (match[1], int(match[2] or 0)), details


def _angled(text: str, label: str) -> str:
    match = re.search(rf"{label} <(.*?)>(?=[,;]|$)", text, re.MULTILINE)
    return match[1] if match else ""


def hosts(text: str) -> tuple[str, ...]:
    """`2*c1:c2` or `c1:c1:c2` as host names."""
    if text in _UNSET:
        return ()
    return tuple(dict.fromkeys(part.rpartition("*")[2] for part in text.split(":") if part))


def asking(records: Iterable[Record]) -> list[Record]:
    """Those that could have a QPU of ours."""
    return [record for record in records if PREFIX in record.requirement]


def shared_values(text: str, natives: Sequence[str]) -> dict[str, int]:
    """Values of the QPUs' indices in `lsload -s`; a value that is not there (`-`) is left out."""
    return {
        native: int(float(words[0]))
        for native, words in _rows(text, natives)
        if words and re.fullmatch(r"\d+(\.\d+)?", words[0])
    }


def free_values(text: str, natives: Sequence[str]) -> dict[str, int]:
    """What is left of the QPUs' indices in `bhosts -s`: the value less what jobs have reserved."""
    out = {}
    for native, words in _rows(text, natives):
        if len(words) > 1 and all(re.fullmatch(r"\d+(\.\d+)?", word) for word in words[:2]):
            out[native] = max(0, int(float(words[0]) - float(words[1])))
    return out


def _rows(text: str, natives: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    wanted = {PREFIX + native: native for native in natives}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in wanted:
            yield wanted[words[0]], words[1:]


def _set(text: str) -> str:
    return "" if text in _UNSET else text


def _minutes(text: str) -> int | None:
    match = re.match(r"(\d+(?:\.\d+)?)", text)
    return int(float(match[1]) * 60) if match else None

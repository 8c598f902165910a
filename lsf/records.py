"""Jobs and values as LSF's commands print them. Pure.

Spectrum LSF 10.1 gives JSON (`bjobs -json`, from Fix Pack 2 on); the others the old texts: `bjobs -w` for what no
user can have worded, `bjobs -l` for the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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


def from_json(text: str) -> list[Record]:
    """The jobs in `bjobs -json -o FIELDS`; raises ValueError where it is no JSON of that form.

    Nor is it where something stands there twice: what a user worded could then have ended its own text.
    """
    found = json.loads(text, object_pairs_hook=_object)
    rows = found.get("RECORDS") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise ValueError("no RECORDS")
    jobs = [_from_fields({str(key).lower(): str(value) for key, value in row.items()}) for row in rows if "STAT" in row]
    if len({(job.job, job.index) for job in jobs}) < len(jobs):
        raise ValueError("bjobs tells of a job twice")
    return jobs


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


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
    """The jobs in `bjobs -w` (who and where), with what `bjobs -l` tells of each (resources, project, reason).

    Raises ValueError where the two do not fit, since who a job belongs to must not be doubtful.
    """
    details = _details(long)
    out: dict[tuple[str, int], Record] = {}
    for record, number in _wide(wide):
        # A name may end as if it were an element's.
        key = record.job, number if (record.job, 0) not in details else 0
        if key in out or key not in details:
            raise ValueError(f"bjobs is not at one with itself about job {record.job}")
        told = details[key]
        out[key] = replace(
            record,
            index=key[1],
            project=told.project(record),
            requirement=told.after("Requested Resources"),
            time_limit_s=told.minutes(),
            reason=told.reason() if record.state is JobState.PENDING else "",
        )
    return list(out.values())


_ROW = re.compile(
    r"(?P<job>\d+)\s+(?P<user>\S+)\s+(?P<stat>[A-Z]+)\s+(?P<queue>\S+)\s+(?P<origin>\S+)\s+(?P<place>\S+)\s+"
    r"(?P<name>.*?)\s+[A-Z][a-z]{2} [ \d]\d \d\d:\d\d\s*"
)
_INDEX = re.compile(r"\[(\d+)\]\Z")


def _wide(text: str) -> Iterator[tuple[Record, int]]:
    """Each line, and the index that its name may mean. What comes before the name is nobody's own wording."""
    # Not splitlines(): a name may have a form feed.
    lines = text.rstrip("\n").split("\n") if text else []
    if lines and not lines[0].startswith("JOBID"):
        raise ValueError(f"bjobs -w begins with {lines[0][:80]!r}")
    for line in lines[1:]:
        match = _ROW.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:80]!r} is no line of bjobs -w")
        index = _INDEX.search(match["name"])
        record = Record(
            job=match["job"],
            index=0,
            user=match["user"],
            stat=match["stat"],
            queue=match["queue"],
            hosts=hosts(match["place"]),
        )
        yield record, int(index[1]) if index else 0


@dataclass(frozen=True, slots=True)
class Details:
    """What `bjobs -l` tells of one job. Its owner has worded much of it."""

    head: str
    rest: str

    def project(self, record: Record) -> str:
        """Between what is known of the job; empty where its name or command has the like, which makes it doubtful."""
        user, queue = re.escape(record.user), re.escape(record.queue)
        begins = list(re.finditer(_loose(rf"User <{user}>, Project <"), self.head))
        ends = list(re.finditer(_loose(rf">, Status <\w+>, Queue <{queue}>"), self.head))
        found = self.head[begins[0].end() : ends[0].start()] if len(begins) == len(ends) == 1 else ""
        return "" if ">" in found else found

    def after(self, label: str) -> str:
        """The last of what is between `LABEL <` and `>`, as far as a `,` or `;` or the line's end."""
        begins, found = re.compile(f"{_loose(label)} ?<"), ""
        for line in self.rest.split("\n"):
            at = 0
            while (begin := begins.search(line, at)) and (end := _ENDS.search(line, begin.end())):
                found, at = line[begin.end() : end.start()], end.end()
        return found

    def minutes(self) -> int | None:
        match = re.search(r"^ RUNLIMIT\s*\n\s*([\d.]+) min", self.rest, re.MULTILINE)
        return _minutes(match[1]) if match else None

    def reason(self) -> str:
        match = re.search(r"^ PENDING REASONS:\n\s*(.*)", self.rest, re.MULTILINE)
        return match[1].strip().rstrip(";") if match else ""


_ENDS = re.compile(r">(?=[,;]|\Z)")
_JOB = re.compile(r"Job (?:Id )?<(\d+)(?:\[(\d+)\])?>")


def _details(text: str) -> dict[tuple[str, int], Details]:
    """By job and index. Lines are cut at 80 characters and go on indented; a blank there may be lost."""
    found: dict[tuple[str, int], Details] = {}
    for block in re.split(r"\n-{70,}\n", re.sub(r"\n {21}", "", text)):
        match = _JOB.match(block.strip())
        if match is None:
            continue
        key = match[1], int(match[2] or 0)
        if key in found:
            raise ValueError(f"bjobs -l tells of job {key[0]} twice")
        head, _, rest = block.strip().partition("\n")
        found[key] = Details(head, rest)
    return found


def _loose(words: str) -> str:
    """A pattern for words whose blanks may be lost."""
    return words.replace(" ", " ?")


def hosts(text: str) -> tuple[str, ...]:
    """`2*c1:c2` or `c1:c1:c2` as host names."""
    if text in _UNSET:
        return ()
    return tuple(dict.fromkeys(part.rpartition("*")[2] for part in text.split(":") if part))


def asking(records: Iterable[Record]) -> list[Record]:
    """Those that could have a QPU of ours."""
    return [record for record in records if PREFIX in record.requirement]


def shared_values(text: str, natives: Sequence[str]) -> dict[str, int]:
    """The QPUs' indices in `lsload -s`: what the elim said; in `bhosts -s`: that, less what jobs have reserved.

    A value that is not there (`-`) is left out.
    """
    return {
        native: int(float(words[0]))
        for native, words in _rows(text, natives)
        if words and re.fullmatch(r"\d+(\.\d+)?", words[0])
    }


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

"""Jobs in the XML of `qstat -j` and `qstat`. Pure.

8.1.9 leaves a job's hosts and its suspension out of the first, and its uid, project and context out of the
second; both name the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from qtandem.core.errors import QtandemError
from qtandem.core.managers import JobState

# Bits of JB_type: qsh, qlogin, qrsh with and without a command; an array.
INTERACTIVE, ARRAY = 0x1E, 0x80
# An interval of tasks can be written in a few characters and mean millions.
MAX_TASKS = 1_000_000
# After a restart of qmaster 8.1.9 calls a task that it has read from its disk `<JATASK:       1.>`.
_TASK_TAG = re.compile(r"<(/?)JATASK:[^<>]*>")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class Record:
    """One job. `tasks` are those that were given to a host at least once: number to status."""

    job: str
    owner: str
    uid: int
    project: str
    kind: int
    requests: dict[str, str]
    context: dict[str, str]
    eligible_at: float
    first: int
    last: int
    step: int
    tasks: dict[int, int]
    messages: list[str] = field(default_factory=list)

    @property
    def array(self) -> bool:
        return bool(self.kind & ARRAY)

    @property
    def interactive(self) -> bool:
        return bool(self.kind & INTERACTIVE)

    def has(self, task: int) -> bool:
        return self.first <= task <= self.last and (task - self.first) % max(1, self.step) == 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `qstat -g t`: tasks in one state; `host` where they run."""

    job: str
    state: str
    host: str
    queue: str
    tasks: frozenset[int]


def records(xml: str) -> dict[str, Record]:
    """The jobs in the answer of `qstat -j IDS -xml`, by id. Jobs that do not exist are left out."""
    root = parsed(xml)
    found = {record.job: record for record in map(_record, root.iterfind("djob_info/element"))}
    for message in root.iterfind("messages/element/SME_message_list/element"):
        for number in message.iterfind("MES_job_number_list/ulong_sublist/ULNG_value"):
            record = found.get(number.text or "")
            if record is not None:
                record.messages.append(message.findtext("MES_message", ""))
    return found


def rows(xml: str) -> list[Row]:
    """The lines of `qstat -xml`, with or without `-r` or `-g t`."""
    return [_row(element) for element in parsed(xml).iter("job_list")]


def asking(xml: str, names: Iterable[str]) -> list[str]:
    """Ids of the jobs in `qstat -r -xml` that ask for one of the complexes."""
    wanted = set(names)
    ids = (
        element.findtext("JB_job_number", "")
        for element in parsed(xml).iter("job_list")
        if any(one.get("name") in wanted for one in element.iterfind("hard_request"))
    )
    return list(dict.fromkeys(ids))


def state_of(flags: Iterable[str]) -> JobState:
    """The state for the state columns of a job's lines; ENDED for none."""
    seen = list(flags)
    if not seen:
        return JobState.ENDED
    started = [one for one in seen if any(letter in one for letter in "rtsST") and "q" not in one]
    if not started:
        return JobState.PENDING
    return JobState.SUSPENDED if all(any(letter in one for letter in "sST") for one in started) else JobState.RUNNING


def tasks(text: str) -> frozenset[int]:
    """`1,3-9:2` as numbers; no task (0) for what is no array."""
    out: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            continue
        first = int(match[1])
        chosen = range(first, int(match[2] or first) + 1, max(1, int(match[3] or 1)))
        if len(chosen) + len(out) <= MAX_TASKS:
            out.update(chosen)
    return frozenset(out or {0})


def parsed(xml: str) -> ElementTree.Element:
    """The answer as XML, mended where qstat's is none: what users name their jobs may hold characters that XML does
    not allow, and must not hide everybody's jobs."""
    try:
        # The text comes from the site's own qstat.
        return ElementTree.fromstring(_TASK_TAG.sub(r"<\1ulong_sublist>", _NO_XML.sub("?", xml)))  # noqa: S314
    except ElementTree.ParseError as error:
        raise QtandemError("manager-unreachable", "qstat's answer is no XML", cause=str(error)) from error


def _record(element: ElementTree.Element) -> Record:
    def text(name: str) -> str:
        return element.findtext(name) or ""

    def number(name: str, default: int = 0) -> int:
        return int(text(name) or default)

    span = element.find("JB_ja_structure/task_id_range")
    edge = {key: int((span.findtext(key) if span is not None else "") or 1) for key in ("RN_min", "RN_max", "RN_step")}
    requests = {
        one.findtext("CE_name") or "": one.findtext("CE_stringval") or ""
        for one in element.iterfind("JB_hard_resource_list/qstat_l_requests")
    }
    context = {
        one.findtext("VA_variable") or "": one.findtext("VA_value") or ""
        for one in element.iterfind("JB_context/context_list")
    }
    enrolled = {
        int(one.findtext("JAT_task_number") or 1): int(one.findtext("JAT_status") or 0)
        for one in element.iterfind("JB_ja_tasks/ulong_sublist")
    }
    return Record(
        job=text("JB_job_number"),
        owner=text("JB_owner"),
        uid=number("JB_uid", -1),
        project=text("JB_project"),
        kind=number("JB_type"),
        requests=requests,
        context=context,
        eligible_at=float(text("JB_execution_time") or 0),
        first=edge["RN_min"],
        last=edge["RN_max"],
        step=edge["RN_step"],
        tasks=enrolled,
    )


def _row(element: ElementTree.Element) -> Row:
    queue, _, host = (element.findtext("queue_name") or "").partition("@")
    return Row(
        job=element.findtext("JB_job_number") or "",
        state=(element.findtext("state") or "").strip(),
        host=host,
        queue=queue,
        tasks=tasks(element.findtext("tasks") or ""),
    )


def h_rt(requests: Mapping[str, str]) -> int | None:
    """The wall-clock limit of a job's own request in seconds; None for none."""
    return seconds(requests.get("h_rt", ""))


def seconds(text: str) -> int | None:
    """`3600` or `1:0:0`; None for what is no time."""
    parts = text.split(":")
    if not text or not all(part.isdigit() or not part for part in parts) or len(parts) > 3:
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part or 0)
    return total

"""The lines that LSF's own files need, and whether a file has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtandem.core.resources import Resource
from qtandem.lsf import requirements, site

# The elim reports at least so often, and what is new at once.
INTERVAL_S = 15
PROFILE = "qpu"
# LSF takes no longer name for a resource.
MAX_NAME = 39
_WORDS = {
    "ready": ("N", "1 while a QPU is open"),
    "qubits": ("N", "qubits of the largest open QPU"),
    "queue": ("Y", "shortest queue of an open QPU"),
    "wait": ("Y", "shortest wait of an open QPU in seconds"),
}


@dataclass(frozen=True, slots=True)
class Index:
    """One external load index: `increasing` as LSF means it, `location` as ResourceMap writes it.

    `counted`: jobs reserve it.
    """

    name: str
    increasing: str
    about: str
    location: str = "[all]"
    counted: bool = False


def indices(resources: Iterable[Resource]) -> list[Index]:
    """Those of the QPUs, and those about no QPU in particular."""
    found = []
    for one in resources:
        location = f"[{' '.join(sorted(one.reach.nodes))}]" if one.reach.nodes else "[all]"
        found.append(Index(requirements.name(one.native), "N", f"slots of the QPU {one.name}", location, True))
    return found + [Index(requirements.PREFIX + word, *told) for word, told in _WORDS.items()]


HEADS = ("RESOURCENAME", "TYPE", "INTERVAL", "INCREASING", "RELEASE", "CONSUMABLE", "DESCRIPTION")
# Of an LSF without `esub.NAME`.
OLD_HEADS = tuple(head for head in HEADS if head != "CONSUMABLE")


def definitions(wanted: Iterable[Index], heads: Sequence[str]) -> str:
    """Lines for the section Resource of lsf.shared, in the order of its columns."""
    lines = []
    for index in wanted:
        cells = {
            "RESOURCENAME": index.name, "TYPE": "Numeric", "INTERVAL": str(INTERVAL_S), "INCREASING": index.increasing,
            # A job that is suspended keeps its lease.
            "RELEASE": "N", "CONSUMABLE": "Y" if index.counted else "N", "DESCRIPTION": f"({index.about})",
        }  # fmt: skip
        lines.append(" ".join(cells.get(head.upper(), "()") for head in heads))
    return "\n".join(lines)


def locations(wanted: Iterable[Index]) -> str:
    """Lines for the section ResourceMap of lsf.cluster."""
    return "\n".join(f"{index.name} {index.location}" for index in wanted)


def reservations(wanted: Iterable[str]) -> str:
    """Lines for the section ReservationUsage of lsb.resources: a QPU counts once a job, whatever its slots."""
    return "\n".join(f"{name} PER_JOB" for name in wanted)


def hooks(folder: Path) -> dict[str, str]:
    """What a queue, or an application profile, needs."""
    return {
        "PRE_EXEC": str(folder / "pre_exec"),
        "POST_EXEC": str(folder / "post_exec"),
        # Read by the job's shell: LSF puts the job's command behind it as it is, quotes and all.
        "JOB_STARTER": f". {folder / 'jobstarter.qpu'} ;",
    }


def profile(minutes: int) -> dict[str, str]:
    """An application profile for jobs with a QPU: what LSF can be told for them alone.

    `minutes`: longer than the longest start. The hooks themselves stay in the queues, where no user can leave them out.
    """
    return {
        "NAME": PROFILE,
        "DESCRIPTION": "jobs with a QPU (qtandem)",
        "JOB_INCLUDE_POSTPROC": "Y",
        "JOB_PREPROC_TIMEOUT": str(minutes),
        "JOB_POSTPROC_TIMEOUT": "2",
        # The daemon holds a job long before; LSF then does the same.
        "LOCAL_MAX_PREEXEC_RETRY": "1000",
        "LOCAL_MAX_PREEXEC_RETRY_ACTION": "SUSPEND",
    }


def section(kind: str, body: str) -> str:
    return f"Begin {kind}\n{body}\nEnd {kind}\n"


def settings(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in values.items())


def undefined(text: str, wanted: Iterable[Index]) -> tuple[list[Index], tuple[str, ...]]:
    """The indices that the sections Resource of lsf.shared lack, and the columns of the last of them."""
    found = site.of_kind(text, "Resource")
    have = {word for one in found for word in one.first_words}
    return [index for index in wanted if index.name not in have], found[-1].heads if found else ()


def unmapped(text: str, wanted: Iterable[Index]) -> list[Index]:
    have = {word for one in site.of_kind(text, "ResourceMap") for word in one.first_words}
    return [index for index in wanted if index.name not in have]


def unreserved(text: str, wanted: Iterable[str]) -> list[str]:
    rows = [row.split() for one in site.of_kind(text, "ReservationUsage") for row in one.rows]
    have = {row[0] for row in rows if len(row) > 1 and row[1].upper() == "PER_JOB"}
    return [name for name in wanted if name not in have]


def administrators(text: str) -> set[str]:
    """The cluster's administrators in lsf.cluster."""
    listed = [one.values.get("Administrators", "") for one in site.of_kind(text, "ClusterAdmins")]
    return {name for line in listed for name in line.replace(",", " ").split()}


def lacking(have: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Settings that a queue or profile has not, or has otherwise; behind our job starter the site's own may follow."""
    return {
        name: value
        for name, value in wanted.items()
        if have.get(name) != value and not (name == "JOB_STARTER" and have.get(name, "").startswith(value))
    }

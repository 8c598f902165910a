"""What Slurm's own files say, and what qtandem needs in them. Reads files, writes none."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """The (key in lower case, value) pairs of slurm.conf and its includes, in their order."""

    path: Path
    pairs: tuple[tuple[str, str], ...] = ()
    included: tuple[Path, ...] = ()

    def values(self, key: str) -> list[str]:
        return [value for name, value in self.pairs if name == key.lower()]

    def last(self, key: str) -> str:
        return next(reversed(self.values(key)), "")

    def control_hosts(self) -> list[str]:
        """Host names of the controllers, without their addresses."""
        return [re.split(r"[(,\s]", value)[0] for value in self.values("SlurmctldHost")]


def read(path: Path, skip: Path | None = None) -> SlurmConf | None:
    """Read slurm.conf with its includes but `skip`; None if it is not there (a configless host)."""
    pairs: list[tuple[str, str]] = []
    included: list[Path] = []
    if not _read_into(path, path.parent, skip, pairs, included, 0):
        return None
    return SlurmConf(path, tuple(pairs), tuple(included))


def _read_into(
    path: Path, base: Path, skip: Path | None, pairs: list[tuple[str, str]], included: list[Path], depth: int
) -> bool:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return False
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#", 1)[0].strip()
        include = re.fullmatch(r"include\s+(\S+)", words, re.IGNORECASE)
        if include and depth < MAX_DEPTH:
            for name in glob.glob(str(base / include[1])) or [str(base / include[1])]:
                included.append(Path(name))
                if Path(name) != skip:
                    _read_into(Path(name), base, skip, pairs, included, depth + 1)
            continue
        key, equals, value = words.partition("=")
        if equals:
            pairs.append((key.strip().lower(), value.strip()))
    return True


def own_lines(conf: SlurmConf | None, hooks: Path) -> list[str]:
    """The lines of our own file beside slurm.conf: all that the site's lines do not rule out."""
    ours = {
        "EpilogSlurmctld": f"{hooks}/epilog_slurmctld",
        "Prolog": f"{hooks}/prolog",
        "Epilog": f"{hooks}/epilog",
    }
    lines = [f"{key}={path}" for key, path in ours.items() if conf is None or path not in conf.values(key)]
    if conf is None or not conf.values("GresTypes"):
        lines.insert(0, "GresTypes=qpu")
    if conf is None or not conf.values("PrologSlurmctld"):
        lines.insert(0, f"PrologSlurmctld={hooks}/prolog_slurmctld")
    if conf is None or not conf.values("JobSubmitPlugins"):
        lines.insert(0, "JobSubmitPlugins=lua")
    if conf is None or not conf.values("PrologFlags"):
        lines.append("PrologFlags=Alloc")
    if conf is None or not conf.values("TaskProlog"):
        lines.append(f"TaskProlog={hooks}/task_prolog")
    return lines


def site_lines(conf: SlurmConf, hooks: Path) -> list[tuple[str, str]]:
    """(key, what to do) for each line of the site's own that must change by hand."""
    todo: list[tuple[str, str]] = []
    plugins = conf.last("JobSubmitPlugins")
    if plugins and "lua" not in _words(plugins):
        todo.append(("JobSubmitPlugins", f"change it to: JobSubmitPlugins={plugins},lua"))
    gres = conf.last("GresTypes")
    if gres and "qpu" not in _words(gres):
        todo.append(("GresTypes", f"change it to: GresTypes={gres},qpu   (for --gres=qpu:NAME; --qpu does without)"))
    flags = conf.last("PrologFlags")
    if flags and not {"alloc", "contain", "x11", "runinjob", "forcerequeueonfail"} & set(_words(flags)):
        todo.append(("PrologFlags", f"change it to: PrologFlags={flags},Alloc"))
    prologs = conf.values("PrologSlurmctld")
    if prologs and not waits_for(prologs, f"{hooks}/prolog_slurmctld"):
        todo.append(("PrologSlurmctld", chained(prologs, hooks)))
    task = conf.last("TaskProlog")
    if task and not calls(Path(task), f"{hooks}/task_prolog"):
        todo.append(("TaskProlog", f"In {task}, add the line: {hooks}/task_prolog || exit 1"))
    return todo


def waits_for(prologs: Sequence[str], hook: str) -> bool:
    """Whether a job starts only after the hook: slurmctld starts it when the first of several scripts has ended."""
    return len(prologs) == 1 and calls(Path(prologs[0]), hook)


def chained(prologs: Sequence[str], hooks: Path) -> str:
    """What to do so that a job waits for our PrologSlurmctld as well as for the site's."""
    more = f", which also calls {', '.join(prologs[1:])}," if len(prologs) > 1 else ""
    line = f"In {prologs[0]}{more} add the line: {hooks}/prolog_slurmctld || exit 1"
    return f"{line}\nSlurm starts a job as soon as the first of several PrologSlurmctld has ended, so keep one line."


def _words(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",")]


def calls(script: Path, hook: str) -> bool:
    """Whether a script of the site is the hook or names it."""
    if str(script) == hook:
        return True
    try:
        return hook in script.read_text(errors="replace")
    except OSError:
        return False


def includes_plugstack(text: str, fragment: Path) -> bool:
    """Whether a plugstack.conf includes the fragment."""
    for line in text.splitlines():
        match = re.fullmatch(r"include\s+(\S+)", line.split("#", 1)[0].strip(), re.IGNORECASE)
        if match and Path(fragment).match(match[1]):
            return True
    return False


def show_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a mapping; several lines of one key are joined by commas."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if not equals:
            continue
        name = re.sub(r"\[\d+\]$", "", key.strip())
        value = value.strip()
        found[name] = f"{found[name]},{value}" if found.get(name) else ("" if value == "(null)" else value)
    return found


def version(text: str) -> tuple[int, int, int] | None:
    """(24, 11, 5) from `slurm-wlm 24.11.5`."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def loses_licences_on_requeue(version: Sequence[int]) -> bool:
    """Slurm from 25.05 to before 25.11.7 forgets the licences of a requeued job."""
    return (25, 5, 0) <= tuple(version) < (25, 11, 7)


def job_submit_lines(hooks: Path) -> list[str]:
    """What a site adds to a job_submit.lua of its own."""
    return [
        f'local qtandem = dofile("{hooks}/qtandem.lua")   -- at the top',
        "-- in slurm_job_submit, before its last return:",
        "local qpu = qtandem.submit(job_desc, part_list, submit_uid)",
        "if qpu ~= slurm.SUCCESS then return qpu end",
        "-- in slurm_job_modify, before its last return:",
        "local qpu = qtandem.modify(job_desc, job_rec, part_list, modify_uid)",
        "if qpu ~= slurm.SUCCESS then return qpu end",
    ]

"""LSF's commands over a file, for tests without a cluster.

usage: commands.py STATE PROGRAM ARGUMENT...

`form` json: Spectrum LSF 10.1 as IBM documents it (`bjobs -json -o`, `bpost`), not run on one. `form` text: the older
forms, as recorded (see `recorded/`).
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOWN = "Failed in an LSF library call: Slave LIM configuration is not ready yet\n"
COLUMNS = {
    "jobid": "id", "jobindex": "index", "user": "user", "stat": "stat", "queue": "queue", "exec_host": "host",
    "proj_name": "project", "runtimelimit": "limit", "resreq": "requirement", "combined_resreq": "requirement",
    "effective_resreq": "requirement", "pend_reason": "reason",
}  # fmt: skip
UNFINISHED = ("PEND", "PSUSP", "RUN", "USUSP", "SSUSP")


class Failure(Exception):
    """Text on stderr and the exit status."""

    def __init__(self, text: str, status: int = 255, out: str = "") -> None:
        super().__init__(text)
        self.status, self.out = status, out


def fresh(form: str, sensors: str) -> dict[str, Any]:
    return {"form": form, "sensors": sensors, "jobs": [], "down": False, "stuck": {}, "log": [], "posted": {}}


def _shown(state: dict[str, Any]) -> dict[str, int]:
    """The indices as LIM has them: what elim.qpu read, but for those that are stuck."""
    try:
        lines = [line.split() for line in Path(state["sensors"]).read_text().splitlines()]
    except OSError:
        lines = []
    return {**{f"qpu_{native}": int(value) for native, value in lines}, **state["stuck"]}


def _target(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\d+)(?:\[(\d+)\])?", text)
    if match is None:
        raise Failure(f"{text}: Illegal job ID.\n")
    return match[1], int(match[2]) if match[2] else None


def _chosen(state: dict[str, Any], words: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Jobs by id (or all that are not over), and what is said of those that are not there."""
    if not words:
        return [job for job in state["jobs"] if job["stat"] in UNFINISHED], ""
    found, lost = [], ""
    for word in words:
        number, index = _target(word)
        mine = [job for job in state["jobs"] if job["id"] == number and index in (None, job["index"])]
        found += mine
        lost += "" if mine else f"Job <{word}> is not found\n"
    return found, lost


def bjobs(state: dict[str, Any], arguments: list[str]) -> str:
    rest, fields, options = [], "", set()
    words = iter(arguments)
    for word in words:
        if word == "-u":
            next(words)
        elif word == "-o":
            fields = next(words)
        elif word.startswith("-"):
            options.add(word)
        else:
            rest.append(word)
    if state["form"] != "json" and (fields or "-json" in options):
        raise Failure("bjobs: invalid option -- 'j'\nUsage: bjobs [-h] [-V] [-w |-l] [-W] [-a] ...\n")
    found, lost = _chosen(state, rest)
    if not found and not rest:
        raise Failure("No unfinished job found\n")
    out = _json(found, fields, rest) if "-json" in options else ""
    if "-noheader" in options:
        out = "".join(f"{job['id']}\n" for job in found)
    if "-w" in options:
        out = _wide(found)
    if "-l" in options:
        out = f"{'-' * 78}\n".join(_long(job) for job in found)
    if lost and "-json" not in options:
        raise Failure(lost, 255, out)
    return out


def _json(found: list[dict[str, Any]], fields: str, asked: list[str]) -> str:
    rows: list[dict[str, str]] = []
    for job in found:
        pending = job["stat"] in ("PEND", "PSUSP")
        row = {name.upper(): str(job[COLUMNS[name]]) for name in fields.split()}
        row["EFFECTIVE_RESREQ"] = "-" if pending else row["EFFECTIVE_RESREQ"]
        rows.append({key: value or "-" for key, value in row.items()})
    known = {job["id"] for job in found}
    rows += [{"ERROR": f"Job <{word}> is not found"} for word in asked if _target(word)[0] not in known]
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(found), "RECORDS": rows}, indent=2)


def _wide(found: list[dict[str, Any]]) -> str:
    lines = ["JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME"]
    for job in found:
        name = job["name"].replace("\n", "") + (f"[{job['index']}]" if job["index"] else "")
        host = job["host"] or "   -    "
        lines.append(
            f"{job['id']:<7} {job['user']:<7} {job['stat']:<5} {job['queue']:<10} ctl         {host:<11} {name:<10} "
            "Nov 30 04:47"
        )
    return "\n".join(lines) + "\n"


def _long(job: dict[str, Any]) -> str:
    number = job["id"] + (f"[{job['index']}]" if job["index"] else "")
    name = job["name"].replace("\n", "")
    head = (
        f"Job Id <{number}>, Job Name <{name}>, User <{job['user']}>, Project <{job['project']}>, "
        f"Status <{job['stat']}>, Queue <{job['queue']}>, Command <sleep 1>"
    )
    wants = f", Requested Resources <{job['requirement']}>" if job["requirement"] else ""
    told = f"Mon Nov 30 04:47:47: Submitted from host <ctl>, CWD <$HOME>{wants};"
    limit = f"\n RUNLIMIT                \n {job['limit']} min of c2          \n" if job["limit"] else ""
    reason = f" PENDING REASONS:\n {job['reason']};\n" if job["reason"] else ""
    load = "           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem\n"
    return f"\n{_cut(head)}\n{_cut(told)}\n{limit}{reason}\n SCHEDULING PARAMETERS:\n{load}"


def _cut(text: str) -> str:
    """At 80 characters, and 59 in the lines that go on; a blank at the cut is lost."""
    lines, width = [], 79
    while text:
        lines.append(text[:width])
        text, width = text[width:].removeprefix(" "), 58
    return ("\n" + " " * 21).join(lines)


def lsload(state: dict[str, Any], _arguments: list[str]) -> str:
    lines = ["RESOURCE                                VALUE   LOCATION"]
    lines += [f"{name:<39} {value:>5}   c1 c2 ctl" for name, value in _shown(state).items()]
    return "\n".join(lines) + "\n"


def bhosts(state: dict[str, Any], _arguments: list[str]) -> str:
    lines = ["RESOURCE                 TOTAL    RESERVED  LOCATION"]
    for name, value in _shown(state).items():
        # What is left, as OpenLava 4.0 prints it.
        used = sum(
            int(match[1])
            for job in state["jobs"]
            if job["stat"] in ("RUN", "USUSP", "SSUSP")
            and (match := re.search(rf"{name}=(\d+)", job["requirement"].partition("rusage")[2]))
        )
        lines.append(f"{name:<24} {max(0, value - used):>5.1f}    {used:>8.1f}  c1 c2 ctl")
    return "\n".join(lines) + "\n"


def _control(state: dict[str, Any], arguments: list[str], change: Callable[[dict[str, Any]], str]) -> str:
    found, _ = _chosen(state, [arguments[-1]])
    if not found:
        raise Failure(f"Job <{arguments[-1]}>: No matching job found\n")
    if state.get("under_way"):
        raise Failure(f"Job <{arguments[-1]}>: Operation is in progress\n")
    return "".join(f"Job <{arguments[-1]}> {change(job)}\n" for job in found)


def bstop(state: dict[str, Any], arguments: list[str]) -> str:
    def change(job: dict[str, Any]) -> str:
        job["stat"] = {"PEND": "PSUSP", "RUN": "USUSP"}.get(job["stat"], job["stat"])
        return "is being stopped"

    return _control(state, arguments, change)


def bresume(state: dict[str, Any], arguments: list[str]) -> str:
    def change(job: dict[str, Any]) -> str:
        job["stat"] = {"PSUSP": "PEND", "USUSP": "RUN"}.get(job["stat"], job["stat"])
        return "is being resumed"

    return _control(state, arguments, change)


def bpost(state: dict[str, Any], arguments: list[str]) -> str:
    state["posted"][arguments[-1]] = arguments[arguments.index("-d") + 1]
    return f"Message to job {arguments[-1]} posted all right.\n"


def lsid(state: dict[str, Any], _arguments: list[str]) -> str:
    version = (
        "IBM Spectrum LSF Standard 10.1.0.12, Jun 10 2021"
        if state["form"] == "json"
        else "OpenLava 4.0dev4, Nov 30 2026"
    )
    return f"{version}\n\nMy cluster name is lab\nMy master name is ctl\n"


def bparams(state: dict[str, Any], _arguments: list[str]) -> str:
    return str(state.get("params", "    MBD_SLEEP_TIME = 10 (seconds)\n    ENABLE_USER_RESUME = N\n"))


PROGRAMS: dict[str, Callable[[dict[str, Any], list[str]], str]] = {
    "bjobs": bjobs, "lsload": lsload, "bhosts": bhosts, "bstop": bstop, "bresume": bresume,
    "bpost": bpost, "lsid": lsid, "bparams": bparams,
}  # fmt: skip


def main(path: Path, program: str, arguments: list[str]) -> int:
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text())
        state["log"].append([program, *arguments])
        try:
            if state["down"]:
                raise Failure(DOWN)
            sys.stdout.write(PROGRAMS[program](state, arguments))
            status = 0
        except Failure as failure:
            sys.stdout.write(failure.out)
            sys.stderr.write(str(failure))
            status = failure.status
        replace(path, state)
        return status


def replace(path: Path, state: dict[str, Any]) -> None:
    """In one step, since tests read it while commands run."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

"""Grid Engine's commands over a file, for tests without a cell. Forms recorded from Son of Grid Engine 8.1.9.

usage: commands.py STATE PROGRAM ARGUMENT...
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

XSD = "http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat"
XML = "<?xml version='1.0'?>\n"
NO_QMASTER = (
    "error: commlib error: got select error (Connection refused)\nunable to send message to qmaster using port 6444"
    ' on host "ctl": got send error\n'
)


class Failure(Exception):
    """Text on stderr and the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def fresh() -> dict[str, Any]:
    conf = {"load_sensor": "none", "prolog": "none", "epilog": "none", "shepherd_cmd": "none", "jsv_url": "none"}
    conf |= {"execd_params": "none", "jsv_allowed_mod": "ac,h,i,e,o,j,M,N,p,w"}
    queue = {"starter_method": "NONE", "prolog": "NONE", "epilog": "NONE", "complex_values": "NONE"}
    return {
        "complexes": ["arch", "h_rt"], "global": {}, "jobs": {}, "next": 1, "down": False, "log": [], "conf": conf,
        "queues": {"main": queue, "classical": dict(queue)}, "managers": ["root"], "reported": 0,
    }  # fmt: skip


def _pairs(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def qconf(state: dict[str, Any], arguments: list[str]) -> str:
    if arguments == ["-se", "global"]:
        values = ",".join(f"{key}={value}" for key, value in state["global"].items()) or "NONE"
        return f"hostname              global\nload_scaling          NONE\ncomplex_values        {values}\n"
    if arguments == ["-sc"]:
        head = "#name shortcut type relop requestable consumable default urgency\n#---\n"
        lines = [f"{name} {name} INT <= YES NO 0 0" for name in state["complexes"]]
        return head + "\n".join(lines) + "\n# >#< starts a comment but comments are not saved across edits ---\n"
    if arguments[0] == "-Mc":
        text = Path(arguments[1]).read_text()
        wanted = [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]
        # Hosts report some for a while; what can go goes.
        held = [name for name in state["complexes"] if name not in wanted] if state["reported"] else []
        state["reported"] = max(0, state["reported"] - 1)
        state["complexes"] = wanted + held[:1]
        if held:
            raise Failure(f'denied: Complex attribute "{held[0]}" is still referenced in host "c1".\n')
        return ""
    if arguments[:3] == ["-mattr", "exechost", "complex_values"] and arguments[4] == "global":
        for name, value in _pairs(arguments[3]).items():
            if name not in state["complexes"]:
                raise Failure(f'denied: attribute "{name}" is not a complex attribute\n')
            state["global"][name] = value
        return 'root@ctl modified "global" in exechost list\n'
    said = _of_the_cell(state, arguments)
    if said is not None:
        return said
    if arguments == ["-tsm"]:
        return "root@ctl triggers scheduler monitoring\n"
    raise Failure(f"error: invalid option {arguments}\n")


def _of_the_cell(state: dict[str, Any], arguments: list[str]) -> str | None:
    """What an installer asks and changes."""
    match arguments:
        case ["-help"]:
            return "SGE 8.1.9\nusage: qconf [options]\n"
        case ["-sconf"]:
            return "#global:\n" + _object(state["conf"])
        case ["-Mconf", path]:
            lines = (line.partition(" ") for line in Path(path).read_text().splitlines())
            state["conf"] = {key: value.strip() for key, _, value in lines}
        case ["-sql"]:
            return "".join(f"{name}\n" for name in state["queues"])
        case ["-sq", name]:
            return f"qname {name}\n" + _object(state["queues"][name])
        case ["-sh"]:
            return "ctl\n"
        case ["-sel"]:
            return ""
        case ["-sm"]:
            return "".join(f"{name}\n" for name in state["managers"])
        case ["-am", name]:
            state["managers"].append(name)
        case ["-dm", name]:
            state["managers"].remove(name)
        case ["-mattr", "queue", key, value, *names]:
            for name in names:
                state["queues"][name][key] = value
        case ["-dattr", "queue", "complex_values", values, name]:
            if not all("=" in value for value in values.split(",")):
                raise Failure(f'error parsing value "{values}"\n')
            state["queues"][name]["complex_values"] = "NONE"
        case ["-dattr", "exechost", "complex_values", names, "global"]:
            for name in names.split(","):
                del state["global"][name]
        case _:
            return None
    return ""


def _object(values: dict[str, str]) -> str:
    """As qconf shows it: long values go on in the next line."""
    continued = " \\\n" + " " * 21 + "$"
    lines = (f"{key:<20} {value.replace(' $', continued)}\n" for key, value in values.items())
    return "".join(lines)


def qhost(state: dict[str, Any], arguments: list[str]) -> str:
    names = arguments[arguments.index("-F") + 1].split(",")
    used = dict.fromkeys(names, 0)
    for job in state["jobs"].values():
        for name, value in _pairs(job["requests"]).items():
            if name in used and job["state"] == "r":
                used[name] += int(value)
    values = "".join(
        f'<resourcevalue name="{name}" dominance="gc">{int(state["global"][name]) - used[name]:.6f}</resourcevalue>\n'
        for name in names
        if name in state["global"]
    )
    host = f" <host name='c1'>\n   <hostvalue name='num_proc'>2</hostvalue>\n{values} </host>\n"
    head = f'{XML}<qhost xmlns:xsd="{XSD}/qhost.xsd">\n'
    return f"{head} <host name='global'>\n{values} </host>\n{host}</qhost>\n"


def qstat(state: dict[str, Any], arguments: list[str]) -> str:
    if arguments[0] == "-j":
        found = [state["jobs"][number] for number in arguments[1].split(",") if number in state["jobs"]]
        if not found:
            head = f'{XML}<unknown_jobs  xmlns:xsd="{XSD}/detailed_job_info.xsd">\n'
            return f"{head}<ST_name>1</ST_name>\n</unknown_jobs>\n"
        return _detailed(found)
    chosen = arguments[arguments.index("-s") + 1]
    users = arguments[arguments.index("-u") + 1].split(",")
    lines = []
    for job in state["jobs"].values():
        pending = "q" in job["state"]
        if (users == ["*"] or job["owner"] in users) and (
            ("p" in chosen and pending) or ("r" in chosen and not pending)
        ):
            lines.append(_line(job))
    return (
        f'{XML}<job_info  xmlns:xsd="{XSD}/qstat.xsd">\n  <queue_info>\n{"".join(lines)}'
        "  </queue_info>\n  <job_info>\n  </job_info>\n</job_info>\n"
    )


def _detailed(jobs: list[dict[str, Any]]) -> str:
    elements = ""
    for job in jobs:
        requests = "".join(
            f"<qstat_l_requests><CE_name>{name}</CE_name><CE_stringval>{escape(value)}</CE_stringval></qstat_l_requests>"
            for name, value in _pairs(job["requests"]).items()
        )
        context = "".join(
            f"<context_list><VA_variable>{name}</VA_variable><VA_value>{escape(value)}</VA_value></context_list>"
            for name, value in job["context"].items()
        )
        status = 0 if "q" in job["state"] else 128
        tasks = "" if job["state"] in ("qw", "hqw") else (
            f"<JB_ja_tasks><ulong_sublist><JAT_status>{status}</JAT_status><JAT_task_number>1</JAT_task_number>"
            "</ulong_sublist></JB_ja_tasks>"
        )  # fmt: skip
        elements += (
            f"<element><JB_job_number>{job['id']}</JB_job_number><JB_owner>{job['owner']}</JB_owner>"
            f"<JB_uid>{job['uid']}</JB_uid><JB_project>physics</JB_project><JB_job_name>j.sh</JB_job_name>"
            f"<JB_hard_resource_list>{requests}</JB_hard_resource_list>{tasks}<JB_context>{context}</JB_context>"
            "<JB_execution_time>0</JB_execution_time><JB_restart>0</JB_restart><JB_ja_structure><task_id_range>"
            f"<RN_min>1</RN_min><RN_max>1</RN_max><RN_step>1</RN_step></task_id_range></JB_ja_structure>"
            f"<JB_type>{job['kind']}</JB_type></element>"
        )
    return (
        f'{XML}<detailed_job_info  xmlns:xsd="{XSD}/detailed_job_info.xsd"><djob_info>{elements}'
        "</djob_info><messages><element></element></messages></detailed_job_info>"
    )


def _line(job: dict[str, Any]) -> str:
    requests = "".join(
        f'<hard_request name="{name}" resource_contribution="0.000000">{escape(value)}</hard_request>'
        for name, value in _pairs(job["requests"]).items()
    )
    host = "main@c1" if "q" not in job["state"] else ""
    word = "running" if host else "pending"
    return (
        f'    <job_list state="{word}"><JB_job_number>{job["id"]}</JB_job_number><JAT_prio>0.75000</JAT_prio>'
        f"<JB_owner>{job['owner']}</JB_owner><state>{job['state']}</state><queue_name>{host}</queue_name>"
        f"<slots>1</slots>{requests}</job_list>\n"
    )


def qalter(state: dict[str, Any], arguments: list[str]) -> str:
    *options, target = arguments
    job = state["jobs"].get(target.partition(".")[0])
    if job is None:
        raise Failure(f'job "{target}" does not exist\n')
    said = ""
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "-ac":
            job["context"].update(_pairs(value))
            said += f"modified context of job {job['id']}\n"
        elif option == "-dc":
            job["context"].pop(value, None)
            said += f"modified context of job {job['id']}\n"
        elif option == "-h":
            held = set(job.setdefault("holds", []))
            held = held | {value} if value.islower() else held - {value.lower()}
            job["holds"] = sorted(held)
            job["state"] = ("h" if held else "") + job["state"].lstrip("h")
            said += f"modified hold of job {job['id']}\n"
        else:
            raise Failure(f"rejected due to jsv_allowed_mod configuration which does not allow: {option[1:]}\n")
    return said


def qmod(state: dict[str, Any], arguments: list[str]) -> str:
    job = state["jobs"].get(arguments[-1].partition(".")[0])
    if arguments[0] == "-rj" and job is not None:
        job["state"] = "hRq" if job["state"].startswith("h") else "Rq"
        return f"Pushed rescheduling of job {job['id']} on host c1\n"
    raise Failure(f"invalid job {arguments[-1]}\n")


PROGRAMS: dict[str, Callable[[dict[str, Any], list[str]], str]] = {
    "qconf": qconf, "qhost": qhost, "qstat": qstat, "qalter": qalter, "qmod": qmod,
}  # fmt: skip


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else reads or writes the state meanwhile."""
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def call(path: Path, program: str, arguments: list[str]) -> tuple[int, str, str]:
    """Status and what goes to stdout and stderr."""
    with locked(path):
        state = json.loads(path.read_text())
        state["log"].append([program, *arguments])
        try:
            if state["down"]:
                raise Failure(NO_QMASTER)
            answer = (0, PROGRAMS[program](state, arguments), "")
        except Failure as failure:
            answer = (failure.status, "", str(failure))
        path.write_text(json.dumps(state))
        return answer


def main(path: Path, program: str, arguments: list[str]) -> int:
    status, out, err = call(path, program, arguments)
    sys.stdout.write(out)
    sys.stderr.write(err)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

"""The programs of a fake Slurm: sacctmgr, scontrol, squeue, srun, over a state file, as 24.11 and 26.05 answer.

Run as `program.py STATE PROGRAM ARGUMENTS…` with the standard library alone, so that it starts fast. The licence
arithmetic is the one measured on the real thing: LastDeficit is computed when LastConsumed is written, and stays.
"""

import fcntl
import json
import os
import re
import sys
import time


class Failed(Exception):
    pass


def pairs(arguments):
    return dict(argument.split("=", 1) for argument in arguments if "=" in argument)


def split(text):
    return [part for part in (text or "").split(",") if part]


def wanted(licences):
    """Slots by licence of a job's licence text."""
    out = {}
    for entry in split(licences):
        name, _, count = entry.partition(":")
        out[name] = out.get(name, 0) + int(count or 1)
    return out


def used(state, licence):
    running = [job for job in state["jobs"] if job["job_state"][0] in ("RUNNING", "SUSPENDED")]
    return sum(wanted(job["licenses"]).get(licence, 0) for job in running)


def write_consumed(state, licence, value):
    resource = state["resources"][licence]
    resource["consumed"] = value
    resource["deficit"] = max(0, value - used(state, licence))


def free(state, licence):
    resource = state["resources"][licence]
    return max(0, resource["count"] - used(state, licence) - resource["deficit"])


def sacctmgr(state, arguments):
    if "slurmdbd" in state["down"]:
        raise Failed(
            "sacctmgr: error: slurm_persist_conn_open_without_init: failed to open persistent connection to"
            " host:ctl:6819: Connection refused"
        )
    words = [word for word in arguments if not word.startswith("-")]
    action, entity, options = words[0], words[1], pairs(words)
    if entity == "user":
        return sacctmgr_user(state, action, options)
    server = options.get("server", "")
    names = [f"{name}@{server}" for name in split(options.get("name"))] if server else []
    if action == "show":
        rows = []
        for licence, resource in sorted(state["resources"].items()):
            name, server = licence.split("@")
            row = {"name": name, "server": server, "cluster": state["cluster"], "count": resource["count"],
                   "lastconsumed": resource["consumed"], "allowed": 100}  # fmt: skip
            rows.append("|".join(str(row[key]) for key in split(options["format"])))
        return "".join(row + "\n" for row in rows)
    known = [name for name in names if name in state["resources"]]
    if action == "add":
        if state.get("operator"):
            raise Failed(" Problem adding system resource: Access/permission denied")
        new = [name for name in names if name not in state["resources"]]
        if not new:
            raise Failed(" Nothing new added.")
        for name in new:
            state["resources"][name] = {"count": int(options["count"]), "consumed": 0, "deficit": 0}
            write_consumed(state, name, int(options.get("lastconsumed", 0)))
        return " Adding Resource(s)\n"
    if not known:
        raise Failed(" Nothing modified")
    for name in known:
        if action == "delete":
            del state["resources"][name]
            continue
        if "count" in options:
            state["resources"][name]["count"] = int(options["count"])
        write_consumed(state, name, int(options.get("lastconsumed", state["resources"][name]["consumed"])))
    return " Modified server resource ...\n"


def sacctmgr_user(state, action, options):
    name = options.get("name", "")
    if action == "show":
        level = state["users"].get(name)
        return f"{name}|{level.capitalize()}\n" if level else ""
    if action == "add":
        state["users"][sys.argv[sys.argv.index("user") + 1]] = options["adminlevel"]
    else:
        state["users"].pop(name, None)
    return ""


def show_licences(state):
    lines = []
    for name, resource in sorted(state["resources"].items()):
        numbers = f"Total={resource['count']} Used={used(state, name)} Free={free(state, name)} Reserved=0 Remote=yes"
        written = f"LastConsumed={resource['consumed']} LastDeficit={resource['deficit']}"
        lines.append(f"LicenseName={name} {numbers} {written} LastUpdate=2026-01-01T00:00:00\n")
    return "".join(lines)


def number(value):
    return {"set": value is not None, "infinite": False, "number": value or 0}


def value_of(field):
    return field["number"] if field["set"] else None


def identity(job):
    index, array = value_of(job["array_task_id"]), value_of(job["array_job_id"])
    if job["array_task_string"]:
        return f"{array}_[{job['array_task_string']}]"
    return f"{array}_{index}" if index is not None else str(job["job_id"])


def expand(text):
    out = set()
    for part in split(text.partition("%")[0]):
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out


def matches(job, word):
    if word in (identity(job), str(job["job_id"]), re.sub(r"%\d+\]", "]", identity(job))):
        return True
    array, _, index = word.partition("_")
    if str(value_of(job["array_job_id"])) != array or array == "0":
        return False
    return not index or (index.isdigit() and int(index) in expand(job["array_task_string"]))


def find(state, word):
    found = [job for job in state["jobs"] if matches(job, word)]
    if not found:
        raise Failed("slurm_update error: Invalid job id specified")
    return found


def scontrol(state, arguments):
    if arguments == ["--version"]:
        return "slurm-wlm {}\n".format(state["version"])
    if "slurmctld" in state["down"]:
        raise Failed("Unable to contact slurm controller (connect failure)")
    words = [word for word in arguments if not word.startswith("-")]
    if words[:2] == ["show", "lic"]:
        return show_licences(state)
    if words[:2] == ["show", "config"]:
        return "".join(f"{key:<24}= {value}\n" for key, value in state["config"].items())
    if words[:2] == ["show", "nodes"]:
        return json.dumps({"nodes": state["nodes"]})
    if words[:2] == ["show", "jobs"]:
        return json.dumps({"jobs": state["jobs"]})
    if words[:2] == ["show", "job"]:
        return json.dumps({"jobs": [job for job in state["jobs"] if matches(job, words[2])]})
    if words[0] == "update":
        return update(state, pairs(words))
    for job in find(state, words[1]):
        control(job, words[0])
    return ""


def control(job, action):
    running = job["job_state"][0] == "RUNNING"
    if action in ("requeue", "requeuehold"):
        if not running:
            raise Failed(f"Job is pending execution for job {job['job_id']}")
        job["job_state"], job["state_reason"] = ["PENDING"], "BeginTime"
        job["restart_cnt"] += 1
    if action == "release":
        job["priority"], job["state_reason"] = number(1), "None"
    if action in ("uhold", "requeuehold"):
        job["priority"] = number(0)
        job["state_reason"] = "JobHeldUser" if action == "uhold" else "job_requeued_in_held_state"


def taken_out(state, job, word):
    """An element of a waiting array that is changed by itself becomes a record of its own."""
    index = word.partition("_")[2]
    if not index.isdigit() or not job["array_task_string"]:
        return job
    left = sorted(expand(job["array_task_string"]) - {int(index)})
    new = max(one["job_id"] for one in state["jobs"]) + 1
    state["jobs"].append({**job, "job_id": new, "array_task_id": number(int(index)), "array_task_string": ""})
    job["array_task_string"] = ",".join(map(str, left))
    return state["jobs"][-1]


def update(state, options):
    for job in [taken_out(state, job, options["jobid"]) for job in find(state, options["jobid"])]:
        for key, field in (("comment", "comment"), ("admincomment", "admin_comment"), ("licenses", "licenses")):
            if key in options:
                job[field] = options[key]
        if "starttime" in options:
            if job["job_state"][0] != "PENDING":
                raise Failed("Job is no longer pending execution for job {}".format(options["jobid"]))
            ahead = re.match(r"now\+?(\d*)", options["starttime"]).group(1)
            job["eligible_time"] = number(int(time.time()) + int(ahead or 0))
            job["state_reason"] = "BeginTime" if ahead else "None"
        state["kicks"].append(identity(job))
    return ""


def squeue(state, arguments):
    if "slurmctld" in state["down"]:
        raise Failed("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    options, words = {}, iter(arguments)
    for word in words:
        options[word] = next(words) if word in ("-t", "-j", "-L", "-o") else True
    jobs = state["jobs"]
    if options.get("-t") == "PD":
        jobs = [job for job in jobs if job["job_state"][0] == "PENDING"]
    if "-L" in options:
        names = set(split(options["-L"]))
        jobs = [job for job in jobs if names & set(wanted(job["licenses"]))]
    if "-j" in options:
        asked = options["-j"].split(",")
        jobs = [job for job in jobs if any(matches(job, word) for word in asked)]
        if not jobs and len(asked) == 1:
            raise Failed("slurm_load_jobs error: Invalid job id specified")
    if "--json" in options:
        return json.dumps({"jobs": jobs})
    rows = [(identity(job), job["state_reason"], str(value_of(job["priority"])), job["licenses"]) for job in jobs]
    return "".join("|".join(row) + "\n" for row in rows)


def srun(state, _arguments):
    return "      --qpu=REQUEST   QPUs of the job\n" if state["option"] else "usage\n"


PROGRAMS = {"sacctmgr": sacctmgr, "scontrol": scontrol, "squeue": squeue, "srun": srun}


def main(path, program, *arguments):
    with open(path, "r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        state = json.load(stream)
        state["calls"].append([program, *arguments])
        try:
            output, status = PROGRAMS[program](state, list(arguments)), 0
        except Failed as failure:
            output, status = "", 1
            sys.stderr.write(f"{failure}\n")
        stream.seek(0)
        stream.truncate()
        json.dump(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    sys.stdout.write(output)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

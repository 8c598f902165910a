"""The programs of a fake PBS: qstat, qselect, qmgr, qhold, qrls, qalter, qrerun over a state file, as OpenPBS answers.

Run as `program.py STATE PROGRAM ARGUMENTS…` with the standard library alone, so that it starts fast.
"""

import fcntl
import json
import re
import sys
import time


class Failed(Exception):
    def __init__(self, text, status=1, out=""):
        Exception.__init__(self, text)
        self.status, self.out = status, out


def used(state, resource):
    running = [job for job in state["jobs"].values() if job["job_state"] in ("R", "E")]
    # What PBS takes for used of a reservation, or of a job that it has lost.
    without_job = state.get("counted", {}).get(resource, 0)
    return without_job + sum(int(job["Resource_List"].get(resource, 0)) for job in running)


def server_view(state):
    assigned = {name: used(state, name) for name in state["resources"]}
    return {
        "server_state": "Active",
        "server_host": "pbs",
        "scheduling": state["scheduling"],
        "resources_available": dict(state["available"]),
        "resources_assigned": {name: count for name, count in assigned.items() if count},
        "managers": state["managers"],
        "pbs_version": "23.06.06",
    }


def full(state, id):
    return id if "." in id else f"{id}.{state['server']}"


def find(state, id):
    job = state["jobs"].get(full(state, id))
    if job is None:
        raise Failed(f"Unknown Job Id {full(state, id)}", 153)
    return job


def qstat(state, arguments, _stdin):
    head = {"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": state["server"]}
    if "-B" in arguments:
        return json.dumps(dict(head, Server={state["server"]: server_view(state)}))
    ids = [word for word in arguments if not word.startswith("-") and word != "json"]
    found, missing = {}, []
    for id in ids or list(state["jobs"]):
        name = full(state, id)
        if name in state["jobs"] and state["jobs"][name]["job_state"] != "F":
            found[name] = state["jobs"][name]
        else:
            missing.append(f"qstat: Unknown Job Id {name}")
    text = json.dumps(dict(head, Jobs=found) if found else head)
    if missing:
        raise Failed("\n".join(missing), 153 if found else 170, text)
    return text


def qselect(state, arguments, _stdin):
    states = arguments[arguments.index("-s") + 1]
    resource, op, value = re.match(r"(\w+)\.(\w+)\.(\d+)", arguments[arguments.index("-l") + 1]).groups()
    if op != "gt":
        raise Failed("qselect: illegal -l value")
    listed = [
        name
        for name, job in state["jobs"].items()
        if job["job_state"] in states and int(job["Resource_List"].get(resource, 0)) > int(value)
    ]
    return "\n".join(listed)


def qmgr(state, arguments, stdin):
    lines = [arguments[1]] if arguments[:1] == ["-c"] else stdin.splitlines()
    errors, out = [], []
    for line in filter(None, map(str.strip, lines)):
        try:
            said = directive(state, line)
            if said:
                out.append(said)
        except Failed as error:
            errors.append(f"qmgr obj= svr=default: {error}")
    if errors:
        raise Failed("\n".join(errors), 1, "\n".join(out))
    return "\n".join(out)


def directive(state, line):
    match = re.match(r"set server resources_available\.(\w+) = (\d+)\Z", line)
    if match:
        if match.group(1) not in state["resources"]:
            raise Failed(f"Unknown resource resources_available.{match.group(1)}")
        state["available"][match.group(1)] = int(match.group(2))
        return None
    match = re.match(r"create resource (\w+) type=(\w+)(?:,flag=(\w+))?\Z", line)
    if match:
        if match.group(1) in state["resources"]:
            raise Failed("Resource already exists")
        state["resources"][match.group(1)] = [match.group(2), match.group(3) or ""]
        return None
    match = re.match(r"set resource (\w+) flag=(\w+)\Z", line)
    if match and match.group(1) in state["resources"]:
        state["resources"][match.group(1)][1] = match.group(2)
        return None
    match = re.match(r"delete resource (\w+)\Z", line)
    if match:
        if any(match.group(1) in job["Resource_List"] for job in state["jobs"].values()):
            raise Failed("Resource busy on job")
        state["resources"].pop(match.group(1), None)
        state["available"].pop(match.group(1), None)
        return None
    match = re.match(r"(set|unset) server (\w+)\s*(\+=|-=|=)?\s*(.*)\Z", line)
    if match:
        return server_attribute(state, *match.groups())
    if re.match(r"(list|print) resource\Z", line):
        return "\n".join(
            f"Resource {name}\n    type = {kind}\n    flag = {flag}"
            for name, (kind, flag) in sorted(state["resources"].items())
        )
    return hook_directive(state, line)


def server_attribute(state, verb, key, op, value):
    value = value.strip('"')
    if key == "scheduling":
        state["scheduling"] = value.capitalize()
        state["kicks"].append(time.time())
    elif key == "managers":
        have = [one for one in state["managers"].split(",") if one and one != value]
        state["managers"] = ",".join(have + ([value] if op == "+=" else []))
    elif verb == "unset" or op:
        state["attributes"][key] = "" if verb == "unset" else value


def hook_directive(state, line):
    hooks = state["hooks"]
    match = re.match(r"create hook (\w+)\Z", line)
    if match:
        if match.group(1) in hooks:
            raise Failed("hook error: hook name already registered, try another name")
        hooks[match.group(1)] = {"enabled": "true", "order": "1", "alarm": "30", "event": '""', "text": ""}
        return None
    match = re.match(r"set hook (\w+) (\w+) = (.*)\Z", line)
    if match and match.group(1) in hooks:
        hooks[match.group(1)][match.group(2)] = match.group(3).strip()
        return None
    match = re.match(r"import hook (\w+) application/x-python default (\S+)\Z", line)
    if match and match.group(1) in hooks:
        with open(match.group(2)) as stream:
            hooks[match.group(1)]["text"] = stream.read()
        return None
    match = re.match(r"export hook (\w+) application/x-python default\Z", line)
    if match and match.group(1) in hooks:
        return hooks[match.group(1)]["text"]
    match = re.match(r"delete hook (\w+)\Z", line)
    if match:
        hooks.pop(match.group(1), None)
        return None
    if line == "list hook":
        return "\n".join(
            f"Hook {name}\n" + "".join(f"    {key} = {value}\n" for key, value in sorted(hook.items()) if key != "text")
            for name, hook in sorted(hooks.items())
        )
    raise Failed("Syntax error")


def qhold(state, arguments, _stdin):
    find(state, arguments[-1]).update(job_state="H", Hold_Types=arguments[1])


def qrls(state, arguments, _stdin):
    find(state, arguments[-1]).update(job_state="Q", Hold_Types="n")


def qalter(state, arguments, _stdin):
    job = find(state, arguments[-1])
    if arguments[0] == "-a":
        at = time.mktime(time.strptime(arguments[1], "%Y%m%d%H%M.%S"))
        job["Execution_Time"] = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(at))
        job["job_state"] = "W" if at > time.time() + 1 else "Q"
        return
    match = re.match(r'comment="([^"]*)"\Z', arguments[1])
    if arguments[0] != "-W" or not match:
        raise Failed("qalter: illegal -W value", 2)
    job["comment"] = match.group(1)


def qrerun(state, arguments, _stdin):
    job = find(state, arguments[-1])
    job.update(job_state="H" if job.get("Hold_Types") == "s" else "Q")
    job.pop("exec_host", None)


PROGRAMS = {
    "qstat": qstat, "qselect": qselect, "qmgr": qmgr, "qhold": qhold, "qrls": qrls, "qalter": qalter,
    "qrerun": qrerun,
}  # fmt: skip


def main(path, program, arguments):
    with open(path, "r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        state = json.load(stream)
        state["calls"].append([program, *arguments])
        status, out, err = 0, "", ""
        try:
            if state["down"]:
                raise Failed(f"Connection refused\n{program}: cannot connect to server pbs (errno=15010)", 1)
            reads = program == "qmgr" and arguments[:1] != ["-c"]
            out = PROGRAMS[program](state, arguments, sys.stdin.read() if reads else "") or ""
        except Failed as error:
            status, out, err = error.status, error.out, str(error)
        stream.seek(0)
        stream.truncate()
        json.dump(state, stream)
    if out:
        sys.stdout.write(out + "\n")
    if err:
        sys.stderr.write(err + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))

#!/usr/bin/python3
"""Slurm's calls to qtandem: `start` and `end` for slurmctld, `environment` for slurmd.

Runs as `python3 -I` on Python 3.6 with the standard library alone. All addresses are the constants below;
none comes from the environment, which may carry what a user chose.
"""

import json
import os
import re
import subprocess
import sys
import syslog
import time

# qtandem:settings (written by `qtandem install slurm`)
CLUSTER = ""
SERVER = "qtandem"
SOCKET = "/run/qtandem/qtandem.sock"
RUNS = "/run/qtandem/runs"
NAMES = "/run/qtandem/names"
SCONTROL = "scontrol"
SLURM_CONF = ""
CALL_S = 10
DAEMON_DOWN_S = 10
NO_REQUEUE_S = 300
TOTAL_S = 900
# qtandem:end
# qtandem:include calls.py
# qtandem:include handover.py

NO_LIMIT_S = 360 * 86400
# Slurm's own default server, which holds whatever licences a site has.
SHARED = "slurmdb"


def say(text):
    """To Slurm's log by stderr, and to the system's."""
    line = " ".join(str(text).split())
    sys.stderr.write("qtandem: %s\n" % line)
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_NOTICE, line)


def asks(licences):
    """Whether QPUs are among the licences: any of our server's, but on one that is shared only those we know."""
    entries = re.findall(r"([^@:=(,;|\s]+)@([^@:=(,;|\s]+)", licences)
    ours = {name for name, server in entries if server == SERVER}
    if SERVER != SHARED or not ours:
        return bool(ours)
    try:
        with open(NAMES) as stream:
            return bool(ours & {line.split("\t")[1].strip() for line in stream if "\t" in line})
    except OSError:
        return True


def number(text):
    return int(text) if text and text.isdigit() else None


def scontrol(*arguments):
    """The command's output; raises OSError or subprocess.SubprocessError."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    if SLURM_CONF:
        env["SLURM_CONF"] = SLURM_CONF
    done = subprocess.run(
        [SCONTROL, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        timeout=CALL_S,
    )
    return done.stdout.decode("utf-8", "replace")


def record(job):
    """What slurmctld says of a job (numeric id), or {} if it does not answer in time."""
    try:
        jobs = json.loads(scontrol("show", "job", job, "--json"))["jobs"]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return {}
    return next((one for one in jobs if str(one.get("job_id")) == job), {})


def unwrapped(value):
    """A number of Slurm's JSON, which is {set, infinite, number} in newer versions."""
    if isinstance(value, dict):
        return value.get("number") if value.get("set") else None
    return value


def identity(environment):
    """Job id, array index and attempt as the daemon names them; an array element goes by its array's id."""
    job, index = environment.get("SLURM_JOB_ID", ""), number(environment.get("SLURM_ARRAY_TASK_ID"))
    if not job.isdigit():
        raise ValueError("SLURM_JOB_ID is %r" % (job,))
    if index is not None:
        job = environment.get("SLURM_ARRAY_JOB_ID", job)
    attempt = number(environment.get("SLURM_JOB_RESTART_COUNT") or environment.get("SLURM_RESTART_COUNT")) or 0
    return {"manager": "slurm", "cluster": CLUSTER, "job": job, "index": index, "attempt": attempt}


def tell(job, own, text):
    """Say to a job's owner why Slurm is about to cancel it: in its comment, and to a batch job's own output."""
    words = "qtandem: " + " ".join(text.split())
    try:
        scontrol("update", "jobid=" + job, "comment=" + (own + " | " + words if own else words))
        scontrol("notify", job, words)
    except (OSError, subprocess.SubprocessError) as error:
        say("job %s was not told: %r" % (job, error))


def start_call(environment, known):
    begins, ends = number(environment.get("SLURM_JOB_START_TIME")), number(environment.get("SLURM_JOB_END_TIME"))
    limit = ends - begins if begins is not None and ends is not None and ends > begins else None
    body = identity(environment)
    body.update(
        uid=int(environment["SLURM_JOB_UID"]),
        user=environment.get("SLURM_JOB_USER", ""),
        account=environment.get("SLURM_JOB_ACCOUNT", ""),
        partition=environment.get("SLURM_JOB_PARTITION", ""),
        nodes=environment.get("SLURM_JOB_NODELIST", ""),
        native=environment.get("SLURM_JOB_LICENSES", ""),
        can_requeue=bool(known.get("requeue", True)) and bool(known.get("batch_flag", True)),
        time_limit_s=limit if limit is not None and limit < NO_LIMIT_S else None,
    )
    return body


def start(environment, clock=time.monotonic, sleep=time.sleep):
    """0 if the run has its leases. Otherwise 1: Slurm requeues the job, or cancels one that cannot be requeued."""
    known = record(environment["SLURM_JOB_ID"])
    body = start_call(environment, known)
    refusal = attempt(environment, body, clock, sleep)
    if refusal and not body["can_requeue"]:
        tell(environment["SLURM_JOB_ID"], str(known.get("comment") or ""), refusal)
    return 1 if refusal else 0


def attempt(environment, body, clock, sleep):
    """Ask until there is a verdict; the reason of a refusal, or an empty text."""

    def refused(form, *words):
        say(("job %s " + form) % (environment["SLURM_JOB_ID"], *words))
        return form % words

    began = answered = clock()
    patience = DAEMON_DOWN_S if body["can_requeue"] else NO_REQUEUE_S
    while clock() - began < TOTAL_S:
        try:
            answer = call("POST", "/v1/start", body)
        except Refused as error:
            return refused("is refused: %s", error)
        except (OSError, Deadline) as error:
            if clock() - answered >= patience:
                return refused("cannot start, qtandemd does not answer: %s", error)
            sleep(1.0)
            continue
        answered = clock()
        if answer.get("verdict") == "admit":
            return ""
        if answer.get("verdict") != "wait":
            return refused("has no QPU: %s", answer.get("message", ""))
        sleep(min(max(float(answer.get("retry_after") or 0.0), 0.1), 5.0))
    return refused("cannot start: no slot within %d s", TOTAL_S)


def ended_attempt(environment, counted):
    """The attempt that ended. When a job is requeued, slurmctld has counted the next one before its epilog."""
    found = record(environment["SLURM_JOB_ID"])
    began, now = number(environment.get("SLURM_JOB_START_TIME")), unwrapped(found.get("start_time"))
    if counted > 0 and found and began != now:
        return counted - 1
    return counted if found or counted == 0 else None


def end(environment):
    """Report the end; whatever is missed here the daemon learns from Slurm itself."""
    body = identity(environment)
    body["attempt"] = ended_attempt(environment, body["attempt"])
    code = environment.get("SLURM_JOB_EXIT_CODE2", "").partition(":")[0]
    body["exit_code"] = number(code)
    try:
        call("POST", "/v1/end", body)
    except (Refused, OSError, Deadline) as error:
        say("the end of job %s was not reported: %s" % (environment.get("SLURM_JOB_ID"), error))
    return 0


def fetch_environment(environment):
    """The answer for this job's run. slurmd does not tell an element's array, so slurmctld is asked then."""
    known = identity(environment)

    def get(job, index):
        tail = "" if index is None else "_%d" % index
        path = "/v1/runs/slurm:%s:%s%s.%d/environment" % (CLUSTER, job, tail, known["attempt"])
        return call("GET", path)

    try:
        return get(known["job"], known["index"])
    except Refused:
        found = record(environment["SLURM_JOB_ID"])
        array, index = unwrapped(found.get("array_job_id")), unwrapped(found.get("array_task_id"))
        if not array or index is None or known["index"] is not None:
            raise
        return get(array, index)


def environment(variables, clock=time.monotonic, sleep=time.sleep):
    """Leave the run's environment on this node. Always 0: an error here would drain the node."""
    job, uid, gid = variables.get("SLURM_JOB_ID", ""), variables.get("SLURM_JOB_UID"), variables.get("SLURM_JOB_GID")
    began = clock()
    while True:
        try:
            answer = fetch_environment(variables)
            if answer.get("uid") != int(uid):
                raise Refused("the run belongs to uid %s, the job to %s" % (answer.get("uid"), uid))
            write_environment(job, int(uid), int(gid), environment_lines(answer.get("env", {}), say))
        except (OSError, Deadline) as error:
            if clock() - began < DAEMON_DOWN_S:
                sleep(1.0)
                continue
            say("no environment for job %s: %s" % (job, error))
        except (Refused, ValueError, TypeError) as error:
            say("no environment for job %s: %s" % (job, error))
        return 0


def main(arguments):
    syslog.openlog("qtandem-slurm")
    commands = {"start": start, "end": end, "environment": environment}
    if len(arguments) != 1 or arguments[0] not in commands:
        sys.stderr.write("usage: qtandem_slurm.py start|end|environment\n")
        return 2
    if not asks(os.environ.get("SLURM_JOB_LICENSES", "")):
        return 0
    try:
        return commands[arguments[0]](dict(os.environ))
    except (KeyError, ValueError) as error:
        say("%s: Slurm's variables are not as expected: %r" % (arguments[0], error))
        return 1 if arguments[0] == "start" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/python3
"""Grid Engine's calls to qtandem on an execution host: `start` and `end` of a job, `environment` for a task of a
parallel one, and `news` for the load sensor.

Runs as `python3 -I` on Python 3.6 with the standard library alone. All addresses are the constants below;
none comes from the environment, which may carry what a user chose.
"""

import os
import pwd
import re
import sys
import syslog
import time

# qtandem:settings (written by `qtandem install gridengine`)
CLUSTER = ""
HOOKS = "/usr/libexec/qtandem/gridengine"
SOCKET = "/run/qtandem/qtandem.sock"
RUNTIME = "/run/qtandem"
RUNS = "/run/qtandem/runs"
CALL_S = 10
DAEMON_DOWN_S = 40
REFUSED_PAUSE_S = 30
TOTAL_S = 900
# qtandem:end
# qtandem:include calls.py
# qtandem:include handover.py

# What Grid Engine does with a prolog's status: 0 runs the job, 99 has it wait again. All others do harm.
RUN, AGAIN = 0, 99


def say(text):
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_NOTICE, " ".join(str(text).split()))


class Job:
    """The job as execd wrote it down; `index` is None for a job that is no array. Raises ValueError, OSError."""

    def __init__(self, arguments, spool):
        self.spool = spool
        self.id, self.owner = arguments[0], arguments[1]
        values = {}
        with open(os.path.join(spool, "config")) as stream:
            for line in stream:
                key, _, value = line.rstrip("\n").partition("=")
                values[key] = value
        if not re.match(r"\d+\Z", self.id) or values.get("job_id") != self.id or values.get("job_owner") != self.owner:
            raise ValueError("%s is not of job %s of %s" % (spool, self.id, self.owner))
        # The name of the folder comes from the environment. Grid Engine's own is not the user's.
        if os.stat(spool).st_uid == pwd.getpwnam(self.owner).pw_uid != os.geteuid():
            raise ValueError("%s belongs to %s" % (spool, self.owner))
        task = int(values.get("ja_task_id") or 0)
        self.index = task or None
        self.queue = values.get("queue", "")
        # The command of a qrsh; its starter can tell its user something.
        self.told = values.get("script_file") == "QRSH" and values.get("starter_method") == HOOKS + "/starter_method"

    @property
    def name(self):
        return "gridengine-%s" % self.id + ("" if self.index is None else ".%d" % self.index)

    def body(self):
        return {"manager": "gridengine", "cluster": CLUSTER, "job": self.id, "index": self.index}

    def deleted(self):
        """Whether the job was deleted while its prolog runs: the shepherd keeps the signal until that is over."""
        try:
            with open(os.path.join(self.spool, "trace"), errors="replace") as stream:
                return "queued signal KILL" in stream.read(MAX_ANSWER)
        except OSError:
            return False


def started(job, run):
    """Leave the environment of the run for the starter method; what is no secret also for interactive jobs."""
    answer = call("GET", "/v1/runs/%s/environment" % run)
    user = pwd.getpwnam(job.owner)
    if answer.get("uid") != user.pw_uid:
        raise Refused("the run belongs to uid %s, the job to %s" % (answer.get("uid"), user.pw_uid))
    variables = answer.get("env", {})
    write_environment(job.name, user.pw_uid, user.pw_gid, environment_lines(variables, say))
    public = {name: variables[name] for name in ("QTANDEM_RUN", "QTANDEM_SOCKET") if name in variables}
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(os.path.join(job.spool, "environment"), flags), "a") as stream:
        stream.write(environment_lines(public, say))


def start(job, clock=time.monotonic, sleep=time.sleep):
    """RUN if the run has its leases, else AGAIN; the daemon sees to it that the job does not come back at once."""
    body = job.body()
    body.update(uid=pwd.getpwnam(job.owner).pw_uid, user=job.owner, partition=job.queue)
    began = answered = clock()
    while clock() - began < TOTAL_S:
        if job.deleted():
            say("job %s was deleted before it had its QPU" % job.id)
            return give_up(job)
        try:
            answer = call("POST", "/v1/start", body)
            if answer.get("verdict") == "admit":
                if answer.get("run"):
                    started(job, answer["run"])
                return RUN
        except Refused as error:
            sleep(REFUSED_PAUSE_S)
            give_up(job)
            return turn_away(job, "the start is refused: %s" % error)
        except (OSError, Deadline) as error:
            if clock() - answered >= DAEMON_DOWN_S:
                return turn_away(job, "qtandemd does not answer (%s); try again later" % error)
            sleep(1.0)
            continue
        answered = clock()
        if answer.get("verdict") != "wait":
            return turn_away(job, str(answer.get("message", "")))
        sleep(min(max(float(answer.get("retry_after") or 0.0), 0.0), 5.0))
    give_up(job)
    return turn_away(job, "no slot within %d s" % TOTAL_S)


def turn_away(job, why):
    """AGAIN, or RUN where there is no again and the starter can say why: it then starts nothing."""
    say("job %s does not start: %s" % (job.id, why))
    if not job.told:
        return AGAIN
    user = pwd.getpwnam(job.owner)
    write_environment(job.name, user.pw_uid, user.pw_gid, "QTANDEM_REFUSED=%s\n" % " ".join(why.split()))
    return RUN


def give_up(job):
    """Have the daemon give back what it took, or is about to take, for this start."""
    end(job, None)
    return AGAIN


def end(job, exit_code):
    """Report the end; whatever is missed here the daemon learns from Grid Engine itself."""
    body = job.body()
    body["exit_code"] = exit_code
    try:
        call("POST", "/v1/end", body)
    except (Refused, OSError, Deadline) as error:
        say("the end of job %s was not reported: %s" % (job.id, error))
    try:
        remove_environment(job.name)
    except OSError as error:
        say("%s stays: %s" % (job.name, error))
    return RUN


def news():
    """Queue length and wait of each QPU for the load sensor: `NAME VALUE` a line, in a file that is replaced."""
    lines = []
    for row in call("GET", "/v1/resources").get("resources", []):
        native = row.get("native", "")
        if NAME.match(native) and row.get("queue") is not None:
            lines.append("qpu_queue_%s %d\n" % (native, row["queue"]))
        if NAME.match(native) and row.get("wait_s") is not None:
            lines.append("qpu_wait_%s %d\n" % (native, row["wait_s"]))
    path = os.path.join(RUNTIME, "gridengine.news")
    new = "%s.%d" % (path, os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(new, flags, 0o644), "w") as stream:
        stream.write("".join(lines))
    os.rename(new, path)
    return 0


def environment(job, task):
    """Print the variables of a run for the starter of a parallel task, which asks as the job's user."""
    name = "gridengine:%s:%s%s" % (CLUSTER, job, "_" + task if task.isdigit() else "")
    sys.stdout.write(environment_lines(call("GET", "/v1/runs/%s/environment" % name).get("env", {}), say))
    return 0


def main(arguments):
    syslog.openlog("qtandem-gridengine")
    verb = arguments[0] if arguments else ""
    if verb == "news":
        return news()
    if verb not in ("start", "end", "environment") or len(arguments) < 3:
        sys.stderr.write("usage: qtandem_gridengine.py start|end JOB OWNER | environment JOB TASK | news\n")
        return 2
    try:
        if verb == "environment":
            return environment(*arguments[1:3])
        job = Job(arguments[1:], os.environ.get("SGE_JOB_SPOOL_DIR", ""))
        if verb == "start":
            return start(job)
        status = os.environ.get("SGE_JOBEXIT_STAT", "")
        return end(job, int(status) if status.isdigit() else None)
    except (KeyError, ValueError, OSError, Deadline, Refused) as error:
        say("%s of job %s: %r" % (verb, arguments[1], error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/python3
"""LSF's calls to qtandem on a host: `start`, `environment` and `end` of a job, and `news` for the elim.

Runs as `python3 -I` on Python 3.6 with the standard library alone, as the job's user: LSF gives what it runs as root
the environment of the job, LD_PRELOAD among it. All addresses are the constants below.
"""

import os
import re
import signal
import sys
import syslog
import time

# qtandem:settings (written by `qtandem install lsf`)
CLUSTER = ""
SOCKET = "/run/qtandem/qtandem.sock"
CALL_S = 10
DAEMON_DOWN_S = 40
REFUSED_PAUSE_S = 30
TOTAL_S = 900
# qtandem:end
# qtandem:include calls.py
# qtandem:include lines.py

# What LSF does with a pre-execution status: 0 runs the job, 99 ends it, any other has it wait again.
RUN, AGAIN = 0, 75


def say(text):
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_NOTICE, " ".join(str(text).split()))


class Killed(Exception):
    """The job is killed while its start waits."""


class Job:
    """The job as sbatchd names it; `index` is None for a job that is no array. Raises ValueError."""

    def __init__(self, variables):
        self.id = variables.get("LSB_JOBID", "")
        index = variables.get("LSB_JOBINDEX") or "0"
        if not re.match(r"[0-9]{1,18}\Z", self.id) or not re.match(r"[0-9]{1,9}\Z", index):
            raise ValueError("LSB_JOBID=%r, LSB_JOBINDEX=%r" % (self.id, index))
        self.index = int(index) or None
        self.queue = variables.get("LSB_QUEUE", "")

    def body(self):
        return {"manager": "lsf", "cluster": CLUSTER, "job": self.id, "index": self.index}

    def path(self):
        return "/v1/runs/lsf:%s:%s/environment" % (CLUSTER, self.id + ("_%d" % self.index if self.index else ""))


def start(job, clock=time.monotonic, sleep=time.sleep):
    """RUN if the run has its leases, else AGAIN; the daemon sees to it that the job does not come back at once."""
    body = job.body()
    # Who the job belongs to is asked of LSF by the daemon; what is said here counts for nothing.
    body.update(uid=0, partition=job.queue)
    began = answered = clock()
    while clock() - began < TOTAL_S:
        try:
            answer = call("POST", "/v1/start", body)
            if answer.get("verdict") == "admit":
                return RUN
        except Refused as error:
            say("job %s is refused: %s" % (job.id, error))
            sleep(REFUSED_PAUSE_S)
            return give_up(job)
        except (OSError, Deadline) as error:
            if clock() - answered >= DAEMON_DOWN_S:
                say("job %s cannot start, qtandemd does not answer: %s" % (job.id, error))
                return AGAIN
            sleep(1.0)
            continue
        answered = clock()
        if answer.get("verdict") != "wait":
            say("job %s does not start: %s" % (job.id, answer.get("message", "")))
            return AGAIN
        sleep(min(max(float(answer.get("retry_after") or 0.0), 0.0), 5.0))
    say("job %s cannot start: no slot within %d s" % (job.id, TOTAL_S))
    return give_up(job)


def environment(job, clock=time.monotonic, sleep=time.sleep):
    """Print the environment of the run, a variable a line. A daemon that is away just now is waited for."""
    began = clock()
    while True:
        try:
            answer = call("GET", job.path())
            sys.stdout.write(environment_lines(answer.get("env", {}), say))
            return 0
        except Refused as error:
            sys.stderr.write("qtandem: the job cannot use its QPU: %s\n" % " ".join(str(error).split()))
            sys.stderr.write("qtandem: ask for a QPU by its name, so that esub.qpu sees it: bsub -a 'qpu(NAME)' ...\n")
            return 1
        except (OSError, Deadline) as error:
            if clock() - began >= DAEMON_DOWN_S:
                sys.stderr.write("qtandem: the job cannot use its QPU, qtandemd does not answer: %s\n" % error)
                return 1
        sleep(1.0)


def give_up(job):
    """Have the daemon give back what it took, or is about to take, for this start."""
    end(job, None)
    return AGAIN


def end(job, exit_code):
    """Report the end; whatever is missed here the daemon learns from LSF itself."""
    body = job.body()
    body["exit_code"] = exit_code
    try:
        call("POST", "/v1/end", body)
    except (Refused, OSError, Deadline) as error:
        say("the end of job %s was not reported: %s" % (job.id, error))
    return RUN


def exit_status(text):
    """A wait status as LSB_JOBEXIT_STAT has it, as shells count: 128 and the signal; None for none."""
    if not text.isdigit():
        return None
    status = int(text)
    return status >> 8 if status >> 8 else 128 + (status & 0x7F) if status & 0x7F else 0


def news():
    """Print for the elim what the open QPUs can do at best: `qubits`, `queue`, `wait` a line."""
    rows = [row for row in call("GET", "/v1/resources").get("resources", []) if row.get("open")]
    for word, key, best in (("qubits", "qubits", max), ("queue", "queue", min), ("wait", "wait_s", min)):
        known = [int(row[key]) for row in rows if row.get(key) is not None]
        if known:
            print("%s %d" % (word, best(known)))
    return 0


def killed(_number, _frame):
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise Killed()


ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def guarded_start(job):
    """A start that a signal ends: LSF kills the job, or takes it away."""
    for number in ENDING:
        signal.signal(number, killed)
    try:
        return start(job)
    except Killed:
        say("job %s was killed before it had its QPU" % job.id)
        return give_up(job)


def main(arguments):
    syslog.openlog("qtandem-lsf")
    verb = arguments[0] if len(arguments) == 1 else ""
    try:
        if verb == "news":
            return news()
    except (Refused, OSError, Deadline, ValueError, TypeError):
        # What is not known is not said; the elim has values of its own for that.
        return 1
    if verb not in ("start", "environment", "end"):
        sys.stderr.write("usage: qtandem_lsf.py start | environment | end | news\n")
        return 2
    try:
        job = Job(os.environ)
        if verb == "start":
            return guarded_start(job)
        if verb == "environment":
            return environment(job)
        return end(job, exit_status(os.environ.get("LSB_JOBEXIT_STAT", "")))
    except (KeyError, ValueError, OSError) as error:
        say("%s of job %s: %r" % (verb, os.environ.get("LSB_JOBID", ""), error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

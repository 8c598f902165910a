# ---- what both hooks know of PBS, from pbs/hooks/common.py
import re
import sys

OURS = "qpu_"
NATIVE = re.compile(r"qpu_[A-Za-z0-9_]+\Z")
JOB = re.compile(r"([0-9A-Za-z]+)(?:\[([0-9]*)\])?(?:\.|\Z)")


def say(text):
    """To the log of the PBS daemon that runs the hook."""
    pbs.logmsg(pbs.LOG_WARNING, "qtandem: %s" % " ".join(printable(text).split()))


def printable(text):
    """Without what would steer a terminal, or end a text in C; words of users and vendors are in it."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in str(text))


def say_fault(error):
    """PBS itself logs no line numbers."""
    trace, places = sys.exc_info()[2], []
    while trace is not None:
        places.append("%s:%d" % (trace.tb_frame.f_code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    say("%s: %s (at %s)" % (type(error).__name__, error, " > ".join(places)))


def told(text):
    """Our words for a user, with our name before them once."""
    text = printable(text)
    return text if text.startswith("qtandem") else "qtandem: %s" % text


def natives(resources):
    """Our counted resources in a Resource_List, by name."""
    # PBS fills the list when somebody asks for an item; until then it may have no keys.
    resources["select"]
    found = {}
    for key in sorted(map(str, resources.keys())):
        if NATIVE.match(key):
            try:
                slots = int(str(resources[key]))
            except ValueError:
                continue
            if slots > 0:
                found[key] = slots
    return found


def native_text(found):
    return ",".join("%s=%d" % pair for pair in found.items())


def identity(job, ahead=0):
    """The run as the daemon names it. PBS counts a run only when it sends it to a host: a hook before is `ahead`."""
    match = JOB.match(str(job.id))
    if match is None:
        raise ValueError("the job id is %r" % (str(job.id),))
    attempt = number(getattr(job, "run_version", None)) + ahead
    index = match.group(2) or None
    return {"manager": "pbs", "cluster": CLUSTER, "job": match.group(1), "index": index, "attempt": attempt}


def number(value):
    text = "" if value is None else str(value)
    return int(text) if text.lstrip("-").isdigit() else 0


def text_of(value):
    return "" if value is None else str(value)


def owner(job):
    """The user that the job runs as, as far as PBS knows by now."""
    return text_of(getattr(job, "euser", None)) or text_of(getattr(job, "Job_Owner", None)).partition("@")[0]


# ---- end of pbs/hooks/common.py

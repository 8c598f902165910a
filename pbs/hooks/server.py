"""PBS server hook for queuejob, modifyjob, resvsub, runjob and jobobit.

It runs inside pbs_server, which does one thing at a time and keeps its interpreter: one deadline on every call of
the daemon, no signal, no thread, nothing that outlives an event. Python 3.6, standard library alone.
"""

import os
import pwd
import re
import stat
import time

import pbs

# qtandem:settings (written by `qtandem install pbs`)
CLUSTER = ""
SOCKET = "/run/qtandem/qtandem.sock"
NAMES = "/run/qtandem/names"
PRIV = "/var/spool/pbs/server_priv"
DEADLINE_MS = 40
DOWN_S = 15
# qtandem:end
# qtandem:include textcalls.py
# qtandem:include rejects.py
# qtandem:include common.py

REQUEST, QRMI, VARIABLE = "qpu", "quantum_resources", "QRMI_QPU_RESOURCES"
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
ONLY = "change the QPU of a job by its name: qalter -l qpu=NAME"


def call(path, values):
    return ask("POST", path, values, DEADLINE_MS / 1000.0)


# ---- what a job asks for
def unescaped(text):
    """A value of Variable_List as its author wrote it."""
    return re.sub(r"\\([\\,\"'])", r"\1", text)


def listed(text):
    """QRMI's list as a request. Since PBS cuts a variable at a comma, `a:b` stood for `a,b` there."""
    parts = [part.strip() for part in text.split(":")]
    if "," not in text and len(parts) > 1 and all(PLAIN.match(part) for part in parts):
        return ",".join(parts)
    return text.strip()


def names():
    """The rows NAME, NATIVE, SLOTS of all QPUs, which the daemon leaves on this host.

    In a folder of the daemon's: whatever else it may put there must not stop pbs_server, which is root.
    """
    try:
        place = os.open(NAMES, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                return []
            text = os.read(place, MAX_ANSWER).decode("utf-8", "replace")
        finally:
            os.close(place)
    except OSError:
        return []
    rows = [line.split("\t") for line in text.split("\n")]
    return [row for row in rows if len(row) == 3 and row[2].isdecimal()]


def from_select(resources):
    """QPUs that are named in the select statement: (request, select without them). PBS counts ours by job."""
    text = text_of(resources["select"])
    known = {key: row[0] for row in names() for key in (row[0], OURS + row[1])}
    if '"' in text or "'" in text or not known:
        return "", None
    chunks, asked = [], []
    for chunk in text.split("+"):
        kept = []
        for part in chunk.split(":"):
            key, equals, value = part.partition("=")
            if equals and key in known:
                asked.append(known[key] if value == "1" else "%s:%s" % (known[key], value))
            else:
                kept.append(part)
        chunks.append(":".join(kept))
    return "+".join(asked), "+".join(chunks) if asked else None


def wish(job):
    """The forms in which a job names QPUs: [(how, request)], natives, select without QPUs (or None)."""
    resources = job.Resource_List
    keys = {str(key) for key in resources.keys()}
    forms = [("-l %s" % key, text_of(resources[key]).strip()) for key in (REQUEST, QRMI) if key in keys]
    variables = getattr(job, "Variable_List", None)
    if variables and variables.get(VARIABLE):
        forms.append(("-v %s" % VARIABLE, listed(unescaped(text_of(variables.get(VARIABLE))))))
    select = None
    if "select" in keys:
        asked, select = from_select(resources)
        forms.append(("-l select", asked))
    return [form for form in forms if form[1]], natives(resources), select


def single(forms):
    """The one request that all forms mean; QRMI's programs repeat theirs in a variable."""
    meanings = {tuple(sorted(re.split(r"[,+]", request))): request for _, request in forms}
    if len(meanings) > 1:
        told = ", ".join("%s=%s" % form for form in forms)
        raise Reject("%s do not mean the same QPU; name it in one way only" % told, "ambiguous")
    return next(iter(meanings.values()), "")


# ---- verdicts
def verdict(values):
    """The natives to write and the request in its one form; None where no QPU is meant. Raises `Reject`."""
    try:
        answer = call("/v1/submit", values)
    except Refused as error:
        say("submit: %s" % error)
        raise Reject("qtandem cannot judge the job: %s" % error.words, error.code)
    except OSError as error:
        say("submit: %s" % error)
        return alone(values)
    if answer.get("verdict") == "reject":
        raise rejection(answer)
    if answer.get("verdict") != "admit":
        return None
    pairs = (part.partition("=") for part in answer.get("native.l", "").split(",") if part)
    return {key: int(value or 1) for key, _, value in pairs}, answer.get("request", "")


def alone(values):
    """Without the daemon: one plain, known name. Its sensor is closed by then, so the job waits."""
    request, native = values["request"], values["native"]
    if not request and native.count("=") == 1:
        request = native.partition("=")[0][len(OURS) :]
        rows = [row for row in names() if row[1] == request]
        slots = int(native.partition("=")[2])
    else:
        rows, slots = [row for row in names() if row[0] == request and PLAIN.match(request)], 1
        if native and rows and native != "%s%s=1" % (OURS, rows[0][1]):
            rows = []
    if rows and slots <= int(rows[0][2]):
        return {OURS + rows[0][1]: slots}, rows[0][0] if slots == 1 else "%s:%d" % (rows[0][0], slots)
    raise unanswered()


def write(resources, given, request, before):
    """Pin the job to the counted resources."""
    for key in before:
        if key not in given:
            resources[key] = 0
    try:
        for key in sorted(given):
            resources[key] = given[key]
        resources[REQUEST] = request
    except Exception as error:
        say_fault(error)
        raise Reject("PBS knows no resource for this QPU yet; admins: qtandem install pbs", "bad-config")


def asker(user, values):
    try:
        return dict(values, user=user, uid=pwd.getpwnam(user).pw_uid)
    except KeyError:
        raise Reject("the PBS server's host knows no user %r" % (user,), "bad-config")


def queuejob(event):
    judge(event.job, event)


def resvsub(event):
    """A reservation that counts a QPU takes it from all others; its jobs get their leases as all jobs do."""
    judge(event.resv, event)


def judge(job, event):
    """Pin what is to be queued to the counted resources, or refuse it."""
    forms, before, select = wish(job)
    if not forms and not before:
        return
    values = {
        "manager": "pbs",
        "cluster": CLUSTER,
        "account": text_of(getattr(job, "Account_Name", None)),
        "partition": text_of(getattr(job, "queue", None)),
        "request": single(forms),
        "native": native_text(before),
    }
    found = verdict(asker(text_of(event.requestor), values))
    if found is None:
        return
    if select is not None:
        job.Resource_List["select"] = pbs.select(select)
    write(job.Resource_List, found[0], found[1], before)


def modifyjob(event):
    """Of a modified job the event has what changes, and of the rest single items that one asks for by name."""
    job, old = event.job, event.job_o
    keys = {str(key) for key in job.Resource_List.keys()}
    if any(NATIVE.match(key) for key in keys):
        raise Reject(ONLY)
    asked = from_select(job.Resource_List)[0] if "select" in keys else ""
    if asked:
        raise Reject(ONLY)
    forms = [(key, text_of(job.Resource_List[key]).strip()) for key in (REQUEST, QRMI) if key in keys]
    if not forms:
        return
    before = held_before(old)
    request = single([form for form in forms if form[1]])
    if not request:
        raise Reject("a job keeps its QPU; delete it and submit it without one")
    if text_of(getattr(old, "job_state", None)) in ("R", "E", "S", "U", "5", "4"):
        raise Reject("the job has begun; its QPU cannot be changed any more", "in-use")
    values = {
        "manager": "pbs",
        "cluster": CLUSTER,
        "job": text_of(old.id).partition(".")[0],
        "account": text_of(getattr(old, "Account_Name", None)),
        "partition": text_of(getattr(old, "queue", None)),
        "request": request,
        "native": "",
    }
    found = verdict(asker(owner(old), values))
    if found is None:
        raise Reject("%r names no QPU" % (request,), "unknown-resource")
    write(job.Resource_List, found[0], found[1], before)


def held_before(old):
    """The natives of the job as it was: its list of keys is empty in this event, its items are not."""
    found = {}
    for row in names():
        key = OURS + row[1]
        try:
            if number(old.Resource_List[key]) > 0:
                found[key] = number(old.Resource_List[key])
        except (AttributeError, KeyError):
            continue
    return found


def runjob(event):
    job = event.job
    wanted = natives(job.Resource_List)
    if not wanted:
        return
    why = unguarded(wanted)
    if why:
        say("job %s: %s" % (job.id, why))
        refuse(job, DOWN_S, "%s; admins: qtandem install pbs --apply" % why, "bad-config")
        return
    values = identity(job, ahead=1)
    keys = {str(key) for key in job.Resource_List.keys()}
    walltime = job.Resource_List["walltime"] if "walltime" in keys else None
    values.update(
        account=text_of(getattr(job, "Account_Name", None)),
        partition=text_of(getattr(job, "queue", None)),
        nodes=hosts(text_of(getattr(job, "exec_vnode", None))),
        native=native_text(in_order(wanted, text_of(job.Resource_List[REQUEST]) if REQUEST in keys else "")),
        time_limit_s=seconds(walltime),
    )
    try:
        answer = call("/v1/reserve", asker(owner(job), values))
        if answer.get("verdict") == "admit":
            return
        pause = float(answer.get("retry_after") or 0)
        why, code = answer.get("message") or "the QPU is not there", ""
        if answer.get("verdict") == "wait":
            pause = max(pause, 5.0)
    except socket.timeout as error:
        # It may be busy, and by now have the slots for us: on its host the job has time to ask.
        say("job %s goes on to its host: %s" % (job.id, error))
        return
    except Refused as error:
        say("job %s: %s" % (job.id, error))
        pause, why, code = DOWN_S, "%s; next try in %d s" % (error.words, DOWN_S), error.code
    except OSError as error:
        say("job %s: %s" % (job.id, error))
        pause, why, code = DOWN_S, "qtandem does not answer; next try in %d s" % DOWN_S, "daemon-unreachable"
    refuse(job, pause, why, code)


def in_order(wanted, request):
    """The natives in the order in which the request names them; PBS keeps its own."""
    if len(wanted) < 2:
        return wanted
    words = re.findall(r"[A-Za-z_][A-Za-z0-9_.-]*", request)
    known = {OURS + row[1]: row[0] for row in names()}
    place = {key: words.index(known[key]) for key in wanted if known.get(key) in words}
    return {key: wanted[key] for key in sorted(wanted, key=lambda key: (place.get(key, len(words)), key))}


def unguarded(wanted):
    """What would let a job run without a lease, in PBS's own files: its hosts ask our hook, and see the QPU."""
    try:
        with open(PRIV + "/hooks/qtandem_node.HK") as stream:
            hook = dict(line.rstrip("\n").partition("=")[::2] for line in stream)
        with open(PRIV + "/resourcedef") as stream:
            flags = dict(re.findall(r"^(\S+).*?\bflag=(\w+)", stream.read(), re.MULTILINE))
    except OSError as error:
        return "the hook qtandem_node is not to be found (%s)" % error
    # PBS writes only what is not its default.
    if hook.get("enabled", "true").lower() != "true":
        return "the hook qtandem_node is switched off"
    missing = {"execjob_begin", "execjob_launch"} - set(hook.get("event", "").strip('"').split(","))
    if missing:
        return "the hook qtandem_node is not asked for %s" % ", ".join(sorted(missing))
    blind = [name for name in sorted(wanted) if "m" not in flags.get(name, "")]
    return "%s has lost its flag m" % blind[0] if blind else ""


def refuse(job, pause, why, code):
    """Put the job off for so many seconds (state W), or hold it for 0.

    Not an element of an array: PBS's scheduler asks again for one that is refused, without an end and in the same
    cycle, and loses one that is put off. It is sent to its host, where execjob_begin waits and refuses.
    """
    if "[" in str(job.id):
        say("job %s goes on to its host: %s" % (job.id, why))
        return
    if pause > 0:
        job.Execution_Time = int(time.time() + max(pause, 1.0)) + 1
    else:
        job.Hold_Types = pbs.hold_types("s")
    raise Reject(why, code)


def hosts(exec_vnode):
    found = re.findall(r"\(([^:()\[\]]+)", exec_vnode)
    return ",".join(dict.fromkeys(found))


def seconds(walltime):
    """A pbs.duration, `HH:MM:SS`, or seconds; None for no limit."""
    if walltime is None:
        return None
    total = 0
    for part in str(walltime).split(":"):
        if not part.isdigit():
            return None
        total = total * 60 + int(part)
    return total


def jobobit(event):
    """The end of a run, also of one whose host is gone. What is missed here the daemon learns from PBS."""
    job = event.job
    if not natives(job.Resource_List) or "[]" in str(job.id):
        return
    values = identity(job)
    status = getattr(job, "Exit_status", None)
    values["exit_code"] = None if status is None else number(status)
    try:
        call("/v1/end", values)
    except (Refused, OSError) as error:
        say("the end of %s was not heard to the end: %s" % (job.id, error))


def mentions(event):
    """Whether the job of a failed event seems to be about a QPU."""
    try:
        job = event.resv if event.type == getattr(pbs, "RESVSUB", None) else event.job
        text = "%s %s" % (job.Resource_List, getattr(job, "Variable_List", ""))
    except Exception:
        return True
    return "qpu" in text.lower() or "quantum" in text.lower()


def give_up(event, handler):
    why = "qtandem failed on this job; admins: see the log of pbs_server"
    try:
        if handler is runjob:
            refuse(event.job, DOWN_S, why, "internal")
        else:
            raise Reject(why, "internal")
    except Reject as refusal:
        event.reject(told(refusal))


def main():
    event = pbs.event()
    handlers = {
        "QUEUEJOB": queuejob,
        "MODIFYJOB": modifyjob,
        "RESVSUB": resvsub,
        "RUNJOB": runjob,
        "JOBOBIT": jobobit,
    }
    for name, handler in handlers.items():
        if event.type != getattr(pbs, name, None):
            continue
        try:
            handler(event)
        except Reject as refusal:
            event.reject(told(refusal))
        except Exception as error:
            say_fault(error)
            if handler is not jobobit and mentions(event):
                give_up(event, handler)
    event.accept()


main()

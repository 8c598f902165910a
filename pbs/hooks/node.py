"""PBS execution hook for execjob_begin, execjob_launch, execjob_end, execjob_abort, execjob_postsuspend and
execjob_preresume.

Each event is a process of its own, which MOM ends after the hook's alarm. Python 3.6, standard library alone. No
address comes from the job's variables.
"""

import contextlib
import fcntl
import pwd

import pbs

# qtandem:settings (written by `qtandem install pbs`)
CLUSTER = ""
SOCKET = "/run/qtandem/qtandem.sock"
RUNS = "/run/qtandem/runs"
CALL_S = 10
BEGIN_S = 25
DOWN_S = 15
END_S = 5
GIVE_BACK_ON_SUSPEND = ""
# qtandem:end
# qtandem:include textcalls.py
# qtandem:include handover.py
# qtandem:include common.py

# The variable that is written last: PBS cuts commas off the end of the whole list.
LAST = "QTANDEM_SOCKET"
ESCAPED = ("\\", ",", '"', "'")
# Before the name of a secret variable, and after the folder of a run.
SECRET, HIDDEN = "-", "-hidden"
# In one line, as PBS wants arguments; it becomes the task itself, with all that this one was started with.
STARTER = (
    "import os,sys;"
    "os.environb.update(p.partition(b'=')[::2] for p in open(sys.argv[1],'rb').read().split(bytes(1)) if p);"
    "os.execvpe(sys.argv[2],sys.argv[3:],os.environb)"
)


def run_name(values):
    tail = "" if values["index"] is None else "_%s" % values["index"]
    return "pbs:%s:%s%s.%d" % (CLUSTER, values["job"], tail, values["attempt"])


def folder(values):
    return run_name(values).replace(":", "-")


def quoted(value):
    """As PBS wants a value in a list of variables. Raises ValueError for what it cannot carry."""
    if "\x00" in value:
        raise ValueError("it holds a NUL")
    if "\\," in value:
        raise ValueError("PBS cannot carry a backslash before a comma")
    for char in ESCAPED:
        value = value.replace(char, "\\" + char)
    return value


# ---- the start of a run
def begin(event, clock=time.monotonic, sleep=time.sleep):
    """The run gets its leases, or PBS requeues the job; then nothing of it stays with the daemon."""
    job = event.job
    if not job.in_ms_mom():
        return
    began = clock()
    why = start(identity(job), clock, sleep)
    if why:
        end(identity(job), None)
        say("job %s does not start: %s" % (job.id, why))
        if "[" in str(job.id):
            # No hook can put an element off before it is sent here, and PBS sends it again within seconds.
            sleep(max(0.0, DOWN_S - (clock() - began)))
        event.reject(told(why))


def start(values, clock=time.monotonic, sleep=time.sleep, again=False):
    """Empty if the run has its leases, else why not. `again`: a run that was ended a moment ago goes on."""
    began = answered = clock()
    while clock() - began < BEGIN_S:
        try:
            # Who asks for what, the daemon has from PBS itself.
            answer = ask("POST", "/v1/start", dict(values, uid=0), min(CALL_S, BEGIN_S))
        except Refused as error:
            return str(error)
        except OSError as error:
            if clock() - answered >= DOWN_S:
                return "qtandem does not answer (%s)" % error
            sleep(0.5)
            continue
        answered = clock()
        if answer.get("verdict") == "admit":
            if answer.get("run"):
                try:
                    keep(values)
                except (Refused, OSError) as error:
                    say("the environment of %s is fetched later: %s" % (run_name(values), error))
            return ""
        if answer.get("verdict") != "wait" and not (again and answer.get("code") == "run-ended"):
            return answer.get("message") or "refused"
        sleep(min(max(float(answer.get("retry_after") or 0), 0.0), 5.0))
    return "no slot within %d s" % BEGIN_S


# ---- the run's environment on this host
@contextlib.contextmanager
def settled():
    """Alone with RUNS on this host: tasks of one run start side by side, and none may see half of a file."""
    runs = runs_directory()
    try:
        fcntl.flock(runs, fcntl.LOCK_EX)
        yield
    finally:
        os.close(runs)


def keep(values):
    """Fetch the run's environment once for all tasks on this host; a file of root's alone."""
    variables, secret = fetch(values)
    lines = [
        "%s%s=%s\n" % (SECRET if name in secret else "", name, quote(value))
        for name, value in sorted(variables.items())
    ]
    try:
        with settled():
            write_environment(folder(values), os.geteuid(), os.getegid(), "".join(lines))
    except OSError as error:
        say("%s is not kept here: %s" % (run_name(values), error))
    return variables, secret


def fetch(values):
    """The run's variables, and the names of those that may stand in no log."""
    answer = ask("GET", "/v1/runs/%s/environment" % run_name(values), {}, CALL_S)
    variables = {key[4:]: value for key, value in answer.items() if key.startswith("env.")}
    return variables, {name for name in answer.get("secret", "").split(",") if name}


def kept(values):
    """What `keep` left, or None; a file that is not root's is not read."""
    path = os.path.join(RUNS, folder(values), "environment")
    try:
        with settled(), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as stream:
            if os.fstat(stream.fileno()).st_uid != os.geteuid():
                return None
            pairs = [line.rstrip("\n").partition("=")[::2] for line in stream]
    except OSError:
        return None
    variables = {name.lstrip(SECRET): unquote(value) for name, value in pairs}
    return variables, {name.lstrip(SECRET) for name, _ in pairs if name.startswith(SECRET)}


def launch(event, clock=time.monotonic, sleep=time.sleep):
    """The environment of each task, by PBS's channel for it: nothing of it is in the job's record.

    What is secret goes by a file of the job's user, since PBS writes what a hook puts there to its log.
    """
    values, began = identity(event.job), clock()
    while True:
        try:
            variables, secret = kept(values) or keep(values)
            break
        except Refused as error:
            event.reject(told(error))
        except OSError as error:
            if clock() - began >= DOWN_S:
                event.reject("qtandem: this host has no environment for the job's QPU (%s)" % error)
            sleep(0.5)
    for name in sorted(variables, key=lambda name: (name == LAST, name)):
        if not NAME.match(name):
            say("left out the variable %r: PBS cannot carry the name" % (name,))
            continue
        if name in secret:
            continue
        try:
            event.env[name] = quoted(variables[name])
        except ValueError as error:
            event.reject("qtandem: the variable %s cannot be given to the job: %s" % (name, error))
    hidden = {name: variables[name] for name in secret if name in variables and NAME.match(name)}
    if hidden:
        hide(event, values, hidden)


def hide(event, values, hidden):
    """Have the task start by way of a program that takes these variables from a file of its user's."""
    bad = sorted(name for name, value in hidden.items() if "\x00" in value)
    if bad:
        event.reject("qtandem: the variable %s cannot be given to the job: it holds a NUL" % bad[0])
    place = os.path.join(RUNS, folder(values) + HIDDEN, "environment")
    user = pwd.getpwnam(owner(event.job))
    text = "".join("%s=%s\0" % pair for pair in sorted(hidden.items()))
    with settled():
        if not os.path.exists(place):
            write_environment(folder(values) + HIDDEN, user.pw_uid, user.pw_gid, text)
    interpreter = os.readlink("/proc/self/exe")
    # MOM itself names the login shell of a job, which has no arguments here, as `login` does.
    given = [str(word) for word in event.argv] or ["-" + os.path.basename(str(event.progname))]
    event.argv = [interpreter, "-IS", "-c", STARTER, place, str(event.progname), *given]
    event.progname = interpreter


# ---- the end of a run
def over(event):
    job = event.job
    values = identity(job)
    if job.in_ms_mom():
        status = getattr(job, "Exit_status", None)
        end(values, None if status is None else number(status))
    forget(values)


def end(values, exit_code):
    """Report the end of this run and of no later one; what is missed here the daemon learns from PBS."""
    try:
        ask("POST", "/v1/end", dict(values, exit_code=exit_code), END_S)
    except (Refused, OSError) as error:
        say("the end of %s was not reported: %s" % (run_name(values), error))
    forget(values)


def forget(values):
    try:
        with settled():
            remove_environment(folder(values))
            remove_environment(folder(values) + HIDDEN)
    except OSError as error:
        say("the environment of %s stays: %s" % (run_name(values), error))


# ---- suspension
def suspended(event):
    if GIVE_BACK_ON_SUSPEND and event.job.in_ms_mom():
        end(identity(event.job), None)


def resumed(event):
    """A job that gave its QPU back resumes only with one."""
    if GIVE_BACK_ON_SUSPEND and event.job.in_ms_mom():
        why = start(identity(event.job), again=True)
        if why:
            event.reject(told(why))


def main():
    event = pbs.event()
    handlers = {
        "EXECJOB_BEGIN": begin,
        "EXECJOB_LAUNCH": launch,
        "EXECJOB_END": over,
        "EXECJOB_ABORT": over,
        "EXECJOB_POSTSUSPEND": suspended,
        "EXECJOB_PRERESUME": resumed,
    }
    for name, handler in handlers.items():
        if event.type != getattr(pbs, name, None) or not natives(event.job.Resource_List):
            continue
        try:
            handler(event)
        except Exception as error:
            say_fault(error)
            if handler is begin:
                end(identity(event.job), None)
            if handler in (begin, launch, resumed):
                event.reject("qtandem failed on this job; admins: see the log of pbs_mom")
    event.accept()


main()

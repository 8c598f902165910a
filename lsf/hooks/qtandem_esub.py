#!/usr/bin/python3
"""What esub.qpu says of a job: its request for a QPU as LSF's own counted index, or why it is refused.

Runs as `python3 -I` at the client, as the submitting user, on Python 3.6 with the standard library alone. Ends with 0,
or with 1 after a text for the user.
"""

import os
import pwd
import re
import sys

# qtandem:settings (written by `qtandem install lsf`)
CLUSTER = ""
SOCKET = "/run/qtandem/qtandem.sock"
NAMES = "/run/qtandem/names"
DEADLINE_MS = 40
PROFILE = ""
# 0 for an LSF in which one duration holds for all that a job reserves
DURATIONS = 1
# qtandem:end
# qtandem:include textcalls.py
# qtandem:include rejects.py
# qtandem:include resreq.py

PLAIN = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)(?::([1-9][0-9]{0,4}))?\Z")
NAMED = re.compile(r"[A-Z][A-Z0-9_]*\Z")
# A change goes back to LSF as one line; between words of a requirement these are blanks.
BREAKS = re.compile(r"[\t\n\r\f\v]+")
UNPRINTED = re.compile("[\0-\x08\x0e-\x1f\x7f]")
# A file of job parameters is small; this one was not written by LSF.
MAX_PARAMETERS = 1 << 20


# ---- LSF's file of job parameters
def parameters(text, again=False):
    """`NAME="value"` or `NAME=value` a line; a quote in a value has a backslash before it, nothing else has.

    Several -R are one requirement, but not `again`, in the file of changes: there the last one holds.
    """
    found, lines = {}, text.split("\n")
    at = 0
    while at < len(lines):
        name, equals, value = lines[at].partition("=")
        at += 1
        if not equals or not NAMED.match(name):
            continue
        if value.startswith('"'):
            # A value with line breaks goes on to the line that its quote ends.
            while at < len(lines) and not ends(value, lines[at]):
                value += "\n" + lines[at]
                at += 1
            value = value.rstrip()[1:-1].replace('\\"', '"')
        more_of_it = name == "LSB_SUB_RES_REQ" and name in found and not again
        found[name] = "%s %s" % (found[name], value) if more_of_it else value
    return found


def ends(value, following):
    """Whether the value ends here. A backslash before the quote is the value's own where another parameter follows."""
    text = value.rstrip()
    if len(text) < 2 or not text.endswith('"'):
        return False
    return not text.endswith('\\"') or not following or NAMED.match(following.partition("=")[0]) is not None


def read(path):
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read(MAX_PARAMETERS)
    except FileNotFoundError:
        return ""


def line(name, value):
    return '%s="%s"\n' % (name, value.replace('"', '\\"'))


# ---- what the job asks for
def from_additional(text):
    """The arguments of `qpu(…)` in the text of `bsub -a`, or None."""
    match = re.search(r"(?:^|\s)qpu\s*\(([^()]*)\)", text)
    return match.group(1) if match else None


def from_words(words):
    """A request for any QPU, made from conditions such as `qpu_ready==1 && qpu_qubits>=100`."""
    keys = {}
    for word, operator, number in words:
        if word == "qubits" and operator in (">=", ">", "=="):
            keys[word] = max(keys.get(word, 0), number + (operator == ">"))
        elif word in ("queue", "wait") and operator in ("<=", "<", "=="):
            most = max(0, number - (operator == "<"))
            keys[word] = min(keys.get(word, most), most)
    return ":".join(["any", *("%s=%d" % pair for pair in sorted(keys.items()))])


class Wish:
    """What one submission or change asks for: `request` in the common grammar, `native` pairs of its own -R."""

    def __init__(self, given, arguments, environment):
        self.written = given.get("LSB_SUB_RES_REQ", "")
        self.requirement = BREAKS.sub(" ", self.written)
        if UNPRINTED.search(self.requirement):
            raise Reject("your -R has a control character in it; write it with letters, digits and signs alone")
        self.change = given.get("LSB_SUB_MODIFY", "") == "Y"
        self.native = asked(self.requirement)
        additional = from_additional(given.get("LSB_SUB_ADDITIONAL", ""))
        self.explicit = ",".join(part.strip() for part in arguments if part.strip()) or (additional or "").strip()
        if self.change and not self.requirement:
            if self.explicit:
                raise Reject("bmod puts a new -R in the place of the old one: give -R too, with all that the job needs")
            self.request = ""
            return
        self.request = self.explicit or ("" if self.native else environment.get("QRMI_QPU_RESOURCES", "").strip())
        words = wanted_words(self.requirement)
        if not self.request and not self.native and words is not None:
            self.request = from_words(words)


def alone(wish):
    """Without the daemon: the index of one plain, known name. Its sensor is closed anyway by then."""
    match = PLAIN.match(wish.request)
    name, slots = (match.group(1), int(match.group(2) or 1)) if match else ("", 0)
    for row in (row.split("\t") for row in read(NAMES).splitlines()):
        if len(row) != 3 or not row[2].isdigit():
            continue
        mine = wish.native == {row[1]: wish.native.get(row[1])} if wish.native else name == row[0]
        asks = wish.native.get(row[1], slots)
        if mine and asks <= int(row[2]) and (not wish.request or (name, slots) == (row[0], asks)):
            return [(row[1], asks)]
    raise unanswered()


def pairs(text):
    """`qpu_fez=2,qpu_x=1` as pairs of native name and slots."""
    found = [re.match(r"qpu_([A-Za-z0-9_]+)=([0-9]+)\Z", part.strip()) for part in text.split(",") if part.strip()]
    if not found or not all(found):
        raise OSError("not an answer of qtandem")
    return [(match.group(1), int(match.group(2))) for match in found]


def granted(wish, given):
    """The pairs to write into the job, None where it asks for no QPU. Raises `Reject`."""
    if not wish.request and not wish.native:
        return None
    user = pwd.getpwuid(os.getuid())
    queues = given.get("LSB_SUB_QUEUE", "").split()
    values = {
        "manager": "lsf",
        "cluster": CLUSTER,
        "uid": user.pw_uid,
        "user": user.pw_name,
        "account": given.get("LSB_SUB_PROJECT_NAME"),
        # Of several queues LSF takes one that fits.
        "partition": queues[0] if len(queues) == 1 else "",
        "request": wish.request,
        "native": ",".join("qpu_%s=%d" % pair for pair in sorted(wish.native.items())),
    }
    try:
        answer = ask("POST", "/v1/submit", values, DEADLINE_MS / 1000.0)
        verdict = answer.get("verdict")
        if verdict == "admit":
            if answer.get("message"):
                sys.stderr.write("qtandem: %s\n" % " ".join(answer["message"].split()))
            return pairs(answer.get("native.R", ""))
    except Refused as error:
        raise Reject(error.words, error.code)
    except OSError:
        return alone(wish)
    if verdict == "none":
        return None
    raise rejection(answer)


def main(arguments):
    given = parameters(read(os.environ.get("LSB_SUB_PARM_FILE")))
    given.update(parameters(read(os.environ.get("LSB_SUB_MODIFY_FILE")), again=True))
    try:
        wish = Wish(given, arguments, os.environ)
        found = granted(wish, given)
        if found is None:
            return 0
        text = merged(wish.requirement, found, bool(DURATIONS))
    except (Reject, Malformed) as error:
        why = error if isinstance(error, Reject) else Reject(str(error))
        sys.stderr.write("qtandem: %s\n" % " ".join(str(why).split()))
        return 1
    if not DURATIONS and text != merged(wish.requirement, found):
        sys.stderr.write("qtandem: this LSF would let the QPU go after your duration; your rusage is without it now\n")
    lines = line("LSB_SUB_RES_REQ", text) if text != wish.written else ""
    if PROFILE and not wish.change and not given.get("LSB_SUB3_APP"):
        lines += line("LSB_SUB3_APP", PROFILE)
    with open(os.environ["LSB_SUB_MODIFY_FILE"], "a", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

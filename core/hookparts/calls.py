# ---- calls of the daemon, from core/hookparts/calls.py
import http.client
import json
import signal
import socket

MAX_ANSWER = 1 << 20


class Deadline(Exception):
    pass


class Refused(Exception):
    """The daemon answered, and will answer the same next time."""


class UnixConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def within(seconds, function, *arguments):
    """Call the function; `Deadline` when it takes longer in all, however slowly its peer drips."""

    def ring(_number, _frame):
        raise Deadline("no answer within %g s" % seconds)

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def exchange(method, path, body):
    connection = UnixConnection("qtandem", timeout=CALL_S)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json", "Accept": "application/json"})
        answer = connection.getresponse()
        data = answer.read(MAX_ANSWER)
        return answer.status, json.loads(data.decode("utf-8"))
    finally:
        connection.close()


def call(method, path, body=None):
    """The answer as a dict. Raises `Refused` for a refusal, OSError or `Deadline` where there is no answer."""
    try:
        status, answer = within(CALL_S, exchange, method, path, body)
    except (http.client.HTTPException, ValueError) as error:
        raise OSError("not an answer of qtandem: %r" % (error,))
    if not isinstance(answer, dict):
        raise OSError("not an answer of qtandem")
    if status >= 500:
        raise OSError(str(answer.get("message", "status %d" % status)))
    if status != 200:
        raise Refused("%s [%s]" % (answer.get("message", "refused"), answer.get("code", status)))
    return answer


# ---- end of core/hookparts/calls.py

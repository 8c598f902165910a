# ---- calls of the daemon in its text form, from core/hookparts/textcalls.py
# For hooks inside a manager's own process: no signal, no thread, nothing kept from one call to the next.
import socket
import time
from urllib.parse import quote, unquote

MAX_ANSWER = 1 << 20


class Refused(Exception):
    """The daemon answered, and will answer the same next time."""

    def __init__(self, words, code):
        super().__init__("%s [%s]" % (words, code))
        self.words, self.code = words, code


def ask(method, path, values, seconds):
    """The answer as a flat dict. Raises `Refused` for a refusal, OSError where there is no answer.

    `seconds` are for all of it, however slowly the other side drips; after them it is a `socket.timeout`.
    """
    until = time.monotonic() + seconds
    lines = ["%s=%s\n" % (key, quote(str(value))) for key, value in values.items() if value not in (None, "")]
    body = "".join(lines).encode("utf-8")
    head = "%s %s HTTP/1.1\r\nHost: qtandem\r\nContent-Type: text/plain\r\nAccept: text/plain\r\n" % (method, path)
    data = ("%sConnection: close\r\nContent-Length: %d\r\n\r\n" % (head, len(body))).encode("ascii") + body
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(left(until))
        connection.connect(SOCKET)
        connection.settimeout(left(until))
        connection.sendall(data)
        answer = bytearray()
        while len(answer) <= MAX_ANSWER:
            connection.settimeout(left(until))
            more = connection.recv(65536)
            if not more:
                break
            answer += more
    finally:
        connection.close()
    return understood(bytes(answer))


def left(until):
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise socket.timeout("no answer in time")
    return seconds


def understood(answer):
    head, end, text = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not end or len(words) < 2 or not words[1].isdigit():
        raise OSError("not an answer of qtandem")
    pairs = (line.partition("=") for line in text.decode("utf-8", "replace").splitlines())
    found = {key: unquote(value) for key, _, value in pairs}
    status = int(words[1])
    if status >= 500:
        raise OSError(found.get("message") or "status %d" % status)
    if status != 200:
        raise Refused(found.get("message", "refused"), found.get("code", status))
    return found


# ---- end of core/hookparts/textcalls.py

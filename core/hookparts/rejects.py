# ---- what a user is told whose job is not taken, from core/hookparts/rejects.py
class Reject(Exception):
    """The job is not taken: words for its user, and a code of docs/errors.md that they do not have yet."""

    def __init__(self, words, code="bad-request"):
        super().__init__("%s [%s]" % (words, code) if code else words)


def rejection(answer):
    return Reject(answer.get("message") or "refused", answer.get("code") or "bad-request")


def unanswered():
    return Reject("qtandem does not answer just now; try again in a minute", "daemon-unreachable")


# ---- end of core/hookparts/rejects.py

"""Every error that a user or an admin can meet: one code a reason, one table for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Whose turn it is to act."""

    USER = "user"
    SITE = "site"
    VENDOR = "vendor"
    BUG = "bug"


# Process exit status of the command line, by kind of refusal.
EXIT_BUG, EXIT_USAGE, EXIT_REFUSED, EXIT_LATER, EXIT_SITE, EXIT_VENDOR = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Kind:
    """What one error code means.

    `retryable`: the same call may succeed later without any change by its author.
    `http`: status of the daemon's answer. `exit_code`: status of the command line.
    """

    code: str
    fault: Fault
    http: int
    exit_code: int
    retryable: bool
    summary: str
    remedy: str


def _kinds(*rows: Kind) -> dict[str, Kind]:
    return {row.code: row for row in rows}


_U, _S, _V, _B = Fault.USER, Fault.SITE, Fault.VENDOR, Fault.BUG

KINDS: dict[str, Kind] = _kinds(
    Kind(
        "bad-request",
        _U,
        400,
        EXIT_USAGE,
        False,
        "The request cannot be read.",
        "Write it as name[:slots][:key=value], for example ibm_fez or any:qubits=100.",
    ),
    Kind(
        "unknown-resource",
        _U,
        404,
        EXIT_REFUSED,
        False,
        "No resource or class has this name.",
        "List the names with: qtandem resources",
    ),
    Kind(
        "impossible",
        _U,
        422,
        EXIT_REFUSED,
        False,
        "No configured resource can ever meet the constraints.",
        "Relax the constraint; qtandem resources shows what there is.",
    ),
    Kind(
        "too-many-slots",
        _U,
        422,
        EXIT_REFUSED,
        False,
        "More slots are asked for than the resource has.",
        "Ask for at most the slots shown by: qtandem resources",
    ),
    Kind(
        "not-allowed",
        _U,
        403,
        EXIT_REFUSED,
        False,
        "The user or account may not use this resource.",
        "Ask the site for access, or choose another resource.",
    ),
    Kind(
        "unreachable",
        _U,
        422,
        EXIT_REFUSED,
        False,
        "The partition or nodes cannot reach the resource.",
        "Submit to a partition that reaches it.",
    ),
    Kind(
        "ambiguous",
        _U,
        422,
        EXIT_REFUSED,
        False,
        "The forms used in one submission disagree.",
        "Name the resource in one way only.",
    ),
    Kind(
        "needs-selection",
        _U,
        422,
        EXIT_REFUSED,
        False,
        "Ranking by score is not there yet.",
        "Rank by=queue or by=cost instead.",
    ),
    Kind(
        "not-yours",
        _U,
        403,
        EXIT_REFUSED,
        False,
        "The run, lease, claim or task belongs to somebody else.",
        "Act on your own only.",
    ),
    Kind(
        "not-authorised",
        _U,
        403,
        EXIT_REFUSED,
        False,
        "This caller may not report this event.",
        "Lifecycle events come from root or the manager's service user, on a host that the site listed.",
    ),
    Kind(
        "no-such-run",
        _U,
        404,
        EXIT_REFUSED,
        False,
        "No such run, job, lease, claim or task is known.",
        "See what there is: qtandem leases, qtandem claim list, qtandem task list",
    ),
    Kind(
        "no-credential",
        _U,
        409,
        EXIT_REFUSED,
        False,
        "The resource executes with the user's own key, and the user has registered none.",
        "Register yours: qtandem credentials add RESOURCE",
    ),
    Kind(
        "in-use",
        _U,
        409,
        EXIT_LATER,
        True,
        "An open lease still depends on it.",
        "Wait until your jobs and claims on the resource have ended: qtandem leases",
    ),
    Kind(
        "no-lease",
        _U,
        409,
        EXIT_REFUSED,
        False,
        "There is no held lease on this resource here.",
        "Run inside a job that was submitted with --qpu, or make a claim.",
    ),
    Kind(
        "bad-payload",
        _U,
        422,
        EXIT_USAGE,
        False,
        "The resource cannot execute this payload.",
        "Send OpenQASM 2, OpenQASM 3 or a primitive payload that the resource takes.",
    ),
    Kind(
        "unsupported",
        _U,
        422,
        EXIT_REFUSED,
        False,
        "The vendor or manager cannot do this.",
        "See the capabilities in: qtandem resources --json",
    ),
    Kind(
        "too-large",
        _U,
        413,
        EXIT_USAGE,
        False,
        "The payload is over the limit.",
        "Split the work into smaller tasks.",
    ),
    Kind(
        "task-failed",
        _U,
        409,
        EXIT_VENDOR,
        False,
        "The task did not complete.",
        "Read its log: qtandem task logs ID",
    ),
    Kind(
        "task-not-ready",
        _U,
        409,
        EXIT_LATER,
        True,
        "The task has no result yet.",
        "Wait for it: qtandem task result ID --wait",
    ),
    Kind(
        "not-available",
        _V,
        503,
        EXIT_LATER,
        True,
        "The resource takes no work now.",
        "The job pends until it does; qtandem explain JOB tells why.",
    ),
    Kind(
        "slots-busy",
        _U,
        503,
        EXIT_LATER,
        True,
        "All slots of the resource are leased.",
        "Wait for a slot, or choose another resource.",
    ),
    Kind(
        "daemon-unreachable",
        _S,
        503,
        EXIT_LATER,
        True,
        "qtandemd did not answer.",
        "Try again shortly; admins: systemctl status qtandemd, on other hosts qtandem-relay",
    ),
    Kind(
        "manager-unreachable",
        _S,
        503,
        EXIT_LATER,
        True,
        "The workload manager did not answer.",
        "Nothing was changed; it is tried again by itself. Admins: qtandem doctor MANAGER",
    ),
    Kind(
        "command-failed",
        _S,
        500,
        EXIT_SITE,
        False,
        "A command of the workload manager failed.",
        "The message holds the command and what it printed; qtandem doctor MANAGER says what the manager lacks.",
    ),
    Kind(
        "bad-config",
        _S,
        500,
        EXIT_SITE,
        False,
        "The configuration is wrong.",
        "Mend the line that is named, then: qtandem config check",
    ),
    Kind(
        "no-provider",
        _S,
        501,
        EXIT_SITE,
        False,
        "No provider for this type is there yet.",
        "Install the extra that is named, or remove the resource.",
    ),
    Kind(
        "no-worker",
        _S,
        503,
        EXIT_LATER,
        True,
        "No process can be started that would speak to the vendor.",
        "Look at qtandem-launcher (systemctl status qtandem-launcher); it is tried again by itself.",
    ),
    Kind(
        "bad-credentials",
        _S,
        502,
        EXIT_SITE,
        False,
        "The vendor refused the site's credential.",
        "Renew the key file that the configuration names.",
    ),
    Kind(
        "policy",
        _V,
        403,
        EXIT_VENDOR,
        False,
        "The vendor's plan does not permit this.",
        "Read the vendor's own words in the message.",
    ),
    Kind(
        "vendor-error",
        _V,
        502,
        EXIT_VENDOR,
        True,
        "The vendor's service failed.",
        "Try again shortly; what qtandem does by itself, it tries again.",
    ),
    Kind(
        "vendor-timeout",
        _V,
        504,
        EXIT_VENDOR,
        True,
        "The vendor did not answer within the deadline.",
        "Try again shortly; what qtandem does by itself, it tries again.",
    ),
    Kind(
        "run-ended",
        _U,
        409,
        EXIT_LATER,
        True,
        "The run has ended, or is being ended.",
        "Nothing is to be done; a new attempt gets its own lease.",
    ),
    Kind(
        "not-enrolled",
        _S,
        403,
        EXIT_SITE,
        False,
        "The certificate or enrolment token of the node is not accepted.",
        "On the daemon's host: qtandem relay token NODE; then on the node: qtandem relay enrol.",
    ),
    Kind(
        "wrong-server",
        _S,
        502,
        EXIT_SITE,
        False,
        "The server is not the one whose fingerprint was given.",
        "Compare with the fingerprint that qtandem relay init printed; nothing was sent.",
    ),
    Kind(
        "already-exists",
        _S,
        409,
        EXIT_REFUSED,
        False,
        "Something of this name is there already.",
        "Keep it, or say explicitly that it shall be replaced.",
    ),
    Kind(
        "too-many-calls",
        _U,
        429,
        EXIT_LATER,
        True,
        "The user has too many calls open on this host.",
        "Let some of them finish first.",
    ),
    Kind(
        "too-many-starts",
        _U,
        429,
        EXIT_LATER,
        True,
        "The job was started, or put back, many times in a short while; each start costs its QPU a session.",
        "Nothing, if that was a fault that is over: it starts again by itself. Else mend what ends it, or bkill it.",
    ),
    Kind(
        "too-many-tasks",
        _U,
        429,
        EXIT_LATER,
        True,
        "The user has as many tasks under way as the daemon keeps for one user.",
        "Wait for some of them: qtandem task list",
    ),
    Kind(
        "bad-plan",
        _U,
        422,
        EXIT_USAGE,
        False,
        "The planner cannot read its input.",
        "Mend the value that is named; docs/planner.md describes the format.",
    ),
    Kind(
        "no-planner",
        _S,
        501,
        EXIT_SITE,
        False,
        "The planner cannot be used here.",
        "Install the extra planner beside the daemon; of the managers, Slurm can see plans through.",
    ),
    Kind(
        "internal",
        _B,
        500,
        EXIT_BUG,
        False,
        "A fault in qtandem.",
        "Report it with the daemon's log line of the same time (journalctl -u qtandemd).",
    ),
)


class QtandemError(Exception):
    """An error with everything its reader needs.

    `code` is a key of `KINDS`. `message` says what was asked and why not; `remedy` what to type instead
    (default: that of the code); `retry_after` seconds until another try makes sense; `cause` the words of
    whoever failed below us (a vendor, a command).
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        remedy: str | None = None,
        cause: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.kind = KINDS[code]
        self.message = message
        self.remedy = self.kind.remedy if remedy is None else remedy
        self.cause = cause
        self.retry_after = retry_after
        super().__init__(message)

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def retryable(self) -> bool:
        return self.kind.retryable

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.to_wire(),)

    def one_line(self) -> str:
        """`message (cause). remedy [code]` without line breaks, for a log or a one-line channel."""
        return " ".join(f"{self.said()}. {self.remedy} [{self.code}]".split())

    def said(self) -> str:
        """`message (cause)` without line breaks, where the remedy has a place of its own."""
        cause = f" ({self.cause})" if self.cause else ""
        return " ".join(f"{self.message}{cause}".split())

    def lines(self) -> list[str]:
        """What a terminal shows: what and why, then what to do, then when to try again."""
        out = [f"{self.message} [{self.code}]"]
        if self.cause:
            out.append(f"cause: {self.cause}")
        if self.remedy:
            out.append(self.remedy)
        if self.retry_after is not None:
            out.append(f"try again in {self.retry_after:.0f} s")
        return out

    def to_wire(self) -> dict[str, object]:
        return {
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "cause": self.cause,
            "retryable": self.retryable,
            "retry_after": self.retry_after,
        }

    @classmethod
    def from_wire(cls, body: dict[str, object]) -> QtandemError:
        """Rebuild what `to_wire` made; an unknown code (from a newer peer) becomes `internal`."""
        code = str(body.get("code"))
        cause = body.get("cause")
        retry_after = body.get("retry_after")
        return cls(
            code if code in KINDS else "internal",
            str(body.get("message", "")),
            remedy=str(body["remedy"]) if body.get("remedy") is not None else None,
            cause=str(cause) if cause else None,
            retry_after=float(retry_after) if isinstance(retry_after, int | float) else None,
        )


def _rebuild(body: dict[str, object]) -> QtandemError:
    return QtandemError.from_wire(body)

"""What the queue tells the daemon, and what it hears: submission, start, environment, end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qtandem.core.client.calls import as_object
from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.local.store import End, Row

START_DEADLINE_S = 20.0
MANAGER = "local"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`admit`, `wait` (ask again at once) or `hold` (not before `retry_after` seconds)."""

    word: str
    run: str = ""
    message: str = ""
    retry_after: float = 0.0


class Gate:
    """The calls of one cluster. Blocking; raises `QtandemError`."""

    def __init__(self, daemon: Daemon, cluster: str) -> None:
        self._daemon = daemon
        self._cluster = cluster

    def submit(self, request: str, uid: int, user: str, account: str | None) -> tuple[str, str]:
        """The canonical request and the native text to store with the job; raises why it is refused."""
        answer = self._post(
            "submit", {"request": request, "uid": uid, "user": user, "account": account or ""}, deadline_s=10.0
        )
        if answer["verdict"] == "reject":
            raise QtandemError.from_wire({**answer, "remedy": ""})  # the message says it already
        return str(answer.get("request", "")), str(answer.get("native", {}).get("qpus", ""))

    def start(self, job: Row, node: str) -> Verdict:
        call = {
            "job": str(job.id),
            "attempt": job.attempt,
            "uid": job.uid,
            "user": job.user,
            "account": job.account or "",
            "nodes": node,
            "native": job.native,
            "can_requeue": job.can_requeue,
            "time_limit_s": job.time_limit_s,
        }
        answer = self._post("start", call, deadline_s=START_DEADLINE_S)
        return Verdict(
            str(answer["verdict"]),
            str(answer.get("run", "")),
            str(answer.get("message", "")),
            float(answer.get("retry_after") or 0.0),
        )

    def environment(self, run: str) -> dict[str, str]:
        answer = as_object(self._daemon.get("runs", run, "environment"))
        return {str(key): str(value) for key, value in as_object(answer["env"]).items()}

    def end(self, end: End) -> None:
        self._post("end", {"job": str(end.job), "attempt": end.attempt, "exit_code": end.exit_code})

    def _post(self, event: str, call: dict[str, Any], deadline_s: float | None = None) -> dict[str, Any]:
        body = {"manager": MANAGER, "cluster": self._cluster, **call}
        return as_object(self._daemon.post(event, body=body, deadline_s=deadline_s))

"""Passing on what a run's own program asks of IBM's compute service, within the run's session and backend.

The program speaks the vendor's protocol and has no credential; this side has it. What is passed on is made anew: path
by a closed list, query and body field by field where they say whose jobs are meant, no header of the caller's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import requests

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call, unreadable
from qtandem.core.providers.ibm.http import TIMEOUT_S, IamAuth, adapter, broken

VENDOR = "IBM Quantum"
MOST_BYTES = 16 * 2**20
MOST_TAGS = 8
_ID = r"[A-Za-z0-9\-]{1,64}"
_JOB = re.compile(rf"jobs/(?P<id>{_ID})(?P<rest>/results|/interim_results|/logs|/metrics)?")
_CANCEL = re.compile(rf"jobs/(?P<id>{_ID})/cancel")
_LISTING = frozenset(
    {"limit", "offset", "tags", "pending", "created_after", "created_before", "sort", "exclude_params"}
)
_DETAILS = frozenset({"exclude_params", "calibration_id", "updated_before"})
_CALL = Call(VENDOR, "pass on a call of a job")


class Gate:
    """Between one run's program and the vendor. `session` is the run's own; its owner ends it, not the program."""

    def __init__(self, auth: IamAuth, base: str, backend: str, mark: str) -> None:
        self._base, self._backend, self._mark = base, backend, mark
        self._http = requests.Session()
        self._http.auth = auth
        # Neither the surroundings of this process nor a vendor's cookie may change where a call goes.
        self._http.trust_env = False
        for scheme in ("http://", "https://"):
            self._http.mount(scheme, adapter())
        self._auth = auth
        self._known: dict[str, str] = {}

    def pass_on(
        self, session: str, method: str, path: str, query: Mapping[str, list[str]], body: str
    ) -> dict[str, object]:
        """`status`, `type`, `retry_after` and `body` of the answer. Raises `not-allowed` for what is not the run's."""
        match (method, path):
            case ("GET", "backends"):
                return self._send("GET", path)
            case ("GET", _) if path.startswith(f"backends/{self._backend}/"):
                return self._backend_of(path, query)
            case ("POST", "sessions"):
                # A program that opens a session gets the one that it has.
                return self._send("GET", f"sessions/{session}")
            case ("GET", _) if path == f"sessions/{session}":
                return self._send("GET", path)
            case ("PATCH" | "DELETE", _) if path in (f"sessions/{session}", f"sessions/{session}/close"):
                return {"status": 204, "type": "", "retry_after": "", "body": ""}
            case ("POST", "jobs"):
                return self._send("POST", path, body=json.dumps(self._job(session, body)))
            case ("GET", "jobs"):
                return self._send("GET", path, _some(query, _LISTING) | {"session_id": [session]})
        return self._of_job(session, method, path, query)

    def _backend_of(self, path: str, query: Mapping[str, list[str]]) -> dict[str, object]:
        if path.rpartition("/")[2] not in ("status", "configuration", "properties", "defaults"):
            raise _refused(path)
        return self._send("GET", path, _some(query, _DETAILS))

    def _of_job(self, session: str, method: str, path: str, query: Mapping[str, list[str]]) -> dict[str, object]:
        found = {"GET": _JOB, "POST": _CANCEL}[method].fullmatch(path) if method in ("GET", "POST") else None
        if found is None or self._session_of(found["id"]) != session:
            raise _refused(path)
        return self._send(method, path, _some(query, _DETAILS) if method == "GET" else {})

    def _job(self, session: str, body: str) -> dict[str, Any]:
        try:
            job = json.loads(body)
        except ValueError:
            job = None
        if not isinstance(job, dict):
            raise QtandemError("bad-request", "The job is no JSON object")
        if job.get("backend") != self._backend:
            raise QtandemError("not-allowed", f"The lease is on {self._backend}, not on the job's backend")
        if job.get("session_id") not in (None, session):
            raise QtandemError("not-allowed", "The job names a session that is not its run's")
        tags = [tag for tag in job.get("tags") or [] if isinstance(tag, str)][: MOST_TAGS - 1]
        job.pop("start_session", None)
        # The mark has the end of the lease cancel what the program leaves behind.
        return {**job, "session_id": session, "tags": [*tags, self._mark]}

    def _session_of(self, job: str) -> str:
        if job not in self._known:
            answer = self._send("GET", f"jobs/{job}", {"exclude_params": ["true"]})
            try:
                found = json.loads(str(answer["body"])) if answer["status"] == 200 else {}
            except ValueError:
                found = {}
            owner = found.get("session_id") if isinstance(found, dict) else None
            if not isinstance(owner, str):
                return ""
            if len(self._known) >= 10_000:
                self._known.clear()
            self._known[job] = owner
        return self._known[job]

    def _send(
        self, method: str, path: str, query: Mapping[str, list[str]] | None = None, body: str | None = None
    ) -> dict[str, object]:
        answer = self._once(method, path, query, body)
        if answer["status"] == 401:
            self._auth.renew()
            answer = self._once(method, path, query, body)
        return answer

    def _once(
        self, method: str, path: str, query: Mapping[str, list[str]] | None, body: str | None
    ) -> dict[str, object]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            with self._http.request(
                method,
                f"{self._base}/{path}",
                params=dict(query or {}),
                data=body.encode() if body is not None else None,
                headers=headers,
                timeout=TIMEOUT_S,
                allow_redirects=False,
                stream=True,
            ) as answer:
                content = answer.raw.read(MOST_BYTES + 1, decode_content=True)
        except requests.RequestException as error:
            raise broken(_CALL, error) from error
        finally:
            self._http.cookies.clear()
        if 300 <= answer.status_code < 400 or len(content) > MOST_BYTES:
            raise unreadable(_CALL, b"a redirection, or too much")
        return {
            "status": answer.status_code,
            "type": answer.headers.get("Content-Type", "").partition(";")[0].strip().lower(),
            "retry_after": answer.headers.get("Retry-After", ""),
            "body": content.decode("utf-8", "replace"),
        }


def _some(query: Mapping[str, list[str]], names: frozenset[str]) -> dict[str, list[str]]:
    return {name: list(values) for name, values in query.items() if name in names}


def _refused(path: str) -> QtandemError:
    return QtandemError("not-allowed", f"A run may not ask for {path[:80]!r} with its lease")

"""Passing on what a run's own program asks of IBM's compute service, within the run's session and backend."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import requests

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call, unreadable
from qtandem.core.providers.ibm.http import TIMEOUT_S, IamAuth, adapter, broken
from qtandem.core.providers.passing import MOST_BYTES, Asked, Passed, cleaned, refused

VENDOR = "IBM Quantum"
MOST_TAGS = 8
_OF_BACKEND = ("status", "configuration", "properties", "defaults")
_ID = r"[A-Za-z0-9\-]{1,64}"
_JOB = re.compile(rf"jobs/(?P<id>{_ID})(?P<rest>/results|/interim_results|/logs|/metrics)?")
_CANCEL = re.compile(rf"jobs/(?P<id>{_ID})/cancel")
_LISTING = ("limit", "offset", "tags", "pending", "created_after", "created_before", "sort", "exclude_params")
_DETAILS = ("exclude_params", "calibration_id", "updated_before")
_CALL = Call(VENDOR, "pass on a call of a job")


class Gate:
    """Between one run's program and the vendor. `session` is the run's own; its owner ends it, not the program."""

    def __init__(self, auth: IamAuth, base: str, backend: str, mark: str) -> None:
        self._base, self._backend, self._mark = base, backend, mark
        self._http = requests.Session()
        self._http.auth = auth
        # No file of this account may change which credential goes with a call; the site's way out still counts.
        self._http.trust_env = False
        if not proxy_bypass(urlsplit(base).hostname or ""):
            self._http.proxies.update(getproxies())
        for scheme in ("http://", "https://"):
            self._http.mount(scheme, adapter())
        self._auth = auth
        self._known: dict[str, str] = {}

    def pass_on(self, session: str, asked: Asked) -> Passed:
        """The answer; raises `not-allowed` for what is not the run's."""
        path = asked.path
        match (asked.method, path):
            case ("GET", "backends"):
                return self._send("GET", path)
            case ("GET", _) if path in [f"backends/{self._backend}/{what}" for what in _OF_BACKEND]:
                return self._send("GET", path, asked.some(*_DETAILS))
            case ("POST", "sessions"):
                # A program that opens a session gets the one that it has.
                return self._send("GET", f"sessions/{session}")
            case ("GET", _) if path == f"sessions/{session}":
                return self._send("GET", path)
            case ("PATCH" | "DELETE", _) if path in (f"sessions/{session}", f"sessions/{session}/close"):
                return Passed(204)
            case ("POST", "jobs"):
                return self._send("POST", path, body=json.dumps(self._job(session, asked)))
            case ("GET", "jobs"):
                return self._listed(session, self._send("GET", path, asked.some(*_LISTING) | {"session_id": [session]}))
        return self._of_job(session, asked)

    def _listed(self, session: str, answer: Passed) -> Passed:
        """Only the session's own jobs, whatever the vendor lists."""
        page = answer.document()
        rows = page.get("jobs")
        if not isinstance(rows, list):
            return answer
        own = [row for row in rows if isinstance(row, dict) and row.get("session_id") == session]
        return replace(answer, body=json.dumps({**page, "jobs": own}))

    def _of_job(self, session: str, asked: Asked) -> Passed:
        form = {"GET": _JOB, "POST": _CANCEL}.get(asked.method)
        found = form.fullmatch(asked.path) if form else None
        if found is None or self._session_of(found["id"]) != session:
            raise refused(asked.path)
        return self._send(asked.method, asked.path, asked.some(*_DETAILS) if asked.method == "GET" else {})

    def _job(self, session: str, asked: Asked) -> dict[str, Any]:
        job = asked.document()
        if job.get("backend") != self._backend:
            raise QtandemError("not-allowed", f"The lease is on {self._backend}, not on the job's backend")
        if job.get("session_id") not in (None, session):
            raise QtandemError("not-allowed", "The job names a session that is not its run's")
        named = job.get("tags")
        tags = [tag for tag in named if isinstance(tag, str)][: MOST_TAGS - 1] if isinstance(named, list) else []
        job.pop("start_session", None)
        # The mark has the end of the lease cancel what the program leaves behind.
        return {**job, "session_id": session, "tags": [*tags, self._mark]}

    def _session_of(self, job: str) -> str:
        if job not in self._known:
            answer = self._send("GET", f"jobs/{job}", {"exclude_params": ["true"]})
            owner = answer.document().get("session_id")
            if not isinstance(owner, str):
                return ""
            if len(self._known) >= 10_000:
                self._known.clear()
            self._known[job] = owner
        return self._known[job]

    def _send(
        self, method: str, path: str, query: Mapping[str, Sequence[str]] | None = None, body: str | None = None
    ) -> Passed:
        answer = self._once(method, path, query, body)
        if answer.status == 401:
            self._auth.renew()
            answer = self._once(method, path, query, body)
        return answer

    def _once(self, method: str, path: str, query: Mapping[str, Sequence[str]] | None, body: str | None) -> Passed:
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
        return Passed(
            answer.status_code,
            cleaned(content.decode("utf-8", "replace"), self._auth.secrets()),
            answer.headers.get("Content-Type", "").partition(";")[0].strip().lower(),
            answer.headers.get("Retry-After", ""),
        )

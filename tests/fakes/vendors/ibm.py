"""IBM: Cloud IAM, the Quantum Compute Service and the Quantum System API, as their clients see them.

Forms and status codes follow the published descriptions of the two interfaces. `log` is the vendor's record of
what changed: `acquire`, `release`, `task_start`, `task_stop`, `delete`.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import requests

from tests.fakes.vendors.kit import FakeServer, Reply, Request, page, route

APIKEY, CRN = "fake-api-key-0123456789", "crn:v1:bluemix:public:quantum-computing:us-east:a/1:2::"
BACKEND = "ibm_fake"
MAX_SHOTS = 5000
CONFIGURATION: dict[str, Any] = {
    "backend_name": BACKEND,
    "backend_version": "1.2.3",
    "n_qubits": 3,
    "basis_gates": ["cz", "rz", "sx", "x"],
    "coupling_map": [[0, 1], [1, 2]],
    "max_shots": MAX_SHOTS,
    "simulator": False,
    "gates": [],
}


def _value(name: str, value: float, unit: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "date": "2026-01-02T03:04:05Z"}


PROPERTIES: dict[str, Any] = {
    "backend_name": BACKEND,
    "backend_version": "1.2.3",
    "last_update_date": "2026-01-02T03:04:05Z",
    "general": [],
    "gates": [
        {
            "gate": "cz",
            "qubits": pair,
            "parameters": [_value("gate_error", error), _value("gate_length", 68, "ns")],
        }
        for pair, error in (([0, 1], 0.004), ([1, 2], 1))
    ],
    "qubits": [
        [_value("T1", 200 + each, "us"), _value("T2", 100, "us"), _value("readout_error", 0.01)] for each in range(3)
    ],
}


class FakeIbm(FakeServer):
    """What both interfaces share: IAM on the same port, the check of tokens, tasks that take `task_s` seconds."""

    harmless = ("/identity/token",)

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.apikeys = {APIKEY}
        self.tokens: set[str] = set()
        self.token_life_s = 3600
        self.task_s = 0.0
        self.queue: object = 0
        self.status = "online"
        self.reason = ""
        self.configuration = json.loads(json.dumps(CONFIGURATION))
        self.properties: dict[str, Any] | None = json.loads(json.dumps(PROPERTIES))
        self.jobs: dict[str, dict[str, Any]] = {}
        super().__init__()

    def error(self, status: int) -> object:
        return problem(9000 + status, f"scripted {status}")

    def handle(self, request: Request) -> Reply:
        if request.path != "/identity/token":
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if token not in self.tokens or request.headers.get("service-crn") != CRN:
                return Reply(401, problem(1200, "You are not authorized to perform this action."))
        return super().handle(request)

    @route("POST", "/identity/token")
    def token(self, request: Request) -> Reply:
        form = request.form()
        if form.get("apikey") not in self.apikeys:
            body = {"errorCode": "BXNIM0415E", "errorMessage": "Provided API key could not be found."}
            return Reply(400, body)
        token = f"token-{len(self.tokens)}-{uuid.uuid4().hex}"
        self.tokens.add(token)
        now = int(self.now())
        body = {"access_token": token, "token_type": "Bearer", "expires_in": self.token_life_s}
        return Reply(200, body | {"expiration": now + self.token_life_s})

    def note(self, event: str, **detail: Any) -> None:
        self.log.append({"event": event, "at": self.now(), **detail})

    def iso(self, at: float | None = None) -> str:
        return datetime.fromtimestamp(self.now() if at is None else at, UTC).isoformat().replace("+00:00", "Z")


class FakeCompute(FakeIbm):
    """The cloud. `plan` "open" permits no dedicated session. A program that says `takes 0.8 s` takes so long."""

    def __init__(self) -> None:
        self.plan = "premium"
        self.operational: object = True
        self.state_word = "active"
        self.listed = True
        self.sessions: dict[str, dict[str, Any]] = {}
        self.page_limit = 50
        super().__init__()

    @property
    def endpoint(self) -> str:
        return f"{self.url}/api/v1"

    def close_session(self, token: str, reason: str = "The session reached its maximum time.") -> None:
        """The session ends by itself."""
        with self.lock:
            self.sessions[token] |= {"state": "closed", "state_reason": reason, "accepting_jobs": False}

    def open_session(self, **more: Any) -> str:
        """Somebody opens one, with our credential or, given a `user_id`, with another."""
        with self.lock:
            token = str(uuid.uuid4())
            self.sessions[token] = {
                "id": token,
                "backend_name": BACKEND,
                "mode": "dedicated",
                "max_ttl": 28800,
                "active_ttl": 28800,
                "interactive_ttl": 60,
                "state": "open",
                "accepting_jobs": True,
                "user_id": "me",
                "elapsed_time": None,
                "created": self.iso(),
                **more,
            }
            return token

    @route("GET", "/api/v1/backends")
    def backends(self, request: Request) -> Reply:
        device = {
            "name": BACKEND,
            "status": {"name": self.status, "reason": self.reason},
            "is_simulator": False,
            "qubits": 3,
            "queue_length": self.queue,
        }
        other = device | {"name": "ibm_other", "queue_length": 7}
        return Reply(200, {"devices": [other, device] if self.listed else [other]})

    @route("GET", f"/api/v1/backends/{BACKEND}/status")
    def backend_status(self, request: Request) -> Reply:
        body = {"state": self.operational, "status": self.state_word, "message": "", "backend_version": "1.2.3"}
        return Reply(200, body | {"length_queue": self.queue})

    @route("GET", f"/api/v1/backends/{BACKEND}/configuration")
    def backend_configuration(self, request: Request) -> Reply:
        return Reply(200, self.configuration)

    @route("GET", f"/api/v1/backends/{BACKEND}/properties")
    def backend_properties(self, request: Request) -> Reply:
        if self.properties is None:
            return Reply(404, problem(1216, "Backend properties not found."))
        return Reply(200, self.properties)

    @route("POST", "/api/v1/sessions")
    def create_session(self, request: Request) -> Reply:
        body = request.json()
        if body.get("mode") not in ("dedicated", "batch") or body.get("backend") != BACKEND:
            return Reply(400, problem(1211, "The session is not valid."))
        if self.plan == "open" and body["mode"] == "dedicated":
            words = "You are not authorized to run a session when using the open plan."
            return Reply(400, problem(1352, words, "Create an instance of a different plan type or use batch mode."))
        token = self.open_session(mode=body["mode"], max_ttl=body.get("max_ttl", 28800))
        self.note("acquire", token=token)
        return Reply(200, self.sessions[token])

    @route("GET", "/api/v1/sessions/(?P<id>[^/]+)")
    def session(self, request: Request, id: str) -> Reply:
        return Reply(200, self.sessions[id]) if id in self.sessions else _no_session()

    @route("PATCH", "/api/v1/sessions/(?P<id>[^/]+)")
    def update_session(self, request: Request, id: str) -> Reply:
        session = self.sessions.get(id)
        if session is None:
            return _no_session()
        session["accepting_jobs"] = request.json()["accepting_jobs"]
        if not self._pending(id):
            session["state"] = "closed"
        self.note("release", token=id)
        return Reply(204)

    @route("DELETE", "/api/v1/sessions/(?P<id>[^/]+)/close")
    def cancel_session(self, request: Request, id: str) -> Reply:
        if id not in self.sessions:
            return _no_session()
        for job in self._pending(id):
            self._cancel(job)
        self.sessions[id] |= {"state": "closed", "accepting_jobs": False}
        self.note("release", token=id, cancelled=True)
        return Reply(204)

    @route("GET", "/api/v1/workloads")
    def workloads(self, request: Request) -> Reply:
        modes = {"session": "dedicated", "batch": "batch"}
        found = [
            {
                "id": each["id"],
                "created": each["created"],
                "backend": BACKEND,
                "instance": CRN,
                "user_id": each["user_id"],
                "accepting_jobs": each["accepting_jobs"],
                "mode": request.one("mode"),
                "status": "in_progress" if each["state"] == "active" else "pending",
                "tags": [],
            }
            for each in reversed(self.sessions.values())
            if each["state"] != "closed"
            and each["mode"] == modes.get(request.one("mode") or "")
            and (request.one("user") != "me" or each["user_id"] == "me")
            and request.one("backend", BACKEND) == BACKEND
        ]
        limit = min(int(request.one("limit") or 10), self.page_limit)
        start = int(request.one("next") or 0)
        rows, following = page(found, start, limit)
        body = {"workloads": rows, "total_count": len(found), "limit": limit}
        if following is not None:
            body["next"] = {"href": f"{self.endpoint}/workloads?limit={limit}&next={following}"}
        return Reply(200, body)

    @route("POST", "/api/v1/jobs")
    def run_job(self, request: Request) -> Reply:
        body = request.json()
        session = self.sessions.get(body.get("session_id", ""))
        if session is None:
            return Reply(404, problem(1217, "The session was not found."))
        if not session["accepting_jobs"]:
            return Reply(400, problem(1218, "The session is closed and takes no more jobs."))
        if body["program_id"] not in ("sampler", "estimator", "noise-learner", "executor"):
            return Reply(404, problem(1201, f"Program {body['program_id']} not found."))
        id = f"d{len(self.jobs):019d}"
        session["state"] = "active"
        self.jobs[id] = {
            "id": id,
            "backend": BACKEND,
            "program": {"id": body["program_id"]},
            "created": self.iso(),
            "session_id": session["id"],
            "tags": body.get("tags", []),
            "cost": body.get("cost"),
            "state": {"status": "Queued"},
            "status": "Queued",
            "private": False,
            "params": body["params"],
            "at": self.now(),
            "polls": 0,
            "takes_s": _takes_s(body["params"]),
        }
        self.note("task_start", task=id, token=session["id"], tags=body.get("tags", []))
        return Reply(200, {"id": id, "backend": BACKEND})

    @route("GET", "/api/v1/jobs")
    def list_jobs(self, request: Request) -> Reply:
        tags, session, pending = set(request.query.get("tags", [])), request.one("session_id"), request.one("pending")
        rows = [
            self._shown(job)
            for job in reversed(self.jobs.values())
            if tags <= set(job["tags"]) and session in (None, job["session_id"])
        ]
        rows = [
            row for row in rows if pending is None or (row["status"] in ("Queued", "Running")) == (pending == "true")
        ]
        limit, offset = int(request.one("limit") or 200), int(request.one("offset") or 0)
        return Reply(200, {"jobs": rows[offset : offset + limit], "count": len(rows), "limit": limit, "offset": offset})

    @route("GET", "/api/v1/jobs/(?P<id>[^/]+)")
    def job(self, request: Request, id: str) -> Reply:
        return Reply(200, self._shown(self.jobs[id])) if id in self.jobs else _no_job(id)

    @route("GET", "/api/v1/jobs/(?P<id>[^/]+)/results")
    def results(self, request: Request, id: str) -> Reply:
        if id not in self.jobs:
            return _no_job(id)
        job = self.jobs[id]
        # As text, whatever it holds: clients that are made of the interface's description refuse it otherwise.
        done = self._shown(job)["status"] == "Completed"
        return Reply(200, samples(job["params"], id), {}, "text/plain") if done else Reply(204)

    @route("GET", "/api/v1/jobs/(?P<id>[^/]+)/logs")
    def logs(self, request: Request, id: str) -> Reply:
        return Reply(200, "it began\nit ended\n", {}, "text/plain") if id in self.jobs else _no_job(id)

    @route("GET", "/api/v1/jobs/(?P<id>[^/]+)/metrics")
    def metrics(self, request: Request, id: str) -> Reply:
        usage = {"qpu_charge_time_seconds": 2.5, "status": "complete"}
        return Reply(200, {"usage": usage, "qiskit_version": "2.0"}) if id in self.jobs else _no_job(id)

    @route("POST", "/api/v1/jobs/(?P<id>[^/]+)/cancel")
    def cancel(self, request: Request, id: str) -> Reply:
        if id not in self.jobs:
            return _no_job(id)
        if self._shown(self.jobs[id])["status"] not in ("Queued", "Running"):
            return Reply(409, problem(1306, "Job is not cancellable."))
        self._cancel(self.jobs[id])
        return Reply(204)

    def _cancel(self, job: dict[str, Any]) -> None:
        job |= {"status": "Cancelled", "state": {"status": "Cancelled"}}
        self.note("task_stop", task=job["id"])

    def _pending(self, session: str) -> list[dict[str, Any]]:
        mine = [job for job in self.jobs.values() if job["session_id"] == session]
        return [job for job in mine if self._shown(job)["status"] in ("Queued", "Running")]

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        """The job as it is now: it queues until it is looked at once, then runs for `task_s` seconds."""
        if job["status"] == "Queued":
            job["polls"] += 1
        if job["status"] == "Queued" and (job["polls"] > 1 or self.task_s == 0):
            job["status"] = "Running"
        if job["status"] == "Running" and self.now() - job["at"] >= (job["takes_s"] or self.task_s):
            job["status"] = "Completed"
        if job["state"]["status"] != job["status"]:
            job["state"] = {"status": job["status"]}
        return {key: value for key, value in job.items() if key not in ("params", "at", "polls", "takes_s")}


class FakeSystem(FakeIbm):
    """A machine on site. It reads inputs from, and writes results to, the addresses that jobs bring."""

    def __init__(self) -> None:
        self.lanes = 3
        self.locked: object = False
        super().__init__()

    @route("GET", "/v1/backends")
    def backends(self, request: Request) -> Reply:
        return Reply(200, {"backends": [self._details()]})

    @route("GET", f"/v1/backends/{BACKEND}")
    def backend(self, request: Request) -> Reply:
        return Reply(200, self._details())

    @route("GET", f"/v1/backends/{BACKEND}/configuration")
    def backend_configuration(self, request: Request) -> Reply:
        return Reply(200, self.configuration)

    @route("GET", f"/v1/backends/{BACKEND}/properties")
    def backend_properties(self, request: Request) -> Reply:
        if self.properties is None:
            return Reply(404, problem(1216, "Backend properties not found."))
        return Reply(200, self.properties)

    @route("GET", f"/v1/backends/{BACKEND}/lanes")
    def backend_lanes(self, request: Request) -> Reply:
        return Reply(200, {"hpc_workload_manager": {"lanes": self.lanes}, "ibm_quantum_compute": {"lanes": 0}})

    @route("GET", "/v1/jobs")
    def list_jobs(self, request: Request) -> Reply:
        return Reply(200, {"jobs": [self._shown(job) for job in self.jobs.values()]})

    @route("POST", "/v1/jobs")
    def run_job(self, request: Request) -> Reply:
        body = request.json()
        if body["backend"] != BACKEND:
            return Reply(404, problem(1216, f"Backend {body['backend']} not found."))
        if body["timeout_secs"] < 1:
            return Reply(400, problem(1219, "timeout_secs is not valid."))
        if body["id"] in self.jobs:
            return Reply(409, problem(1231, f"Job with duplicate id already exists. Job ID: {body['id']}"))
        if self.locked:
            return Reply(423, problem(1233, "The requested backend is currently reserved."))
        if len(self.jobs) >= self.lanes:
            return Reply(429, problem(1232, "The maximum number of execution lanes has been reached."))
        self.jobs[body["id"]] = {**body, "status": "Running", "created_time": self.iso(), "at": self.now()}
        self.note("task_start", task=body["id"])
        return Reply(204)

    @route("GET", "/v1/jobs/(?P<id>[^/]+)")
    def job(self, request: Request, id: str) -> Reply:
        return Reply(200, self._shown(self.jobs[id])) if id in self.jobs else _no_job(id)

    @route("POST", "/v1/jobs/(?P<id>[^/]+)/cancel")
    def cancel(self, request: Request, id: str) -> Reply:
        if id not in self.jobs:
            return _no_job(id)
        if self._shown(self.jobs[id])["status"] != "Running":
            return Reply(409, problem(1306, f"Job is not cancellable. Job ID: {id}."))
        self.jobs[id] |= {"status": "Cancelled", "end_time": self.iso()}
        self.note("task_stop", task=id)
        return Reply(204)

    @route("DELETE", "/v1/jobs/(?P<id>[^/]+)")
    def delete(self, request: Request, id: str) -> Reply:
        if id not in self.jobs:
            return _no_job(id)
        if self._shown(self.jobs[id])["status"] == "Running":
            return Reply(409, problem(1337, "Deleting a job in a non-terminal state is not possible."))
        del self.jobs[id]
        self.note("delete", task=id)
        return Reply(204)

    def _details(self) -> dict[str, Any]:
        details = {"name": BACKEND, "status": self.status, "version": "1.2.3", "message": self.reason}
        return details | ({"locked": self.locked} if self.status == "online" else {})

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["status"] == "Running" and self.now() - job["at"] >= self.task_s:
            self._run(job)
        return {key: value for key, value in job.items() if key != "at"}

    def _run(self, job: dict[str, Any]) -> None:
        addresses = {key: value["presigned_url"] for key, value in job["storage"].items()}
        taken = requests.get(addresses["input"], timeout=10)
        taken.raise_for_status()
        requests.put(addresses["logs"], data=b"it began\n", timeout=10).raise_for_status()
        requests.put(
            addresses["results"], data=samples(taken.json(), job["id"]).encode(), timeout=10
        ).raise_for_status()
        job |= {"status": "Completed", "end_time": self.iso(), "usage": {"quantum_nanoseconds": 1_500_000_000}}


def problem(code: int, message: str, solution: str = "") -> dict[str, Any]:
    return {
        "trace": "0123",
        "errors": [{"code": code, "message": message, "solution": solution, "more_info": "https://"}],
    }


def samples(params: Mapping[str, Any], seed: str) -> str:
    """The result of a sampler in plain JSON: the same text for the same job, whatever the circuit."""
    chance = random.Random(seed)
    results = []
    for pub in params.get("pubs", []):
        shots = pub[2] if isinstance(pub, list) and len(pub) > 2 and isinstance(pub[2], int) else 100
        measured = [hex(chance.choice((0, 3))) for _ in range(shots)]
        results.append({"data": {"c": {"samples": measured, "num_bits": 2}}, "metadata": {}})
    return json.dumps({"results": results, "metadata": {"version": 2, "note": "µs  spaced"}}, ensure_ascii=False)


def _takes_s(params: Mapping[str, Any]) -> float:
    said = re.search(r"takes ([0-9.]+) s", str((params.get("pubs") or [None])[0]))
    return float(said[1]) if said else 0.0


def _no_session() -> Reply:
    return Reply(404, problem(1217, "The session was not found."))


def _no_job(id: str) -> Reply:
    return Reply(404, problem(1291, f"Job not found. Job ID: {id}."))

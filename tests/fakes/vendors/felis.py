"""Felis of Alice & Bob, as the qrmi library's models have it. `log` has `task_start`, `task_stop`."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, datetime
from typing import Any

from tests.fakes.vendors.kit import FakeServer, Reply, Request, route

APIKEY = base64.b64encode(b"user:felis-password-0123456789").decode()
TARGET, DEVICE = "EMU:40Q:PHYSICAL_CATS", "ab_emu_40q_physical_cats"
_FINAL = ("SUCCEEDED", "CANCELLED", "EXECUTION_FAILED", "TIMED_OUT")
# As Felis gives it: the order and the last line's end count.
CSV = "11,57\n00,43\n"


class FakeFelis(FakeServer):
    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.task_s = 0.0
        self.health: object = "OK"
        self.fails = ""
        super().__init__()

    def error(self, status: int) -> object:
        return {"detail": f"scripted {status}"}

    def handle(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Basic {APIKEY}":
            return Reply(401, {"detail": "Invalid API key"})
        return super().handle(request)

    @route("GET", "/v1/targets/")
    def targets(self, request: Request) -> Reply:
        row = {"numQubits": 40, "instructions": [], "inputParams": {}}
        return Reply(200, [row | {"name": "QPU:1Q:OTHER"}, row | {"name": TARGET}])

    @route("GET", "/v1/targets/(?P<target>[^/]+)/health")
    def target_health(self, request: Request, target: str) -> Reply:
        return Reply(200, json.dumps(self.health))

    @route("POST", "/v1/jobs/")
    def create(self, request: Request) -> Reply:
        body = request.json()
        if body["target"] != TARGET:
            return Reply(404, {"detail": "There is no such target"})
        id = str(uuid.uuid4())
        self.jobs[id] = body | {
            "id": id,
            "userName": "u",
            "userId": "u",
            "organizationName": "o",
            "events": [],
            "errors": [],
            "due": 0.0,
        }
        self._event(self.jobs[id], "CREATED")
        return Reply(200, self._shown(self.jobs[id]))

    @route("POST", "/v1/jobs/(?P<id>[^/]+)/input")
    def upload(self, request: Request, id: str) -> Reply:
        job = self.jobs[id]
        self._event(job, "INPUT_READY")
        job["due"] = self.now() + self.task_s
        self.log.append({"event": "task_start", "task": id, "at": self.now()})
        return Reply(200, {})

    @route("GET", "/v1/jobs/(?P<id>[^/]+)")
    def job(self, request: Request, id: str) -> Reply:
        if id not in self.jobs:
            return Reply(404, {"detail": "There is no such job"})
        self._advance(self.jobs[id])
        return Reply(200, self._shown(self.jobs[id]))

    @route("DELETE", "/v1/jobs/(?P<id>[^/]+)")
    def cancel(self, request: Request, id: str) -> Reply:
        self._event(self.jobs[id], "CANCELLED")
        self.log.append({"event": "task_stop", "task": id, "at": self.now()})
        return Reply(200, self._shown(self.jobs[id]))

    @route("GET", "/v1/jobs/(?P<id>[^/]+)/output")
    def output(self, request: Request, id: str) -> Reply:
        return Reply(200, CSV, {}, "text/plain")

    @route("GET", "/v1/jobs/(?P<id>[^/]+)/metrics")
    def metrics(self, request: Request, id: str) -> Reply:
        return Reply(200, {"qpu_duration_ns": 1_500_000_000, "simulation_duration_ns": None})

    def _state(self, job: dict[str, Any]) -> str:
        return str(job["events"][-1]["type"])

    def _advance(self, job: dict[str, Any]) -> None:
        if self._state(job) == "INPUT_READY":
            self._event(job, "EXECUTING")
        elif self._state(job) == "EXECUTING" and self.now() >= job["due"]:
            if self.fails:
                job["errors"].append({"content": {"message": self.fails}})
            self._event(job, "EXECUTION_FAILED" if self.fails else "SUCCEEDED")

    def _event(self, job: dict[str, Any], kind: str) -> None:
        job["events"].append({"type": kind, "createdAt": datetime.fromtimestamp(self.now(), UTC).isoformat()})

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in job.items() if key != "due"}

"""IQM Server's interface, as far as the qrmi library and our provider use it, in the forms that the library wants.

`log` is the vendor's record of what changed: `task_start`, `task_stop`. Reading a job with `wait_until_terminal` waits,
as the server's own documentation says.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from tests.fakes.vendors.kit import FakeServer, Reply, Request, route

TOKEN, MACHINE = "iqm-token-0123456789", "garnet:mock"
CALSET = "4f3f7a2e-0000-4000-8000-000000000001"
_FINAL = ("completed", "failed", "cancelled")
_MACHINE = "(?P<machine>[^/]+)"
ARCHITECTURE = {
    "calibration_set_id": CALSET,
    "qubits": ["QB1", "QB2", "QB3"],
    "computational_resonators": [],
    "gates": {
        "prx": {"implementations": {"drag": {"loci": [["QB1"], ["QB2"], ["QB3"]]}}, "default_implementation": "drag"},
        "cz": {
            "implementations": {"tgss": {"loci": [["QB1", "QB2"], ["QB2", "QB3"]]}},
            "default_implementation": "tgss",
        },
        "measure": {"implementations": {"constant": {"loci": [["QB1"]]}}, "default_implementation": "constant"},
    },
}
METRICS = {
    "quality_metric_set_id": CALSET,
    "end_timestamp": "2026-01-02T03:04:05Z",
    "observations": [
        {"dut_field": "metrics.irb.cz.tgss.QB1__QB2.fidelity:par=d2", "value": 0.99, "unit": "", "invalid": False},
        {"dut_field": "metrics.irb.cz.tgss.QB2__QB3.fidelity:par=d2", "value": 0.97, "unit": "", "invalid": False},
        {"dut_field": "metrics.ssro.measure.constant.QB1.fidelity", "value": 0.96, "unit": "", "invalid": False},
        {"dut_field": "metrics.ssro.measure.constant.QB2.fidelity", "value": 0.1, "unit": "", "invalid": True},
        {"dut_field": "characterization.model.QB1.t1_time", "value": 3e-5, "unit": "s", "invalid": False},
        {"dut_field": "characterization.model.QB1.t2_time", "value": 2e-5, "unit": "s", "invalid": False},
    ],
}


class FakeIqm(FakeServer):
    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.task_s = 0.0
        self.status: object = "online"
        self.healthy: object = True
        self.queue: object = 4
        super().__init__()

    def error(self, status: int) -> object:
        return {"message": f"scripted {status}", "error_code": f"E{status}", "request_id": str(uuid.uuid4())}

    def handle(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply(401, self.error(401))
        return super().handle(request)

    @route("GET", f"/api/v1/quantum-computers/{_MACHINE}")
    def machine(self, request: Request, machine: str) -> Reply:
        if machine != MACHINE:
            return Reply(404, self.error(404))
        body = {
            "id": str(uuid.UUID(int=1)),
            "alias": machine,
            "display_name": "Garnet",
            "description": "",
            "backend_type": "qpu",
            "number_of_qubits": 3,
            "pulla_enabled": False,
            "station_control_version": "12.1",
            "queue_length": self.queue,
            "pricing": {"payg_price_per_second": "0.30"},
            "limits": {
                "max_circuits_per_job": 500,
                "max_executions_per_job": 10**7,
                "max_instructions_per_circuit": 10**5,
                "max_shots_per_circuit": 20_000,
            },
            "additional_info": {"academy_url": "", "best_suited_for": [], "documentation_url": "", "mock_url": ""},
            "status": self.status,
            "health": {"healthy": self.healthy, "updated_at": self._iso()},
        }
        return Reply(200, body)

    @route("GET", f"/api/v1/calibration-sets/{_MACHINE}/(?P<calset>[^/]+)/dynamic-quantum-architecture")
    def architecture(self, request: Request, machine: str, calset: str) -> Reply:
        return Reply(200, ARCHITECTURE)

    @route("GET", f"/api/v1/calibration-sets/{_MACHINE}/(?P<calset>[^/]+)/metrics")
    def metrics(self, request: Request, machine: str, calset: str) -> Reply:
        return Reply(200, METRICS)

    @route("GET", f"/api/v1/calibration-sets/{_MACHINE}/(?P<calset>[^/]+)")
    def calibration(self, request: Request, machine: str, calset: str) -> Reply:
        return Reply(200, {"calibration_set_id": CALSET, "observations": []})

    @route("GET", f"/api/v1/quantum-computers/{_MACHINE}/artifacts/static-quantum-architectures")
    def static(self, request: Request, machine: str) -> Reply:
        return Reply(404, self.error(404))

    @route("POST", f"/api/v1/jobs/{_MACHINE}/(?P<kind>circuit|run|sweep)")
    def submit(self, request: Request, machine: str, kind: str) -> Reply:
        if "circuits" not in request.json():
            return Reply(
                400, {"message": "circuits: field required", "error_code": "invalid_payload", "request_id": "r"}
            )
        id = str(uuid.uuid4())
        shots = int(request.json().get("shots", 1))
        self.jobs[id] = {
            "id": id,
            "type": kind,
            "status": "waiting",
            "qc": {"id": str(uuid.UUID(int=1))},
            "artifacts": [],
            "messages": [],
            "timeline": [{"source": "server", "status": "created", "timestamp": self._iso()}],
            "queue_position": 2,
            "tag": request.one("tag"),
            "due": self.now() + self.task_s,
            "shots": shots,
            "polls": 0,
        }
        self.log.append({"event": "task_start", "task": id, "at": self.now()})
        return Reply(201, self._shown(self.jobs[id]))

    @route("POST", "/api/v1/jobs/(?P<id>[^/]+)/cancel")
    def cancel(self, request: Request, id: str) -> Reply:
        job = self.jobs.get(id)
        if job is None:
            return Reply(404, self.error(404))
        self._advance(job)
        if job["status"] in _FINAL:
            return Reply(409, {"message": f"The job is {job['status']}.", "error_code": "illegal", "request_id": "r"})
        job |= {"status": "cancelled", "queue_position": None}
        self.log.append({"event": "task_stop", "task": id, "at": self.now()})
        return Reply(200, self._shown(job))

    @route("GET", "/api/v1/jobs/(?P<id>[^/]+)")
    def job(self, request: Request, id: str) -> Reply:
        job = self.jobs.get(id)
        if job is None:
            return Reply(404, self.error(404))
        self._advance(job)
        return Reply(200, self._shown(job))

    @route("GET", "/api/v1/jobs/(?P<id>[^/]+)/artifacts/(?P<kind>[^/]+)")
    def artifact(self, request: Request, id: str, kind: str) -> Reply:
        job = self.jobs.get(id)
        if job is None or job["status"] != "completed":
            return Reply(404, self.error(404))
        half = job["shots"] // 2
        rows = [[0, 0]] * half + [[1, 1]] * (job["shots"] - half)
        counts = {"00": half, "11": job["shots"] - half}
        answers = {
            "measurements": [{"c": rows}],
            "measurement_counts": [{"measurement_keys": ["c"], "counts": counts}],
        }
        return Reply(200, answers[kind]) if kind in answers else Reply(404, self.error(404))

    def serve(self, request: Request) -> Reply | None:
        if request.one("wait_until_terminal") == "true":
            until = time.monotonic() + float(request.one("timeout_seconds") or 0)
            id = request.path.rpartition("/")[2]
            while time.monotonic() < until and self.jobs.get(id, {}).get("status", "completed") not in _FINAL:
                time.sleep(0.05)
        return super().serve(request)

    def _advance(self, job: dict[str, Any]) -> None:
        """Seen waiting once, then it runs until it is due."""
        job["polls"] += 1
        if job["status"] == "waiting" and job["polls"] > 1:
            job |= {"status": "processing", "queue_position": None}
        if job["status"] == "processing" and self.now() >= job["due"]:
            job |= {"status": "completed", "runtime_ms": 250}

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(json.dumps(job))
        return {key: value for key, value in shown.items() if key not in ("due", "shots", "polls")}

    def _iso(self) -> str:
        return datetime.fromtimestamp(self.now(), UTC).isoformat().replace("+00:00", "Z")

"""Amazon Braket's REST interface and the bucket of its results, as botocore's own description has them.

`log` is the vendor's record of what changed: `task_start`, `task_stop`. Signatures are not verified; the access key is.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from tests.fakes.vendors.kit import FakeServer, Reply, Request, page, route
from tests.fakes.vendors.s3 import FakeS3

ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "secret-0123456789abcdef"
REGION = "eu-north-1"
ARN = f"arn:aws:braket:{REGION}::device/qpu/iqm/Fake"
SV1 = "arn:aws:braket:::device/quantum-simulator/amazon/sv1"
MAX_SHOTS = 20_000
CAPABILITIES: dict[str, Any] = {
    "service": {
        "braketSchemaHeader": {"name": "braket.device_schema.device_service_properties", "version": "1"},
        "executionWindows": [{"executionDay": "Everyday", "windowStartHour": "00:00:00", "windowEndHour": "23:59:59"}],
        "shotsRange": [1, MAX_SHOTS],
        "deviceCost": {"price": 0.00145, "unit": "shot"},
        "deviceLocation": "Nowhere",
        "updatedAt": "2026-01-02T03:04:05.678901",
    },
    "action": {"braket.ir.openqasm.program": {"version": ["1"], "actionType": "braket.ir.openqasm.program"}},
    "paradigm": {
        "qubitCount": 3,
        "nativeGateSet": ["prx", "cz"],
        "connectivity": {"fullyConnected": False, "connectivityGraph": {"1": ["2"], "2": ["3"]}},
    },
    "standardized": {
        "T1": None,
        "oneQubitProperties": {
            str(qubit): {
                "T1": {"value": qubit * 1e-5, "standardError": None, "unit": "S"},
                "T2": {"value": 5e-6, "standardError": None, "unit": "S"},
                "oneQubitFidelity": [
                    {"fidelityType": {"name": "SIMULTANEOUS_RANDOMIZED_BENCHMARKING"}, "fidelity": 0.999},
                    {"fidelityType": {"name": "READOUT"}, "fidelity": 0.97},
                ],
            }
            for qubit in (1, 2, 3)
        },
        "twoQubitProperties": {
            pair: {
                "twoQubitGateFidelity": [
                    {"gateName": "CZ", "fidelity": fidelity, "fidelityType": {"name": "RANDOMIZED_BENCHMARKING"}}
                ]
            }
            for pair, fidelity in (("1-2", 0.99), ("2-3", 0.97))
        },
    },
}


class FakeBraket(FakeServer):
    """One account in one region, with one machine and one simulator. Results are written to `store`."""

    harmless = ("/quantum-tasks", "/devices")

    def __init__(self) -> None:
        self.store = FakeS3("amazon-braket-results", ACCESS_KEY)
        self.log: list[dict[str, Any]] = []
        self.task_s = 0.0
        self.status = "ONLINE"
        self.reason: dict[str, Any] | None = None
        self.queue: list[dict[str, Any]] = [
            {"queue": "QUANTUM_TASKS_QUEUE", "queueSize": "3", "queuePriority": "Normal"},
            {"queue": "QUANTUM_TASKS_QUEUE", "queueSize": "1", "queuePriority": "Priority"},
            {"queue": "JOBS_QUEUE", "queueSize": "0 (3 prioritized)"},
        ]
        self.capabilities: object = json.loads(json.dumps(CAPABILITIES))
        self.tasks: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, str] = {}
        self.page_limit = 100
        super().__init__()

    def close(self) -> None:
        self.store.close()
        super().close()

    def error(self, status: int) -> object:
        kinds = {403: "AccessDeniedException", 429: "ThrottlingException", 424: "DeviceOfflineException"}
        return {"__type": kinds.get(status, "InternalServiceException"), "message": f"scripted {status}"}

    def handle(self, request: Request) -> Reply:
        if ACCESS_KEY not in request.headers.get("authorization", ""):
            return _problem(403, "UnrecognizedClientException", "The security token included is invalid.")
        return super().handle(request)

    @route("GET", r"/device/(?P<arn>.+)")
    def device(self, request: Request, arn: str) -> Reply:
        found = {row["deviceArn"]: row for row in self._devices()}.get(unquote(arn))
        if found is None:
            return _problem(404, "ResourceNotFoundException", "The device is not there.")
        more = {"deviceCapabilities": json.dumps(self.capabilities), "deviceQueueInfo": self.queue}
        reason = {"deviceStatusReason": self.reason} if self.reason else {}
        return Reply(200, found | more | reason)

    @route("POST", "/devices")
    def search_devices(self, request: Request) -> Reply:
        return Reply(200, {"devices": self._devices()})

    @route("POST", "/quantum-task")
    def create(self, request: Request) -> Reply:
        body = request.json()
        if body["clientToken"] in self.tokens:
            return Reply(201, {"quantumTaskArn": self.tokens[body["clientToken"]]})
        if "garbled" in body["action"]:
            return _problem(400, "ValidationException", "[line 1] cannot parse the program")
        if self.status == "RETIRED":
            return _problem(410, "DeviceRetiredException", "The device is retired.")
        arn = f"arn:aws:braket:{REGION}:123456789012:quantum-task/{uuid.uuid4()}"
        self.tokens[body["clientToken"]] = arn
        self.tasks[arn] = {
            "quantumTaskArn": arn,
            "status": "QUEUED",
            "deviceArn": body["deviceArn"],
            "deviceParameters": body.get("deviceParameters", "{}"),
            "shots": body["shots"],
            "outputS3Bucket": body["outputS3Bucket"],
            "outputS3Directory": f"{body['outputS3KeyPrefix']}/{arn.rpartition('/')[2]}",
            "createdAt": self._iso(self.now()),
            "tags": body.get("tags", {}),
            "associations": body.get("associations", []),
            "due": self.now() + self.task_s,
            "action": body["action"],
        }
        self.log.append({"event": "task_start", "task": arn, "at": self.now()})
        return Reply(201, {"quantumTaskArn": arn})

    @route("GET", r"/quantum-task/(?P<arn>.+)")
    def task(self, request: Request, arn: str) -> Reply:
        task = self.tasks.get(unquote(arn))
        if task is None:
            return _problem(400, "ValidationException", "The ARN is not valid.")
        self._advance(task)
        return Reply(200, {key: value for key, value in task.items() if key not in ("due", "action")})

    @route("PUT", r"/quantum-task/(?P<arn>.+)/cancel")
    def cancel(self, request: Request, arn: str) -> Reply:
        task = self.tasks.get(unquote(arn))
        if task is None:
            return _problem(404, "ResourceNotFoundException", "The task is not there.")
        self._advance(task)
        if task["status"] in ("COMPLETED", "FAILED", "CANCELLED"):
            return _problem(409, "ConflictException", f"The task is {task['status']}.")
        task |= {"status": "CANCELLED", "endedAt": self._iso(self.now())}
        self.log.append({"event": "task_stop", "task": task["quantumTaskArn"], "at": self.now()})
        return Reply(200, {"quantumTaskArn": task["quantumTaskArn"], "cancellationStatus": "CANCELLED"})

    @route("POST", "/quantum-tasks")
    def search(self, request: Request) -> Reply:
        body = request.json()
        found = [task for task in reversed(self.tasks.values()) if self._matches(task, body["filters"])]
        limit = min(body.get("maxResults", self.page_limit), self.page_limit)
        rows, following = page(found, int(body.get("nextToken") or 0), limit)
        kept = (
            "quantumTaskArn",
            "status",
            "deviceArn",
            "shots",
            "outputS3Bucket",
            "outputS3Directory",
            "createdAt",
            "tags",
        )
        answer: dict[str, Any] = {"quantumTasks": [{key: row[key] for key in kept} for row in rows]}
        return Reply(200, answer | ({"nextToken": str(following)} if following is not None else {}))

    def _devices(self) -> list[dict[str, Any]]:
        qpu = {"deviceArn": ARN, "deviceName": "Fake", "providerName": "IQM", "deviceType": "QPU"}
        simulator = {"deviceArn": SV1, "deviceName": "SV1", "providerName": "Amazon Braket", "deviceType": "SIMULATOR"}
        return [each | {"deviceStatus": self.status} for each in (qpu, simulator)]

    def _matches(self, task: dict[str, Any], filters: list[dict[str, Any]]) -> bool:
        self._advance(task)
        for each in filters:
            value, wanted = task[each["name"]], each["values"][0]
            if each["operator"] == "EQUAL" and value not in each["values"]:
                return False
            if each["operator"] in ("GT", "GTE") and value < wanted:
                return False
        return True

    def _advance(self, task: dict[str, Any]) -> None:
        """A task is seen queued once, then it runs until it is due."""
        if task["status"] == "QUEUED" and "queueInfo" not in task:
            task["queueInfo"] = {"queue": "QUANTUM_TASKS_QUEUE", "position": "2", "queuePriority": "Normal"}
        elif task["status"] == "QUEUED":
            task["status"] = "RUNNING"
            del task["queueInfo"]
        if task["status"] == "RUNNING" and self.now() >= task["due"]:
            task |= {"status": "COMPLETED", "endedAt": self._iso(self.now()), "numSuccessfulShots": task["shots"]}
            self.store.objects[f"{task['outputS3Directory']}/results.json"] = _result(task)

    def _iso(self, at: float) -> str:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _result(task: dict[str, Any]) -> bytes:
    """With what a careless reader would change: spaces, escapes, letters beyond ASCII, the order of keys."""
    half = task["shots"] // 2
    rows = [[0, 0]] * half + [[1, 1]] * (task["shots"] - half)
    header = '{"name": "braket.task_result.gate_model_task_result", "version": "1"}'
    return f'{{ "measurements": {rows},\n "braketSchemaHeader": {header}, "note": "µ \\u00b5 1e400" }}\n'.encode()


def _problem(status: int, kind: str, message: str) -> Reply:
    return Reply(status, {"message": message}, {"x-amzn-errortype": kind})

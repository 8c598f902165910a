"""Pasqal's cloud and its middleware on the premises, as the qrmi library's models have them.

`log` is the vendor's record of what changed: `acquire`, `release`, `task_start`, `task_stop`.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import uuid
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.fakes.vendors.kit import FakeServer, Reply, Request, route

CLIENT, SECRET, PROJECT = "client-id", "pasqal-secret-0123456789", "project"
DEVICE = "FRESNEL"
SPECS = json.dumps({"name": DEVICE, "dimensions": 2, "max_atom_num": 80, "max_runs": 500})
# A credential of the false MUNGE below.
CREDENTIAL = "MUNGE:fake:"


class FakePasqal(FakeServer):
    """The cloud, and its token service on the same port."""

    harmless = ("/oauth/token",)

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.tokens: set[str] = set()
        self.task_s = 0.0
        self.status, self.availability = "UP", "ACTIVE"
        super().__init__()

    def error(self, status: int) -> object:
        return {"status": "error", "code": str(status), "message": f"scripted {status}"}

    def handle(self, request: Request) -> Reply:
        public = request.path in ("/oauth/token", "/core-fast/api/v1/devices")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not public and token not in self.tokens:
            return Reply(401, {"message": "Unauthenticated"})
        return super().handle(request)

    @route("POST", "/oauth/token")
    def token(self, request: Request) -> Reply:
        if request.form().get("client_secret") != SECRET:
            return Reply(403, {"error": "access_denied", "error_description": "Unauthorized"})
        claims = json.dumps({"exp": int(self.now()) + 3600, "jti": uuid.uuid4().hex}).encode()
        token = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b"{}", claims, b"s"))
        self.tokens.add(token)
        return Reply(200, {"access_token": token})

    @route("GET", "/core-fast/api/v1/devices")
    def devices(self, request: Request) -> Reply:
        return Reply(200, {"data": [{"status": self.status, "availability": self.availability}]})

    @route("GET", "/core-fast/api/v1/devices/specs/(?P<device>[^/]+)")
    def specs(self, request: Request, device: str) -> Reply:
        return Reply(200, {"data": {"device_type": device, "specs": SPECS}})

    @route("POST", "/core-fast/api/v1/batches")
    def create(self, request: Request) -> Reply:
        body = request.json()
        if "version" not in json.loads(body["sequence_builder"]):
            return Reply(422, {"message": "The sequence is not valid"})
        id = str(uuid.uuid4())
        self.jobs[id] = {"status": "PENDING", "due": self.now() + self.task_s, "runs": body["jobs"][0]["runs"]}
        self.log.append({"event": "task_start", "task": id, "at": self.now()})
        return Reply(200, {"data": {"id": id}})

    @route("GET", "/core-fast/api/v2/batches/(?P<id>[^/]+)")
    def batch(self, request: Request, id: str) -> Reply:
        if id not in self.jobs:
            return Reply(404, {"message": "The batch does not exist"})
        return Reply(200, {"data": {"id": id, "status": self.jobs[id]["status"], "job_ids": [id]}})

    @route("GET", "/core-fast/api/v2/jobs/(?P<id>[^/]+)")
    def job(self, request: Request, id: str) -> Reply:
        self._advance(self.jobs[id])
        return Reply(200, {"data": {"id": id, "status": self.jobs[id]["status"]}})

    @route("PATCH", "/core-fast/api/v2/batches/(?P<id>[^/]+)/cancel")
    def cancel(self, request: Request, id: str) -> Reply:
        self.jobs[id]["status"] = "CANCELED"
        self.log.append({"event": "task_stop", "task": id, "at": self.now()})
        return Reply(200, {"data": {}})

    @route("GET", "/core-fast/api/v1/batches/(?P<id>[^/]+)/full_results")
    def results(self, request: Request, id: str) -> Reply:
        return Reply(200, {"data": {id: {"counter": {"01": self.jobs[id]["runs"]}}}})

    def _advance(self, job: dict[str, Any]) -> None:
        if job["status"] == "PENDING":
            job["status"] = "RUNNING"
        elif job["status"] == "RUNNING" and self.now() >= job["due"]:
            job["status"] = "DONE"


class FakeWarden(FakeServer):
    """The middleware. `old`: a version that can neither stop tasks nor show their logs."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.jobs: dict[int, dict[str, Any]] = {}
        self.sessions: dict[str, dict[str, Any]] = {}
        self.task_s = 0.0
        self.accessible: object = True
        self.message = ""
        self.old = False
        super().__init__()

    def error(self, status: int) -> object:
        return {"detail": f"scripted {status}"}

    def handle(self, request: Request) -> Reply:
        if request.path != "/accessible" and not request.headers.get("x-munge-cred", "").startswith(CREDENTIAL):
            return Reply(401, {"detail": "There is no valid MUNGE credential"})
        return super().handle(request)

    @route("GET", "/accessible")
    def is_accessible(self, request: Request) -> Reply:
        return Reply(200, {"is_accessible": self.accessible, "message": self.message})

    @route("GET", "/qpu/specs")
    def specs(self, request: Request) -> Reply:
        return Reply(200, {"specs": SPECS})

    @route("POST", "/sessions")
    def open(self, request: Request) -> Reply:
        token = str(uuid.uuid4())
        self.sessions[token] = request.json() | {"id": token}
        self.log.append({"event": "acquire", "token": token, "at": self.now()})
        return Reply(200, {"id": token})

    @route("DELETE", "/sessions/(?P<token>[^/]+)")
    def revoke(self, request: Request, token: str) -> Reply:
        if token not in self.sessions:
            return Reply(404, {"detail": "There is no such session"})
        del self.sessions[token]
        self.log.append({"event": "release", "token": token, "at": self.now()})
        return Reply(200, {"id": token})

    @route("POST", "/jobs")
    def create(self, request: Request) -> Reply:
        if request.headers.get("x-warden-session") not in self.sessions:
            return Reply(403, {"detail": "The session is not open"})
        if "version" not in json.loads(request.json()["sequence"]):
            return Reply(422, {"detail": "The sequence is not valid"})
        id = len(self.jobs) + 1
        self.jobs[id] = {"status": "PENDING", "due": self.now() + self.task_s, "shots": request.json()["shots"]}
        self.log.append({"event": "task_start", "task": str(id), "at": self.now()})
        return Reply(200, self._shown(id))

    @route("GET", "/jobs/(?P<id>[^/]+)")
    def job(self, request: Request, id: str) -> Reply:
        if not id.isdecimal() or int(id) not in self.jobs:
            return Reply(404, {"detail": "There is no such job"})
        job = self.jobs[int(id)]
        if job["status"] == "PENDING":
            job["status"] = "RUNNING"
        elif job["status"] == "RUNNING" and self.now() >= job["due"]:
            job["status"] = "DONE"
        return Reply(200, self._shown(int(id)))

    @route("POST", "/jobs/(?P<id>[^/]+)/cancel")
    def cancel(self, request: Request, id: str) -> Reply:
        if self.old:
            return Reply(404, {"detail": "Not Found"})
        self.jobs[int(id)]["status"] = "CANCELED"
        self.log.append({"event": "task_stop", "task": id, "at": self.now()})
        return Reply(200, self._shown(int(id)))

    @route("GET", "/jobs/(?P<id>[^/]+)/logs")
    def logs(self, request: Request, id: str) -> Reply:
        return Reply(404, {"detail": "Not Found"}) if self.old else Reply(200, {"logs": "it ran\n"})

    def _shown(self, id: int) -> dict[str, Any]:
        job = self.jobs[id]
        results = json.dumps({"counter": {"01": job["shots"]}}) if job["status"] == "DONE" else None
        return {"id": id, "user_id": "0", "status": job["status"], "results": results}


@cache
def munge_library() -> str:
    """A MUNGE that makes false credentials, compiled once; raises if there is no compiler."""
    folder = Path(mkdtemp(prefix="munge-"))
    source, library = folder / "munge.c", folder / "libmunge.so.2"
    source.write_text(
        "#include <string.h>\n"
        "int munge_encode(char **cred, void *ctx, const void *data, int size)\n"
        f'{{ *cred = strdup("{CREDENTIAL}"); return 0; }}\n'
        'const char *munge_strerror(int error) { return "none"; }\n'
    )
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed to make a false MUNGE"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libmunge.so.2", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return str(library)

"""OQTOPUS Cloud, and a bridge to it that the qrmi library can load: a few calls of HTTP in C.

QRMI's own bridge wraps OQTOPUS's Python client; its six functions take a text and the configuration, and give a text or
an error. `log` has `task_start`, `task_stop`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.fakes.vendors.kit import FakeServer, Reply, Request, route

TOKEN, DEVICE = "oqtopus-token-0123456789", "anemone"
_FINAL = ("succeeded", "failed", "cancelled")


class FakeOqtopus(FakeServer):
    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.task_s = 0.0
        self.status: object = "available"
        self.pending: object = 4
        super().__init__()

    def handle(self, request: Request) -> Reply:
        if request.headers.get("q-api-token") != TOKEN:
            return Reply(401, self.error(401))
        return super().handle(request)

    @route("GET", f"/devices/{DEVICE}")
    def device(self, request: Request) -> Reply:
        body = {
            "device_id": DEVICE,
            "device_type": "QPU",
            "status": self.status,
            "n_pending_jobs": self.pending,
            "n_qubits": 64,
            "basis_gates": ["sx", "rz", "cx"],
            "supported_instructions": ["measure"],
            "calibrated_at": "2026-01-02T03:04:05Z",
            "description": "",
        }
        return Reply(200, body)

    @route("POST", "/jobs")
    def submit(self, request: Request) -> Reply:
        spec = request.json()
        if "garbled" in str(spec["program"]):
            return Reply(400, {"message": "the program cannot be read"})
        id = str(uuid.uuid4())
        self.jobs[id] = {"status": "submitted", "due": self.now() + self.task_s, "shots": spec.get("shots", 100)}
        self.log.append({"event": "task_start", "task": id, "at": self.now()})
        return Reply(200, id, {}, "text/plain")

    @route("GET", "/jobs/(?P<id>[^/]+)/status")
    def job(self, request: Request, id: str) -> Reply:
        job = self.jobs.get(id)
        if job is None:
            return Reply(404, self.error(404))
        if job["status"] == "submitted":
            job["status"] = "running"
        elif job["status"] == "running" and self.now() >= job["due"]:
            job["status"] = "succeeded"
        return Reply(200, str(job["status"]), {}, "text/plain")

    @route("GET", "/jobs/(?P<id>[^/]+)/result")
    def result(self, request: Request, id: str) -> Reply:
        return (
            Reply(200, {"counts": {"00": self.jobs[id]["shots"]}}) if id in self.jobs else Reply(404, self.error(404))
        )

    @route("POST", "/jobs/(?P<id>[^/]+)/cancel")
    def cancel(self, request: Request, id: str) -> Reply:
        if self.jobs[id]["status"] not in _FINAL:
            self.jobs[id]["status"] = "cancelled"
            self.log.append({"event": "task_stop", "task": id, "at": self.now()})
        return Reply(200, "cancelled", {}, "text/plain")

    def error(self, status: int) -> object:
        return {"message": f"scripted {status}"}


_SOURCE = r"""
#define _GNU_SOURCE
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void py_bridge_free_string(char *text) { free(text); }

static void field(const char *json, const char *name, char *to, size_t size) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *from = strstr(json, key);
    size_t length = 0;
    if (from)
        for (from += strlen(key); from[length] && from[length] != '"' && length < size - 1; length++)
            to[length] = from[length];
    to[length] = 0;
}

static int call(const char *method, const char *path, const char *body, const char *config, char **out, char **err) {
    char url[256], token[256], host[256], *port;
    field(config, "url", url, sizeof url);
    field(config, "api_token", token, sizeof token);
    snprintf(host, sizeof host, "%s", strstr(url, "://") ? strstr(url, "://") + 3 : url);
    port = strchr(host, ':');
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (!port) { *err = strdup("no port"); return 1; }
    *port++ = 0;
    if (getaddrinfo(host, port, &hints, &found)) { *err = strdup("no such host"); return 1; }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int failed = connect(fd, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (failed) { close(fd); *err = strdup("connection refused"); return 1; }
    char *request = NULL;
    int length = asprintf(&request, "%s %s HTTP/1.0\r\nHost: x\r\nq-api-token: %s\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n%s", method, path, token, strlen(body), body);
    for (int sent = 0; sent < length;) {
        ssize_t n = send(fd, request + sent, length - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += n;
    }
    free(request);
    size_t size = 0, room = 65536;
    char *answer = malloc(room);
    for (ssize_t n; (n = recv(fd, answer + size, room - size - 1, 0)) > 0;)
        if ((size += n) + 1 >= room) answer = realloc(answer, room *= 2);
    answer[size] = 0;
    close(fd);
    char *content = strstr(answer, "\r\n\r\n");
    int status = size > 12 ? atoi(answer + 9) : 0;
    if (!content) { free(answer); *err = strdup("connection closed without an answer"); return 1; }
    if (status != 200) {
        if (asprintf(err, "status code %d, %s", status, content + 4) < 0) *err = NULL;
        free(answer);
        return 1;
    }
    *out = strdup(content + 4);
    free(answer);
    return 0;
}

#define OF(NAME, METHOD, FORM) \
    int NAME(const char *id, const char *config, char **out, char **err) { \
        char path[512]; \
        snprintf(path, sizeof path, FORM, id); \
        return call(METHOD, path, "", config, out, err); \
    }
OF(get_device_json, "GET", "/devices/%.200s")
OF(get_device_status, "GET", "/devices/%.200s/status")
OF(get_job_status, "GET", "/jobs/%.200s/status")
OF(get_job_result_json, "GET", "/jobs/%.200s/result")
OF(cancel_job, "POST", "/jobs/%.200s/cancel")
int submit_job(const char *spec, const char *config, char **out, char **err) {
    return call("POST", "/jobs", spec, config, out, err);
}
"""


@cache
def bridge_library() -> str:
    """A bridge, compiled once; raises if there is no compiler."""
    folder = Path(mkdtemp(prefix="bridge-"))
    source, library = folder / "bridge.c", folder / "liboqtopus_py_bridge.so"
    source.write_text(_SOURCE)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed to make a bridge"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return str(library)


def job(program: str = "OPENQASM 3;", shots: int = 10) -> str:
    """A job's specification."""
    return json.dumps({"job_type": "sampling", "program": [program], "shots": shots})

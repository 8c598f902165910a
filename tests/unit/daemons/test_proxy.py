"""QRMI's own library, unmodified, executes in a job through the proxy, and no vendor's key is in the job."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from qtandem.core.leases.model import Lease
from qtandem.core.managers import Grant
from qtandem.core.resources import Resource
from qtandem.core.runs import Run, RunId
from qtandem.daemons import app, tls
from qtandem.daemons.loopback import NOBODY, PATH
from qtandem.daemons.proxy import Tokens
from tests.fakes.house import House
from tests.fakes.qtandemd import Qtandemd
from tests.fakes.vendors.ibm import APIKEY, BACKEND, CRN, FakeCompute

PREFIX = "QRMI_IBM_QCS_"
PROGRAM = """
import json, sys, time
from qrmi import Payload, QuantumResource, ResourceType
qpu = QuantumResource(sys.argv[1], ResourceType.IBMQuantumComputeService)
token = qpu.acquire()
job = qpu.task_start(Payload.QiskitPrimitive(input=json.dumps({"pubs": [["OPENQASM 3.0;", None, 10]], "version": 2}),
                                             program_id="sampler"))
while int(qpu.task_status(job)) < 2:
    time.sleep(0.1)
json.loads(qpu.target().value)
print(json.dumps({"token": token, "job": job, "result": json.loads(qpu.task_result(job).value)}))
qpu.release(token)
"""


@pytest.fixture
def cloud() -> Iterator[FakeCompute]:
    with FakeCompute() as fake:
        yield fake


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def qtandemd(cloud: FakeCompute, tmp_path: Path, port: int) -> Iterator[Qtandemd]:
    (tmp_path / "key").write_text(APIKEY)
    (tmp_path / "key").chmod(0o600)
    settings = {f"{PREFIX}ENDPOINT": cloud.endpoint, f"{PREFIX}IAM_ENDPOINT": cloud.url, f"{PREFIX}SERVICE_CRN": CRN}
    resource = {
        "type": "ibm-quantum-compute-service",
        "settings": settings,
        "secrets": {f"{PREFIX}IAM_APIKEY": str(tmp_path / "key")},
        "slots": 2,
        "poll_s": 1,
    }
    made = Qtandemd({BACKEND: resource}, poll_waiting_s=1, releasing_wait_s=20)
    made.config.write_text(made.config.read_text().replace("[timing]", f'proxy = "127.0.0.1:{port}"\n[timing]', 1))
    made.start()
    yield made
    made.close()


def begin(qtandemd: Qtandemd, job: str) -> dict[str, str]:
    """Start a job on the QPU; its variables."""
    body = {"manager": "local", "job": job, "uid": os.geteuid(), "user": getpass.getuser(), "native": f"{BACKEND}:1"}
    while (answer := qtandemd.daemon.post("start", body=body))["verdict"] == "wait":
        pass
    assert answer["verdict"] == "admit", answer
    return qtandemd.daemon.get("runs", answer["run"], "environment")["env"]


def mine(env: dict[str, str], key: str) -> str:
    return env[f"{BACKEND}_{key}"]


def ask(
    env: dict[str, str], method: str, path: str, body: object = None, *, token: str | None = None, **headers: str
) -> tuple[int, Any]:
    """A call with the run's access token, or one that is made of another key."""
    form = {"grant_type": "urn:ibm:params:oauth:grant-type:apikey", "apikey": token or mine(env, f"{PREFIX}IAM_APIKEY")}
    base = mine(env, f"{PREFIX}IAM_ENDPOINT")
    access = call("POST", f"{base}/identity/token", urllib.parse.urlencode(form).encode())
    if access[0] != 200:
        return access
    data = json.dumps(body).encode() if body is not None else None
    bearer = {"Authorization": f"Bearer {access[1]['access_token']}", **headers}
    return call(method, f"{mine(env, f'{PREFIX}ENDPOINT')}/{path}", data, bearer)


def call(method: str, url: str, data: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


@pytest.mark.timeout(150)
def test_an_unmodified_program_executes_and_sees_no_key(qtandemd: Qtandemd, cloud: FakeCompute, tmp_path: Path) -> None:
    pytest.importorskip("qrmi", reason="the qrmi library is not installed")
    env = begin(qtandemd, "1")
    assert not [value for value in env.values() if APIKEY in value or CRN in value or cloud.url in value]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, BACKEND],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr + qtandemd.said()[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["result"]["results"]
    [opened] = [each for each in cloud.log if each["event"] == "acquire"]
    [started] = [each for each in cloud.log if each["event"] == "task_start"]
    assert (started["token"], started["task"]) == (opened["token"], told["job"])
    assert "qtandem" in started["tags"]
    assert [each["event"] for each in cloud.log] == ["acquire", "task_start"], "the program ends no session of the run"
    assert APIKEY not in qtandemd.said()


@pytest.mark.timeout(150)
def test_a_token_opens_the_runs_own_work_and_nothing_else(qtandemd: Qtandemd, cloud: FakeCompute) -> None:
    first, second = begin(qtandemd, "1"), begin(qtandemd, "2")
    session, other = (mine(env, "QRMI_JOB_ACQUISITION_TOKEN") for env in (first, second))
    job = {"program_id": "sampler", "backend": BACKEND, "params": {"pubs": []}}
    status, made = ask(first, "POST", "jobs", {**job, "session_id": session})
    assert status == 200
    status, theirs = ask(second, "POST", "jobs", job)
    assert (status, cloud.jobs[theirs["id"]]["session_id"]) == (200, other)
    assert ask(first, "GET", f"jobs/{made['id']}")[0] == 200
    assert [row["id"] for row in ask(first, "GET", "jobs?session_id=" + other)[1]["jobs"]] == [made["id"]]
    assert ask(first, "POST", "sessions", {"mode": "dedicated", "backend": BACKEND})[1]["id"] == session
    assert ask(first, "PATCH", f"sessions/{session}", {"accepting_jobs": False})[0] == 204
    before = list(cloud.log)
    for method, path, body in [
        ("GET", f"jobs/{theirs['id']}", None),
        ("POST", f"jobs/{theirs['id']}/cancel", None),
        ("GET", f"sessions/{other}", None),
        ("DELETE", f"sessions/{other}/close", None),
        ("POST", "jobs", {**job, "session_id": other}),
        ("POST", "jobs", {**job, "backend": "ibm_other"}),
        ("GET", "backends/ibm_other/status", None),
        ("DELETE", f"jobs/{made['id']}", None),
        ("GET", "workloads", None),
        ("GET", "../v1/workloads", None),
        ("GET", "backends/..%2fworkloads", None),
        ("GET", f"backends/{BACKEND}/../../workloads", None),
    ]:
        assert ask(first, method, path, body)[0] in (400, 401, 403, 404), path
    assert cloud.log == before
    assert not [
        request for request in cloud.seen if request.path.endswith("workloads") and "limit" not in request.query
    ]


@pytest.mark.timeout(150)
def test_a_token_ends_with_its_lease_and_cannot_be_made_up(qtandemd: Qtandemd, cloud: FakeCompute) -> None:
    env = begin(qtandemd, "1")
    key = mine(env, f"{PREFIX}IAM_APIKEY")
    assert ask(env, "GET", "backends")[0] == 200
    lease = qtandemd.daemon.get("leases")["leases"][0]["id"]
    for wrong in (lease, key[:-4] + "AAAA", "qt-", "x" * 2000, APIKEY):
        assert ask(env, "GET", "backends", token=wrong)[0] == 401
    base = mine(env, f"{PREFIX}ENDPOINT")
    assert call("GET", f"{base}/backends", headers={"Authorization": f"Bearer {key}"})[0] == 401
    assert call("GET", f"{base.replace(BACKEND, 'ibm_none')}/backends")[0] == 401
    before = len(cloud.seen)
    ask(env, "GET", "backends", **{"X-Evil": "1", "Service-CRN": "theirs", "Cookie": "a=b"})
    passed = next(each for each in cloud.seen[before:] if each.path.endswith("/backends"))
    assert "x-evil" not in passed.headers
    assert (passed.headers["service-crn"], passed.headers.get("cookie")) == (CRN, None)
    qtandemd.daemon.post("end", body={"manager": "local", "job": "1"})
    assert ask(env, "GET", "backends")[0] == 401
    assert key not in qtandemd.said()


async def test_a_token_counts_on_the_nodes_of_its_run_alone(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "ibm-quantum-compute-service"
    both = {name: Resource(name, kind, name, slots=2, poll_s=5) for name in ("fez", "torino")}
    both["torino"] = replace(both["torino"], credentials="direct")
    async with House(tmp_path, both) as house:
        run = Run(RunId(house.manager.id("1")), 1000, "ann", nodes=("c1", "c2"))
        fez, torino = await house.leases.begin(run, [Grant("fez"), Grant("torino")])
        tokens = Tokens(house.store.cipher)
        who: list[tls.Caller] = []
        monkeypatch.setattr(tls, "caller", lambda *_: who[-1])
        runner = app.runner(app.build(house.context), 1.0)
        await runner.setup()
        await web.UnixSite(runner, str(short_path / "q")).start()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(short_path / "q"))) as session:

            async def status(lease: Lease, name: str, node: str | None) -> int:
                who.append(tls.Caller(NOBODY, node))
                url, form = f"http://q{PATH}/{name}/identity/token", {"apikey": tokens.of(lease)}
                async with session.post(url, data=form) as answer:
                    return answer.status

            assert [await status(fez, "fez", node) for node in ("c1", "c2.site.org", None)] == [200, 200, 200]
            assert await status(fez, "fez", "c3") == 401
            assert await status(fez, "torino", "c1") == 401
            assert await status(torino, "torino", "c1") == 401, "a direct resource is not led through the proxy"
            await house.leases.end(house.manager.id("1"), None, "over")
            assert await status(fez, "fez", "c1") == 401
        await runner.cleanup()


@pytest.mark.timeout(60)
def test_bodies_of_strangers_are_not_read(qtandemd: Qtandemd, port: int) -> None:
    for path in ("identity/token", "v1/jobs"):
        with socket.create_connection(("127.0.0.1", port), 10.0) as stranger:
            stranger.settimeout(10.0)
            head = f"POST /{BACKEND}/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {15 * 2**20}\r\n\r\n"
            stranger.sendall(head.encode() + b"x" * 8192)
            assert stranger.recv(12).endswith((b" 401", b" 413"))

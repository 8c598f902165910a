"""QRMI's own library, unmodified, executes through the proxy at vendors without sessions, and no key is in the job."""

from __future__ import annotations

import base64
import getpass
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.qtandemd import Qtandemd
from tests.fakes.vendors import accounts
from tests.fakes.vendors.accounts import Account
from tests.fakes.vendors.felis import TARGET

pytest.importorskip("qrmi", reason="the qrmi library is not installed")

PROGRAM = """
import json, os, sys, time
from qrmi import Payload, QuantumResource, ResourceType, get_job_qpu_resources_and_types
payload, ends = eval(sys.argv[1]), sys.argv[2] == "ends"
[name], [kind] = get_job_qpu_resources_and_types()
type_ = next(each for each in map(ResourceType.__dict__.get, dir(ResourceType))
             if str(each).lower().rpartition(".")[2] == kind.replace("-", ""))
qpu = QuantumResource(name, type_)
token = qpu.acquire()
status = qpu.status().to_dict()
target = json.loads(qpu.target().value)
task = qpu.task_start(payload)
state = qpu.task_status(task)
while ends and int(state) < 2:
    time.sleep(0.05)
    state = qpu.task_status(task)
result = qpu.task_result(task).value if ends else None
print(json.dumps({"token": token, "status": status["status"], "target": bool(target), "task": task, "result": result}))
"""


@dataclass(frozen=True)
class Vendor:
    """`device` names it for us, `name` is what programs call the resource, `secrets` what no job may see."""

    open: Any
    name: str
    device: str
    payload: str
    result: str
    secrets: tuple[str, ...]
    secret_keys: tuple[str, ...]


VENDORS = {
    "iqm-server": Vendor(
        accounts.iqm_server,
        "our_garnet",
        "garnet:mock",
        'Payload.IQMServer(json.dumps({"circuits": [], "shots": 10}), "circuit", False, "ours")',
        '"00": 5',
        ("iqm-token-0123456789",),
        ("QRMI_IQM_ISA_TOKEN",),
    ),
    "alice-bob-felis": Vendor(
        accounts.alice_bob_felis,
        "our_cats",
        TARGET,
        'Payload.AliceBobFelis("define void @main() { ; µ\\n}", "{}")',
        "11,57\n00,43\n",
        ("felis-password-0123456789",),
        ("QRMI_AB_FELIS_API_KEY",),
    ),
    "pasqal-cloud": Vendor(
        accounts.pasqal_cloud,
        "FRESNEL",
        "FRESNEL",
        'Payload.PasqalCloud(json.dumps({"version": "1"}), 10)',
        '"01":10',
        ("pasqal-secret-0123456789",),
        ("QRMI_PASQAL_CLOUD_CLIENT_SECRET",),
    ),
}


@dataclass
class Site:
    vendor: Vendor
    account: Account
    daemon: Qtandemd

    def begin(self, job: str) -> dict[str, str]:
        """Start a job on the QPU; its variables."""
        native = f"{self.vendor.name}:1"
        body = {"manager": "local", "job": job, "uid": os.geteuid(), "user": getpass.getuser(), "native": native}
        while (answer := self.daemon.daemon.post("start", body=body))["verdict"] == "wait":
            pass
        assert answer["verdict"] == "admit", answer
        return self.daemon.daemon.get("runs", answer["run"], "environment")["env"]

    def run(self, env: dict[str, str], home: Path, ends: str = "ends") -> dict[str, Any]:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, self.vendor.payload, ends],
            env={"PATH": os.environ["PATH"], "HOME": str(home), **env},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr + self.daemon.said()[-2000:]
        return json.loads(ran.stdout.splitlines()[-1])

    def call(self, env: dict[str, str], method: str, path: str, body: object = None) -> tuple[int, str]:
        """A call with the run's token, as the vendor's programs make it."""
        base = next(value for key, value in env.items() if key.endswith(("ISA_ENDPOINT", "BASE_ENDPOINT", "BASE_URL")))
        headers = {"Authorization": self._authorization(env, base), "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        return _call(urllib.request.Request(f"{base}/{path}", data, headers, method=method))

    def _authorization(self, env: dict[str, str], base: str) -> str:
        key = next(env[f"{self.vendor.name}_{key}"] for key in self.vendor.secret_keys)
        if self.account.type == "iqm-server":
            return f"Bearer {key}"
        if self.account.type == "alice-bob-felis":
            return f"Basic {key}"
        form = f"grant_type=client_credentials&client_id=qtandem&client_secret={key}".encode()
        status, said = _call(urllib.request.Request(f"{base}/oauth/token", form))
        return f"Bearer {json.loads(said)['access_token']}" if status == 200 else "Bearer none"

    def job(self, task: str) -> str:
        return {
            "iqm-server": f"api/v1/jobs/{task}",
            "alice-bob-felis": f"v1/jobs/{task}",
            "pasqal-cloud": f"core-fast/api/v2/batches/{task}",
        }[self.account.type]


def _call(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(params=sorted(VENDORS))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    vendor = VENDORS[request.param]
    account = vendor.open()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {key: value for key, value in account.settings.items() if key not in vendor.secret_keys}
    (tmp_path / "key").write_text(account.settings[vendor.secret_keys[0]])
    (tmp_path / "key").chmod(0o600)
    resource = {
        "type": account.type,
        "settings": {**settings, "backend": vendor.device, "state_dir": str(tmp_path / "records")},
        "secrets": {vendor.secret_keys[0]: str(tmp_path / "key")},
        "slots": 2,
        "poll_s": 1,
    }
    made = Qtandemd({vendor.name: resource}, poll_waiting_s=1, releasing_wait_s=20)
    made.config.write_text(made.config.read_text().replace("[timing]", f'proxy = "127.0.0.1:{port}"\n[timing]', 1))
    made.start()
    yield Site(vendor, account, made)
    made.close()
    account.close()


@pytest.mark.timeout(150)
def test_an_unmodified_program_executes_and_sees_no_key(site: Site, tmp_path: Path) -> None:
    env = site.begin("1")
    seen = " ".join(env.values()) + base64.b64encode(b" ".join(value.encode() for value in env.values())).decode()
    assert not [secret for secret in site.vendor.secrets if secret in seen]
    assert site.account.fake.url not in seen
    told = site.run(env, tmp_path)
    assert told["status"] == "online"
    assert told["target"]
    assert site.vendor.result in told["result"]
    [started] = [each for each in site.account.fake.log if each["event"] == "task_start"]
    assert started["task"] == told["task"]
    assert not [secret for secret in site.vendor.secrets if secret in site.daemon.said()]


@pytest.mark.timeout(150)
def test_a_token_opens_the_run_s_own_tasks_and_ends_with_it(site: Site, tmp_path: Path) -> None:
    first, second = site.begin("1"), site.begin("2")
    site.account.fake.task_s = 600
    mine, theirs = (site.run(env, tmp_path, "goes on")["task"] for env in (first, second))
    assert site.call(first, "GET", site.job(mine))[0] == 200
    before = len([each for each in site.account.fake.seen if each.method != "GET"])
    for method, path in [
        ("GET", site.job(theirs)),
        ("POST", f"{site.job(theirs)}/cancel"),
        ("PATCH", f"{site.job(theirs)}/cancel"),
        ("DELETE", site.job(theirs)),
        ("GET", site.job("11111111-1111-4111-8111-111111111111")),
        ("GET", "api/v1/jobs"),
        ("GET", "api/v1/quantum-computers"),
        ("GET", "api/v1/quantum-computers/emerald"),
        ("POST", "api/v1/jobs/emerald/circuit"),
        ("GET", "core-fast/api/v1/devices/specs/EMU_FREE"),
        ("GET", "core-fast/api/v1/batches"),
        ("GET", "account/api/v1/auth/info"),
        ("GET", "v1/jobs/"),
        ("PUT", site.job(mine)),
    ]:
        assert site.call(first, method, path, {} if method == "POST" else None)[0] in (400, 403), path
    assert len([each for each in site.account.fake.seen if each.method != "GET"]) == before
    site.daemon.daemon.post("end", body={"manager": "local", "job": "1"})
    stopped = [each["task"] for each in site.account.fake.log if each["event"] == "task_stop"]
    assert stopped == [mine], "the end of the lease cancels what the program left behind, and nobody else's"
    assert site.call(first, "GET", site.job(mine))[0] == 401
    assert site.call(second, "GET", site.job(theirs))[0] == 200


@pytest.mark.timeout(150)
def test_what_a_vendor_says_is_cleaned_of_the_credential_and_leads_nowhere(site: Site, tmp_path: Path) -> None:
    env, fake = site.begin("1"), site.account.fake
    task = site.run(env, tmp_path, "goes on")["task"]
    path, mark = site.job(task), f"{site.job(task)}$"
    real = fake.seen[-1].headers["authorization"].partition(" ")[2]
    echo = {"error": f"the credential {real} of {site.vendor.secrets[0]} is odd"}
    fake.fail(500, path=mark, times=1, body=echo, headers={"Set-Cookie": "a=b", "X-Key": real, "Authorization": real})
    status, said = site.call(env, "GET", path)
    assert status == 500
    assert json.loads(said) == {"error": "the credential *** of *** is odd"}
    fake.fail(302, path=mark, times=1, headers={"Location": f"{fake.url}/stolen"})
    assert site.call(env, "GET", path)[0] >= 500
    assert not [each for each in fake.seen if each.path == "/stolen"]
    sent = [each for each in fake.seen if each.path.endswith(path)]
    assert {each.headers["authorization"].partition(" ")[2] for each in sent} == {real}
    assert "qt-" not in " ".join(each.headers["authorization"] for each in fake.seen if "authorization" in each.headers)

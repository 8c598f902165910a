"""The fake `pbs` module against PBS's own: the same hook, the same event, the same daemon, and so the same outcome."""

from __future__ import annotations

import base64
import re
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from qtandem.core.installing import assembled, with_constants
from tests.fakes.pbs.hooks import HOOKS
from tests.fakes.pbs.module import Event, FakePbs, Job
from tests.fakes.pbs.values import pbs_env
from tests.live.cluster import SOCKET
from tests.live.pbs_cluster import PbsCluster
from tests.live.scenarios.pbs_forms import VALUES

MANAGERS = ("pbs",)
FOLDER = "/root/offline"
RESOURCES: dict[str, type] = {"qpu": str, "quantum_resources": str} | dict.fromkeys(
    ("qpu_north", "qpu_east", "qpu_south", "qpu_physics_only", "qpu_main_only", "qpu_direct", "qpu_ibm_lab"), int
)
NAMES = {"EXECJOB_BEGIN": "node.py", "EXECJOB_LAUNCH": "node.py", "EXECJOB_END": "node.py", "EXECJOB_ABORT": "node.py"}
PASS = """import base64, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(base64.b64decode(sys.stdin.read()))
said = b""
while more := s.recv(65536):
    said += more
print(base64.b64encode(said).decode())
"""


@dataclass
class Seen:
    """What a hook did with an event."""

    accepted: bool
    message: str
    written: dict[str, str]
    env: str = ""


class Passage:
    """A socket here whose calls the cluster's daemon answers."""

    def __init__(self, cluster: PbsCluster, path: Path) -> None:
        self._cluster, self._server = cluster, socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                asked = b""
                while not _whole(asked):
                    asked += connection.recv(65536)
                python = ["/opt/qtandem/bin/python", "-c", PASS, SOCKET]
                done = self._cluster.exec("ctl", python, stdin=base64.b64encode(asked).decode())
                connection.sendall(base64.b64decode(done.stdout))


def _whole(asked: bytes) -> bool:
    head, end, body = asked.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return bool(end) and len(body) >= int(length[1] if length else 0)


class Both:
    """One PBS of its own, and the fake one, with the same hooks."""

    def __init__(self, cluster: PbsCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.passage = Passage(cluster, folder / "s")
        (folder / "names").write_text(cluster.shell("ctl", "cat /run/qtandem/names").check().stdout)
        cluster.shell("ctl", f"rm -rf {FOLDER}; mkdir -p {FOLDER}/runs").check()

    def hook(self, name: str, there: bool) -> str:
        place = Path(FOLDER) if there else self.folder
        constants = {
            "CLUSTER": "lab", "SOCKET": SOCKET if there else str(self.folder / "s"), "DEADLINE_MS": 20_000,
            "NAMES": str(place / "names") if not there else "/run/qtandem/names", "RUNS": str(place / "runs"),
            "PRIV": "/var/spool/pbs/server_priv", "DOWN_S": 1, "CALL_S": 10, "BEGIN_S": 2, "END_S": 10,
            "GIVE_BACK_ON_SUSPEND": "",
        }  # fmt: skip
        text = assembled((HOOKS / name).read_text(), HOOKS)
        return with_constants(text, constants, "python")

    def environment(self, run: str, lines: str) -> None:
        """What execjob_begin would have left on the host of a run."""
        (self.folder / "runs" / run).mkdir(parents=True)
        (self.folder / "runs" / run / "environment").write_text(lines)
        self.cluster.shell("ctl", f"mkdir -p {FOLDER}/runs/{run}").check()
        self.cluster.exec("ctl", ["tee", f"{FOLDER}/runs/{run}/environment"], stdin=lines).check()

    def real(self, event: str, resources: Mapping[str, str], variables: str, fields: Mapping[str, str]) -> Seen:
        name = NAMES.get(event, "server.py")
        given = {"type": event.lower(), "hook_name": "qtandem", "hook_type": "site", "requestor": "root",
                 "requestor_host": "ctl", "user": "pbsadmin", "alarm": "60"}  # fmt: skip
        given |= {f"job.{key}": value for key, value in fields.items() if key != "env"}
        if event in NAMES:
            given["job._msmom"] = "True"
        given |= {f"job.Resource_List[{key}]": value for key, value in resources.items()}
        if variables:
            given["job.Variable_List"] = variables
        if event == "EXECJOB_LAUNCH":
            given |= {"progname": "/bin/bash", "env": f'"""{fields.get("env", "")}"""'}
        lines = "".join(f"pbs.event().{key}={value}\n" for key, value in given.items())
        for file, text in (("in", lines), ("hook.py", self.hook(name, there=True))):
            self.cluster.exec("ctl", ["tee", f"{FOLDER}/{file}"], stdin=text).check()
        program = (
            f"cd {FOLDER} && rm -f out && /opt/pbs/bin/pbs_python --hook -i in -o out -l {FOLDER}/log "
            "-r /var/spool/pbs/server_priv/resourcedef hook.py && cat out"
        )
        out = self.cluster.shell("ctl", program, timeout=60).check().stdout
        message = re.search(r"^pbs\.event\(\)\.reject_msg=(.*?)(?=^pbs\.event|\Z)", out, re.MULTILINE | re.DOTALL)
        written = dict(re.findall(r"^pbs\.event\(\)\.job\.Resource_List\[(\w+),\w+\]=(.*)$", out, re.MULTILINE))
        env = re.search(r'^pbs\.event\(\)\.env="""(.*?)"""$', out, re.MULTILINE | re.DOTALL)
        accepted = "pbs.event().accept=True" in out
        return Seen(accepted, message[1].rstrip("\n") if message else "", written, env[1] if env else "")

    def fake(self, event: str, resources: Mapping[str, str], variables: str, fields: Mapping[str, str]) -> Seen:
        pbs = FakePbs(RESOURCES)
        given: dict[str, Any] = {key: value for key, value in fields.items() if key not in ("id", "env")}
        if variables:
            given["Variable_List"] = pbs_env(variables)
        typed = {key: int(value) if RESOURCES.get(key) is int else value for key, value in resources.items()}
        job = Job(fields.get("id", ""), pbs.list(typed), **given)
        params: dict[str, Any] = {}
        if event == "EXECJOB_LAUNCH":
            env = pbs_env(fields.get("env", ""), generic=True)
            params = {"env": env, "argv": [], "progname": "/bin/bash"}
        outcome = pbs.run(self.hook(NAMES.get(event, "server.py"), there=False), Event(event, job, "root", **params))
        assert not outcome.failed, outcome.log
        written = {key: str(value) for key, value in outcome.job.Resource_List.written.items()}
        env_text = str(outcome.event.__dict__["env"]) if params else ""
        return Seen(outcome.accepted, outcome.message, written, env_text)


@pytest.fixture
def both(cluster: PbsCluster) -> Iterator[Both]:
    with tempfile.TemporaryDirectory(prefix="qt") as folder:
        made = Both(cluster, Path(folder))
        yield made
        made.passage.close()


QUEUED: list[tuple[dict[str, str], str]] = [
    ({"qpu": "east"}, ""),
    ({"qpu": "north:2+east"}, "A=b"),
    ({"qpu": "east/south"}, ""),
    ({"quantum_resources": "east,south"}, ""),
    ({"select": "1:ncpus=1:east=1"}, ""),
    ({"select": "2:ncpus=1:mem=1mb+1:ncpus=1:south=1"}, ""),
    ({}, "A=a\\,b,QRMI_QPU_RESOURCES=east"),
    ({}, "QRMI_QPU_RESOURCES=east\\,south,Z=1"),
    ({}, "QRMI_QPU_RESOURCES=east:south"),
    ({"qpu_east": "1"}, ""),
    ({"qpu": "east", "qpu_east": "1"}, ""),
    ({"qpu": "east", "qpu_south": "1"}, ""),
    ({"qpu": "nowhere"}, ""),
    ({"qpu": "east:7"}, ""),
    ({"qpu": "east", "quantum_resources": "south"}, ""),
    ({"qpu_east": "9"}, ""),
    ({"qpu": 'a;"$(id)"'}, ""),
    ({"qpu": "any:qubits=9999"}, ""),
    ({"walltime": "01:00:00"}, "A=b"),
]


@pytest.mark.parametrize(("resources", "variables"), QUEUED, ids=[f"{a} {b}".strip() for a, b in QUEUED])
def test_queuejob(both: Both, resources: dict[str, str], variables: str) -> None:
    given = {"select": "1:ncpus=1", **resources}
    fields = {"id": "1.ctl", "queue": "main", "Account_Name": "physics"}
    real = both.real("QUEUEJOB", given, variables, fields)
    assert both.fake("QUEUEJOB", given, variables, fields) == real


def test_execjob_launch_with_any_value(both: Both) -> None:
    values = [*VALUES[:-1], "\\\\", 'a\\"b', "\x01", "", "a" * 2000]
    lines = "".join(f"V{number}={quote(value)}\n" for number, value in enumerate(values)) + "QTANDEM_SOCKET=/x\n"
    both.environment("pbs-lab-7.1", lines)
    resources = {"select": "1:ncpus=1", "qpu_east": "1"}
    fields = {"id": "7.ctl", "run_version": "1", "euser": "root", "env": 'PATH=/bin,A=a\\,b,B=say \\"hi\\"'}
    real = both.real("EXECJOB_LAUNCH", resources, "", fields)
    assert real.accepted
    assert both.fake("EXECJOB_LAUNCH", resources, "", fields) == real


def test_execjob_launch_of_what_pbs_cannot_carry(both: Both) -> None:
    both.environment("pbs-lab-7.1", f"KEY={quote('a' + chr(92) + ',b')}\n")
    fields = {"id": "7.ctl", "run_version": "1", "euser": "root", "env": "PATH=/bin"}
    real = both.real("EXECJOB_LAUNCH", {"qpu_east": "1"}, "", fields)
    assert "KEY cannot be given" in real.message
    ours = both.fake("EXECJOB_LAUNCH", {"qpu_east": "1"}, "", fields)
    assert (ours.accepted, ours.message) == (real.accepted, real.message)


@pytest.mark.parametrize("event", ["EXECJOB_BEGIN", "EXECJOB_LAUNCH", "EXECJOB_END", "EXECJOB_ABORT"])
def test_events_of_a_run_that_pbs_does_not_have(both: Both, event: str) -> None:
    fields = {"id": "999999.ctl", "run_version": "1", "euser": "root", "env": "PATH=/bin"}
    real = both.real(event, {"select": "1:ncpus=1", "qpu_east": "1"}, "", fields)
    ours = both.fake(event, {"select": "1:ncpus=1", "qpu_east": "1"}, "", fields)
    assert (ours.accepted, ours.message) == (real.accepted, real.message)
    assert real.accepted is (event in ("EXECJOB_END", "EXECJOB_ABORT"))


@pytest.mark.parametrize("event", ["EXECJOB_BEGIN", "EXECJOB_LAUNCH", "EXECJOB_END"])
def test_a_job_without_a_qpu_passes(both: Both, event: str) -> None:
    fields = {"id": "8.ctl", "run_version": "1", "euser": "root", "env": "PATH=/bin,A=b"}
    real = both.real(event, {"select": "1:ncpus=1"}, "", fields)
    assert both.fake(event, {"select": "1:ncpus=1"}, "", fields) == real
    assert real.accepted

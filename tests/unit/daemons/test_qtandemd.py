"""The whole daemon, as a process, on a simulated QPU."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qtandem.core.client.calls import wait_for_task
from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.core.providers.simulator.device import SimulatedDevice
from qtandem.daemons import enrol
from tests.fakes.qtandemd import ROOT, Qtandemd, simulator

BELL = 'OPENQASM 2.0; include "qelib1.inc"; qreg q[2]; creg c[2]; h q[0]; cx q[0],q[1]; measure q -> c;'
SECRET = "sup3r-secret-vendor-key"


@pytest.fixture
def qtandemd(tmp_path: Path) -> Iterator[Qtandemd]:
    made = Qtandemd({"sim": simulator(tmp_path / "sim", slots=2)}, poll_simulator_s=0.2, reap_s=600)
    yield made
    made.close()


def start_call(job: str, qpus: str = "sim:1") -> dict[str, object]:
    return {"manager": "local", "job": job, "uid": os.geteuid(), "user": getpass.getuser(), "native": qpus}


def until(condition: Callable[[], object], timeout: float = 15.0) -> object:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError("it did not come to that")


def started(qtandemd: Qtandemd, job: str) -> str:
    while (answer := qtandemd.daemon.post("start", body=start_call(job)))["verdict"] == "wait":
        pass
    assert answer["verdict"] == "admit", answer
    return answer["run"]


def sessions(device: SimulatedDevice) -> list[str]:
    """Keys of the sessions that are open at the device."""
    opened: list[str] = []
    for entry in device.log():
        if entry["event"] == "acquire":
            opened.append(entry["key"])
        elif entry["event"] == "release":
            opened.remove(entry["key"])
    return opened


@pytest.mark.timeout(120)
def test_submit_start_task_result_end(qtandemd: Qtandemd, tmp_path: Path) -> None:
    daemon = qtandemd.start().daemon
    body = {"manager": "local", "uid": os.geteuid(), "request": "sim:2"}
    assert daemon.post("submit", body=body)["native"] == {"qpus": "sim:2"}
    run = started(qtandemd, "1")
    assert daemon.get("runs", run, "environment")["env"]["QRMI_JOB_QPU_TYPES"] == "simulator"
    payload = {"kind": "qasm2", "program": BELL, "shots": 200}
    tasks = [daemon.post("tasks", body={"resource": "sim", "payload": payload}) for _ in range(2)]
    done = [wait_for_task(daemon, task["id"], 60.0) for task in tasks]
    assert [task["state"] for task in done] == ["completed", "completed"]
    counts = json.loads(daemon.get("tasks", tasks[0]["id"], "result")["text"])
    assert "00" in json.dumps(counts)
    assert daemon.post("end", body={"manager": "local", "job": "1", "exit_code": 0}) == {"ended": 1}
    [row] = daemon.get("usage")["usage"]
    assert (row["run"], row["tasks"], row["shots"]) == (run, 2, 400)
    assert daemon.get("leases")["leases"] == []
    assert sessions(SimulatedDevice(tmp_path / "sim")) == []
    assert (qtandemd.folder / "run" / "names").read_text() == "sim\tsim\t2\n"
    assert json.loads((qtandemd.folder / "run" / "heartbeat.local").read_text())["healthy"] is True
    until(lambda: (qtandemd.folder / "qtandem.prom").exists())
    assert qtandemd.stop() == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_held_leases_and_tasks_outlive_the_daemon(qtandemd: Qtandemd, tmp_path: Path, how: signal.Signals) -> None:
    device = SimulatedDevice(tmp_path / "sim")
    daemon = qtandemd.start().daemon
    started(qtandemd, "1")
    payload = {"kind": "qasm2", "program": BELL, "shots": 50}
    made = [daemon.post("tasks", body={"resource": "sim", "payload": payload}) for _ in range(3)]
    qtandemd.stop(how)
    assert len(sessions(device)) == 1
    daemon = qtandemd.start().daemon
    assert daemon.post("start", body=start_call("1"))["verdict"] == "admit"
    for task in made:
        assert wait_for_task(daemon, task["id"], 60.0)["state"] == "completed"
    sent = [entry["key"] for entry in device.log() if entry["event"] == "task_start"]
    assert sorted(sent) == sorted(task["id"] for task in made)
    assert daemon.post("end", body={"manager": "local", "job": "1"}) == {"ended": 1}
    assert sessions(device) == []


@pytest.mark.timeout(60)
def test_a_reload_takes_up_good_configurations_and_refuses_bad_ones(qtandemd: Qtandemd, tmp_path: Path) -> None:
    daemon = qtandemd.start().daemon
    run = started(qtandemd, "1")

    def names() -> list[str]:
        return [row["name"] for row in daemon.get("resources")["resources"]]

    qtandemd.resources["second"] = simulator(tmp_path / "second")
    qtandemd.write()
    qtandemd.send(signal.SIGHUP)
    until(lambda: names() == ["sim", "second"])
    until(lambda: daemon.get("resources")["resources"][1]["open"])
    for fault, word in (
        ("[resources.third]\ntipe = 'simulator'\n", "Did you mean type?"),
        ("[resources.third]\ntype = 'simulater'\n", "has no provider"),
        ("this is not TOML", "is not TOML"),
    ):
        qtandemd.write(fault)
        qtandemd.send(signal.SIGHUP)
        until(lambda word=word: word in "".join(daemon.get("healthz")["problems"]))
        assert names() == ["sim", "second"]
    del qtandemd.resources["sim"]
    qtandemd.write()
    qtandemd.send(signal.SIGHUP)
    until(lambda: names() == ["second"])
    assert daemon.get("healthz")["problems"] == []
    # The sensor of what is gone is closed, and the lease on it can still be given back.
    sensors = qtandemd.folder / "local" / "sensors.json"
    until(lambda: json.loads(sensors.read_text())["sim"]["closed"] == 2)
    assert daemon.post("end", body={"manager": "local", "job": "1"}) == {"ended": 1}, run
    assert sessions(SimulatedDevice(tmp_path / "sim")) == []


@pytest.mark.timeout(60)
def test_a_node_reaches_the_daemon_through_its_relay(qtandemd: Qtandemd, tmp_path: Path) -> None:
    enrol.init(qtandemd.folder / "tls", ["127.0.0.1"], time.time())
    qtandemd.listen = "127.0.0.1:0"
    qtandemd.write()
    daemon = qtandemd.start().daemon
    [port] = re.findall(r'"port": (\d+)', qtandemd.said())
    server, node = f"127.0.0.1:{port}", tmp_path / "node"
    token = enrol.issue_token(qtandemd.folder / "tls", "c1", time.time())
    enrol.enrol(server, enrol.server_fingerprint(qtandemd.folder / "tls"), token, "c1", node)
    config = tmp_path / "relay.toml"
    paths = {"socket": qtandemd.folder / "r.sock", "runtime_dir": tmp_path / "run", "tls_dir": node}
    config.write_text(
        "[daemon]\n" + "".join(f'{key} = "{path}"\n' for key, path in paths.items()) + f'[relay]\nserver = "{server}"\n'
    )
    (tmp_path / "run").mkdir()
    argv = [sys.executable, "-m", "qtandem.daemons.relay", "--config", str(config)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT / ".dev")}, cwd=tmp_path) as relay:
        try:
            remote = Daemon(qtandemd.folder / "r.sock", patience_s=20.0)
            assert remote.get("healthz")["healthy"] is True
            run = daemon.post("start", body={**start_call("1"), "nodes": "c1"})["run"]
            # On a node the job's own user has what is its own, and nobody reports for the manager.
            assert remote.get("runs", run, "environment")["uid"] == os.geteuid()
            payload = {"kind": "qasm2", "program": BELL, "shots": 10}
            task = remote.post("tasks", body={"resource": "sim", "payload": payload})
            assert wait_for_task(remote, task["id"], 60.0)["state"] == "completed"
            for path, body in (("start", start_call("2")), ("end", {"manager": "local", "job": "1"})):
                with pytest.raises(QtandemError) as refused:
                    remote.post(path, body=body)
                assert refused.value.code == "not-authorised"
        finally:
            relay.terminate()
    assert len(daemon.get("leases")["leases"]) == 1


@pytest.mark.timeout(60)
def test_a_stop_answers_calls_that_wait(qtandemd: Qtandemd, tmp_path: Path) -> None:
    daemon = qtandemd.start().daemon
    SimulatedDevice(tmp_path / "sim").set(task_s=600)
    started(qtandemd, "1")
    task = daemon.post("tasks", body={"resource": "sim", "payload": {"kind": "qasm2", "program": BELL, "shots": 10}})
    until(lambda: daemon.get("tasks", task["id"])["state"] == "running")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: daemon.get("tasks", task["id"], wait=50.0))
        time.sleep(0.3)
        began = time.monotonic()
        assert qtandemd.stop() == 0
        assert waiting.result()["state"] == "running"
    assert time.monotonic() - began < 8.0


@pytest.mark.timeout(60)
def test_a_bad_configuration_does_not_start_and_says_why(qtandemd: Qtandemd) -> None:
    qtandemd.write("[daemon2]\n")
    assert qtandemd.spawn().wait(50) == 5
    assert "qtandem.toml: daemon2: is not a key" in qtandemd.said()


@pytest.mark.timeout(60)
def test_a_second_daemon_on_the_same_files_does_not_start(qtandemd: Qtandemd) -> None:
    first = qtandemd.start()
    running, first.process = first.process, None
    assert first.spawn().wait(50) != 0
    first.process = running
    assert first.daemon.get("healthz")["healthy"] is True


@pytest.mark.timeout(60)
def test_the_service_manager_hears_of_every_state(qtandemd: Qtandemd) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(qtandemd.folder / "notify"))
        receiver.settimeout(10.0)
        qtandemd.environment = {"NOTIFY_SOCKET": str(qtandemd.folder / "notify"), "WATCHDOG_USEC": "200000"}
        qtandemd.start()
        qtandemd.send(signal.SIGHUP)
        heard: list[str] = []
        until(lambda: heard.append(receiver.recv(4096).decode()) or any("RELOADING=1" in each for each in heard))
        until(lambda: "READY=1" in (heard.append(receiver.recv(4096).decode()) or heard[-1]))
        assert qtandemd.stop() == 0
        until(lambda: "STOPPING=1" in (heard.append(receiver.recv(4096).decode()) or heard[-1]))
    assert "WATCHDOG=1" in heard
    assert any(each.startswith("READY=1") for each in heard)


@pytest.mark.timeout(60)
def test_no_secret_reaches_log_answers_or_public_files(qtandemd: Qtandemd, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    qtandemd.resources["sim"]["secrets"] = {"QRMI_API_KEY": str(key)}
    qtandemd.write()
    daemon = qtandemd.start().daemon
    started(qtandemd, "1")
    SimulatedDevice(tmp_path / "sim").set(fault="500")
    until(lambda: "poll failed" in qtandemd.said())
    answers = [json.dumps(daemon.get(path)) for path in ("resources", "facts", "leases", "healthz", "usage")]
    with pytest.raises(QtandemError) as refused:
        daemon.post("submit", body={"manager": "local", "uid": "x", "request": SECRET})
    answers.append(str(refused.value))
    qtandemd.stop()
    assert SECRET not in qtandemd.said()
    assert SECRET not in "".join(answers)
    tokens = [entry["token"] for entry in SimulatedDevice(tmp_path / "sim").log() if entry.get("token")]
    assert tokens
    for path in (path for path in qtandemd.folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for secret in (SECRET, *tokens):
            assert secret.encode() not in content, path


@pytest.mark.timeout(60)
def test_a_rotated_key_is_taken_up_without_a_restart_and_running_tasks_go_on(
    qtandemd: Qtandemd, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("the-first-key")
    key.chmod(0o600)
    qtandemd.resources["sim"]["secrets"] = {"api_key": {"command": ["/bin/cat", str(key)], "refresh_s": 0.2}}
    qtandemd.timing["secrets_s"] = 0.1
    qtandemd.write()
    daemon = qtandemd.start().daemon
    started(qtandemd, "1")
    SimulatedDevice(tmp_path / "sim").set(task_s=2)
    task = str(daemon.post("tasks", body={"payload": {"kind": "qasm2", "program": BELL, "shots": 10}})["id"])
    until(lambda: daemon.get("tasks", task)["state"] == "running")
    key.write_text(SECRET)
    until(lambda: "secrets renewed" in qtandemd.said())
    assert wait_for_task(daemon, task, 20.0)["state"] == "completed"
    assert daemon.get("facts")["facts"][0]["availability"] == "online"
    qtandemd.stop()
    assert SECRET not in qtandemd.said()

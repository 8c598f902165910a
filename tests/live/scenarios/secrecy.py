"""Secrets stay where they belong, and a job's own words never redirect a privileged process."""

from __future__ import annotations

import base64
import json
import re

import pytest

from tests.live.cluster import SOCKET, Cluster
from tests.live.hosts import PYTHON
from tests.live.scenarios.main_job import TASK

# The seeded secrets: files of the site, and what was made at install. Read by root on the daemon's host.
SEEDS = "/etc/qtandem/secrets/* /etc/qtandem/master.key"
KEYS = "/etc/qtandem/tls/*.key /etc/qtandem/tls/*.pem"
EVERYWHERE = "/etc /run /var /tmp /home /dev/shm /opt/qtandem/etc /usr/libexec/qtandem"


def _seeds(cluster: Cluster) -> list[str]:
    """Every secret as text, also in the forms in which one could leak."""
    found = cluster.shell(cluster.control, f"for f in {SEEDS}; do base64 -w0 $f; echo; done").check().stdout
    raw = [base64.b64decode(line) for line in found.splitlines()]
    for host in (cluster.control, *cluster.workers):
        keys = cluster.shell(host, f"cat {KEYS} 2>/dev/null").stdout
        for block in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.*?)-----END", keys, re.DOTALL):
            raw += [line.encode() for line in block.splitlines()]
    config = cluster.shell(cluster.control, "cat /etc/qtandem/qrmi_config.json").check().stdout
    for entry in json.loads(config)["resources"]:
        raw += [value.encode() for key, value in entry["environment"].items() if "KEY" in key or "TOKEN" in key]
    texts: set[str] = set()
    for secret in raw:
        texts.add(secret.decode(errors="ignore").strip())
        texts.add(base64.b64encode(secret.strip()).decode().rstrip("="))
        texts.add(secret.hex())
    seeds = sorted(text for text in texts if len(text) >= 8)
    assert len(seeds) >= 6
    return seeds


def _vendor_tokens(cluster: Cluster) -> list[str]:
    return [str(row["token"]) for qpu in ("east", "north") for row in cluster.witness(qpu) if row["event"] == "acquire"]


def _grep(cluster: Cluster, host: str, seeds: list[str], where: str, user: str = "") -> list[str]:
    """Files in which a seed stands, as far as the user may read; the pattern goes by pipe, so `ps` has it not."""
    command = f"timeout 100 grep -rlIaF -f - {where} 2>/dev/null"
    done = cluster.shell(host, command, user, stdin="\n".join(seeds), timeout=120)
    return done.stdout.split()


@pytest.mark.timeout(400)
def test_no_seeded_secret_can_be_found_anywhere(cluster: Cluster) -> None:
    seeds = _seeds(cluster)
    watcher = cluster.submit(
        "for i in $(seq 100); do cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n';"
        " sleep 0.05; done | sort -u",
        user="bob",
        nodes="c1",
    )
    jobs = [
        cluster.submit(TASK, qpu="east", nodes="c1"),
        cluster.submit("env; sleep 2", qpu="north", nodes="c1"),
        cluster.submit("env >/dev/null; sleep 2", qpu="direct", nodes="c1"),
    ]
    cluster.wait_ended([*jobs, watcher], within=90)
    seeds += _vendor_tokens(cluster)

    records = "\n".join(cluster.records(job) for job in [*jobs, watcher])
    outputs = [cluster.output(job) for job in jobs] + [cluster.output(watcher, "bob")]
    for text in (records, *outputs):
        assert not [seed for seed in seeds if seed in text]

    for host in (cluster.control, *cluster.workers):
        assert _grep(cluster, host, seeds, EVERYWHERE, user="bob") == []
        assert _grep(cluster, host, seeds, "/var/log /home /tmp") == []
    for container in (cluster.control, *cluster.workers):
        printed = cluster.shell(container, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert not [seed for seed in seeds if seed in printed]
    for path in ("/v1/resources", "/v1/facts", "/v1/leases", f"/v1/explain/{jobs[0]}", "/v1/usage", "/v1/healthz"):
        _, body = cluster.api(path)
        assert not [seed for seed in seeds if seed in json.dumps(body)], path
    metrics = cluster.shell(cluster.control, "curl -s http://127.0.0.1:9447/metrics").stdout
    assert not [seed for seed in seeds if seed in metrics]


def test_a_direct_resource_gives_its_key_to_its_own_job_alone(cluster: Cluster) -> None:
    secret = cluster.shell(cluster.control, "cat /etc/qtandem/secrets/direct").check().stdout.strip()
    mine = cluster.submit("env; sleep 4", qpu="direct", nodes="c1")
    cluster.wait_state(mine, "running")
    other = cluster.submit("env; cat /run/qtandem/runs/*/environment", user="bob", nodes="c1")
    same = cluster.submit("env", user="alice", nodes="c1")
    cluster.wait_ended([mine, other, same])
    assert secret in cluster.output(mine)
    assert secret not in cluster.output(other, "bob")
    assert secret not in cluster.output(same)
    assert secret not in cluster.records(mine)
    assert cluster.shell("c1", f"ls /run/qtandem/runs | grep -cx {mine}").stdout.strip() == "0"


HOSTILE = {
    "QTANDEM_SOCKET": "/tmp/evil.sock",
    "QTANDEM_CONFIG": "/home/bob/evil.toml",
    "QTANDEM_RUN": "slurm:lab:1.0",
    "QRMI_JOB_QPU_RESOURCES": "north,east,south",
    "QRMI_JOB_QPU_TYPES": "ibm-quantum-system",
    "QRMI_JOB_UID": "0",
    "SLURM_JOB_QPU_RESOURCES": "north",
    "east_QRMI_JOB_ACQUISITION_TOKEN": "stolen",
    "east_QRMI_IBM_QS_ENDPOINT": "http://evil.example",
    "LD_PRELOAD": "/home/bob/evil.so",
    "PYTHONPATH": "/home/bob",
    "PYTHONSTARTUP": "/home/bob/evil.py",
}


def test_a_jobs_environment_redirects_nothing(cluster: Cluster) -> None:
    evil = "import os,time\nopen('/tmp/pwned-%d' % os.getuid(), 'w').write('x')\n"
    for name in ("sitecustomize.py", "usercustomize.py", "evil.py"):
        cluster.exec(cluster.control, ["tee", f"/home/bob/{name}"], "bob", stdin=evil).check()
    hostile = {name: value for name, value in HOSTILE.items() if name != "LD_PRELOAD"}
    job = cluster.submit("env", "east", "bob", env=hostile, args=cluster.whole_environment)
    assert cluster.wait_state(job, "ended").outcome == "completed"
    lines = cluster.output(job, "bob").splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert env["QRMI_JOB_QPU_RESOURCES"] == "east"
    assert env["QRMI_JOB_QPU_TYPES"] == "simulator"
    assert env["QRMI_JOB_UID"] == "2002"
    assert env["QTANDEM_RUN"] == cluster.run_of(job)
    assert env["QTANDEM_SOCKET"] == SOCKET
    assert env["east_QRMI_JOB_ACQUISITION_TOKEN"] != "stolen"
    for host in (cluster.control, *cluster.workers):
        roots = cluster.shell(host, "ls /tmp/pwned-0 /tmp/pwned-$(id -u slurm) /tmp/pwned-$(id -u qtandem)").stdout
        assert roots == "", f"a privileged process on {host} ran the job's code"


def test_another_users_run_lease_and_lifecycle_are_out_of_reach(cluster: Cluster) -> None:
    job = cluster.submit("sleep 60", qpu="east", nodes="c1")
    cluster.wait_state(job, "running")
    [lease] = cluster.leases()
    run = cluster.run_of(job)
    payload = {"kind": "qasm2", "program": "OPENQASM 2.0;", "shots": 1}
    job_words = {"manager": cluster.manager, "cluster": "lab", "job": job}
    for host in (cluster.control, "c1", "c2"):
        for path, method, body in (
            (f"/v1/runs/{run}/environment", "GET", None),
            (f"/v1/explain/{job}", "GET", None),
            ("/v1/tasks", "POST", {"lease": lease["id"], "payload": payload}),
            ("/v1/end", "POST", job_words),
            ("/v1/start", "POST", {**job_words, "attempt": 0, "uid": 2002, "native": "south@qtandem:1"}),
        ):
            status, answer = cluster.api(path, host, "bob", method, body)
            assert status in (403, 404), f"{host} {path}: {status} {answer}"
        curl = f"curl -s -w '%{{http_code}}' -H 'X-Qtandem-Uid: 2001' --unix-socket {SOCKET}"
        spoofed = cluster.shell(host, f"{curl} http://qtandem/v1/runs/{run}/environment", "bob").stdout
        assert spoofed[-3:] in ("403", "404"), spoofed
    status, _ = cluster.api(f"/v1/runs/{run}/environment", "c2")
    assert status in (403, 404), "root on a node that is not the run's has no right to it"
    status, _ = cluster.api("/v1/end", "c2", "", "POST", job_words)
    assert status in (403, 404), "root on a compute node is not the manager"
    _, rows = cluster.api("/v1/leases", user="bob")
    assert lease["id"] not in json.dumps(rows)
    assert [row["id"] for row in cluster.leases()] == [lease["id"]]
    assert cluster.job(job).state == "running"


def test_nothing_speaks_to_the_daemon_without_a_certificate(cluster: Cluster) -> None:
    attempt = (
        "import socket, ssl\n"
        "c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE\n"
        "s = c.wrap_socket(socket.create_connection(('ctl', 7447), 5))\n"
        "s.sendall(b'GET /v1/leases HTTP/1.1\\r\\nHost: x\\r\\nX-Qtandem-Uid: 0\\r\\n\\r\\n'); print(s.recv(4096))\n"
    )
    done = cluster.exec("c2", [PYTHON, "-c", attempt], "bob")
    assert "200 OK" not in done.stdout, done.text

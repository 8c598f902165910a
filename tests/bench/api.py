"""The API under load: 500 calls a second, 95 % reads, on 100 resources, from a process of its own.

The load is open: calls are due at fixed times, and a latency counts from when the call was due. Writes are
submissions, and whole starts and ends: rows on disk and a session at a simulated vendor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.rows import Row
from tests.fakes.qtandemd import Qtandemd

HERE = Path(__file__).parent
RESOURCES, RATE, SECONDS = 100, 500, 20
BOUND_MS = 20.0
ME = os.geteuid()

READS: list[tuple[str, int, str]] = [
    ("resources", 20, "/v1/resources"),
    ("facts", 10, "/v1/facts"),
    ("leases", 20, "/v1/leases"),
    ("healthz", 10, "/v1/healthz"),
    ("names", 5, "/v1/names"),
    ("environment", 20, "/v1/runs/local:local:fixed.0/environment"),
    ("tasks", 5, "/v1/tasks"),
    ("explain", 5, "/v1/explain/1"),
]


def rows() -> Iterator[Row]:
    site = Qtandemd(_resources(), poll_simulator_s=600, poll_cloud_s=600, reap_s=600)
    site.environment = {"XDG_STATE_HOME": str(site.folder / "devices")}
    try:
        site.start()
        _settle(site)
        plan = _plan()
        size = len(json.dumps(site.daemon.get("resources")))
        ours = _load(site, site.folder / "q.sock", plan)
        peer = _peer(site, plan, size)
    finally:
        site.close()
    assert not ours["errors"], ours["errors"]
    yield _row("p99 of all calls", ours, peer, 0.99, list(ours["latencies"]), bound=BOUND_MS)
    yield _row("median of all calls", ours, peer, 0.5, list(ours["latencies"]))
    yield _row("p99 of reads", ours, peer, 0.99, [name for name, _, _ in READS])
    yield _row("p99 of submissions", ours, peer, 0.99, ["submit"])
    yield _row("p99 of starts and ends", ours, peer, 0.99, ["start", "end"])


def _resources() -> dict[str, dict[str, Any]]:
    settings = {"backend": "ideal", "qubits": 4}
    return {f"qpu{n}": {"type": "simulator", "slots": 64, "settings": settings} for n in range(RESOURCES)}


def _settle(site: Qtandemd) -> None:
    """Until every resource was seen, and one run holds a lease whose environment is read."""
    deadline = time.monotonic() + 120.0
    while len(site.daemon.get("facts")["facts"]) < RESOURCES and time.monotonic() < deadline:
        time.sleep(0.2)
    for job, qpu in (("fixed", "qpu0"), ("1", "qpu1")):
        body = {"manager": "local", "job": job, "uid": ME, "native": f"{qpu}:1"}
        while (answer := site.daemon.post("start", body=body))["verdict"] == "wait":
            pass
        assert answer["verdict"] == "admit", answer


def _plan() -> list[dict[str, Any]]:
    reads = [{"name": name, "weight": weight, "method": "GET", "path": path} for name, weight, path in READS]
    start = {"manager": "local", "job": "9{new}", "uid": ME, "user": "ann", "native": "qpu2:1"}
    writes = [
        ("submit", 3, "/v1/submit", {"manager": "local", "uid": ME, "user": "ann", "request": "qpu3:2"}),
        ("start", 1, "/v1/start", start),
        ("end", 1, "/v1/end", {"manager": "local", "job": "9{old}"}),
    ]
    return reads + [
        {"name": name, "weight": weight, "method": "POST", "path": path, "body": body}
        for name, weight, path, body in writes
    ]


def _load(site: Qtandemd, socket: Path, plan: list[dict[str, Any]]) -> dict[str, Any]:
    path = site.folder / "plan.json"
    path.write_text(json.dumps(plan))
    argv = [sys.executable, str(HERE / "_load.py"), str(socket), str(RATE), str(SECONDS), str(path)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=SECONDS * 3 + 30)
    return json.loads(done.stdout)


def _peer(site: Qtandemd, plan: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The same calls to bare handlers, after the daemon has stopped: two servers would share the cores."""
    site.stop()
    socket = site.folder / "bare.sock"
    with subprocess.Popen([sys.executable, str(HERE / "_bare.py"), str(socket), str(size)]) as bare:
        try:
            while not socket.exists():
                time.sleep(0.05)
            return _load(site, socket, plan)
        finally:
            bare.terminate()


def _row(
    name: str, ours: dict[str, Any], peer: dict[str, Any], share: float, kinds: list[str], bound: float | None = None
) -> Row:
    value, other = _percentile(ours, kinds, share), _percentile(peer, kinds, share)
    return Row(
        name=f"{name}, {RATE}/s",
        value=value,
        unit="ms",
        bound=bound,
        kind="required" if bound is not None else "info",
        peer="bare aiohttp handlers",
        peer_value=other,
        ratio=value / other,
    )


def _percentile(load: dict[str, Any], kinds: list[str], share: float) -> float:
    values = sorted(value for kind in kinds for value in load["latencies"].get(kind, []))
    return 1000.0 * values[min(len(values) - 1, int(share * len(values)))]

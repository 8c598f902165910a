"""1,000 tasks from 20 jobs at once: what the daemon adds to calling the vendor's client directly.

A task takes about a second at the vendor, so that the QPU and not this machine is what jobs wait for; all figures are
what passes besides, from a task's start until its result is read. The peer is one program, alone on the machine, on the
client that the provider uses, with the same waits between its looks; a second peer looks every 100 ms, as that client
does by itself.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from tests.bench._vendors import Vendors
from tests.bench.rows import Row
from tests.fakes.qtandemd import Qtandemd

JOBS, TASKS, PROCESSES = 20, 1000, 4
ALONE, SDK_POLL_S = 60, 0.1
BOUND_MS = 10.0
TYPE, PREFIX = "ibm-quantum-compute-service", "QRMI_IBM_QCS_"
ME = os.geteuid()


def rows() -> Iterator[Row]:
    with Vendors() as vendors:
        [account] = vendors.open({"fez": TYPE}).values()
        settings = {**account["settings"], "backend": account["device"]}
        site = Qtandemd({"fez": {"type": TYPE, "slots": JOBS, "settings": settings}}, reap_s=600)
        site.config.write_text(site.config.read_text().replace('log_level = "debug"', 'log_level = "info"'))
        try:
            site.start()
            leases = _leases(site)
            _through(site, leases, tasks=1)
            ours, used = _measured(site, leases)
            site.stop()
            peer = _direct(site, settings, 0.0)
            usual = _direct(site, settings, SDK_POLL_S)
        finally:
            site.close()
    for name, share in (("median", 0.5), ("p95", 0.95)):
        value, other = _ms(ours, share), _ms(peer, share)
        yield Row(
            name=f"added to a task, {name}, {TASKS} tasks of {JOBS} jobs",
            value=value - other,
            unit="ms",
            bound=BOUND_MS if share == 0.5 else None,
            kind="required" if share == 0.5 else "info",
            peer="the SDK alone, with the same polls",
            peer_value=other,
            ratio=value / other,
        )
    yield Row(
        name="median of what passes besides, in all",
        value=_ms(ours, 0.5),
        unit="ms",
        peer="the SDK alone, with its own polls",
        peer_value=_ms(usual, 0.5),
        ratio=_ms(ours, 0.5) / _ms(usual, 0.5),
    )
    yield Row("daemon's CPU meanwhile, of one core", used["daemon"], "%")
    yield Row("its workers beside it", used["workers"], "%")


def _leases(site: Qtandemd) -> list[str]:
    for number in range(JOBS):
        body = {"manager": "local", "job": str(number), "uid": ME, "user": "ann", "native": "fez:1"}
        while (answer := site.daemon.post("start", body=body))["verdict"] == "wait":
            pass
        assert answer["verdict"] == "admit", answer
    leases = site.daemon.get("leases")["leases"]
    assert len(leases) == JOBS
    return [lease["id"] for lease in leases]


def _measured(site: Qtandemd, leases: list[str]) -> tuple[list[float], dict[str, float]]:
    assert site.process is not None
    daemon = psutil.Process(site.process.pid)
    began, before = time.monotonic(), _cpu(daemon)
    took = _through(site, leases, tasks=TASKS // JOBS)
    ended, after = time.monotonic(), _cpu(daemon)
    assert len(took) == TASKS
    return took, {key: 100 * (after[key] - before[key]) / (ended - began) for key in after}


def _through(site: Qtandemd, leases: list[str], tasks: int) -> list[float]:
    share = JOBS // PROCESSES
    socket = str(site.folder / "q.sock")
    parts = [leases[start : start + share] for start in range(0, JOBS, share)]
    started = [_started("qtandem", socket, str(tasks), *part) for part in parts]
    return [each for process in started for each in _answer(process)]


def _direct(site: Qtandemd, settings: Mapping[str, str], poll_s: float) -> list[float]:
    path = site.folder / "settings.json"
    path.write_text(json.dumps({key.removeprefix(PREFIX): value for key, value in settings.items()}))
    return _answer(_started("sdk", str(path), str(ALONE), str(poll_s)))


def _started(*arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.bench._jobs", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> list[float]:
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(said)


def _cpu(daemon: psutil.Process) -> dict[str, float]:
    def used(process: psutil.Process) -> float:
        return process.cpu_times().user + process.cpu_times().system

    return {"daemon": used(daemon), "workers": sum(map(used, daemon.children(recursive=True)))}


def _ms(took: list[Any], share: float) -> float:
    return 1000 * (statistics.median(took) if share == 0.5 else sorted(took)[int(share * (len(took) - 1))])

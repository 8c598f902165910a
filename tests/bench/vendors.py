"""200 resources of mixed vendors at their cadence: what the daemon costs, how late polls are, one vendor that hangs.

Clouds and machines are polled every 60 s, simulators every second, through the vendors' own clients. A poll is late by
the vendor's clock: the time between two reads of one resource. The peer asks one resource after the other.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.bench._vendors import Vendors
from tests.bench.rows import Row
from tests.fakes.qtandemd import Qtandemd

MIX = {
    "ibm-quantum-compute-service": 40,
    "iqm-server": 40,
    "braket": 30,
    "alice-bob-felis": 30,
    "ibm-quantum-system": 20,
    "pasqal-cloud": 20,
    "pasqal-local": 10,
}
SIMULATORS = 10
HANGS = "iqm-server"
# What each vendor calls the one device that all its resources mean here; the fakes tell them apart by their ports.
DEVICES = {"iqm-server": "garnet:mock", "alice-bob-felis": "EMU:40Q:PHYSICAL_CATS"}
PERIOD_S, WARM_S, MEASURED_S = 60.0, 65.0, 130.0
MOST_CPU, MOST_PERIODS = 10.0, 2.0


def rows() -> Iterator[Row]:
    with Vendors() as vendors:
        sites = _sites(vendors)
        hung = [name for name, each in sites.items() if each["type"] == HANGS]
        others = [name for name in sites if name not in hung]
        site = Qtandemd(_resources(sites), poll_cloud_s=PERIOD_S, poll_simulator_s=1)
        site.environment = {"XDG_STATE_HOME": str(site.folder / "devices")}
        site.config.write_text(site.config.read_text().replace('log_level = "debug"', 'log_level = "info"'))
        try:
            site.start()
            _settle(site, len(sites) + SIMULATORS)
            well = _measured(site, vendors)
            vendors.fault(hung, "hang")
            ill = _measured(site, vendors)
            site.stop()
            vendors.heal(hung)
            sweep = _serial(site.folder, sites, sweeps=1)
            vendors.fault(hung, "hang")
            reached = _reached(site.folder, sites, vendors, others)
        finally:
            site.close()
    count = len(sites) + SIMULATORS
    cpu, late, peer_cpu = well["daemon"], _latest(well["gaps"], sites), 100 * sweep["cpu_s"] / PERIOD_S
    yield Row(
        name=f"daemon's CPU, {count} resources, of one core",
        value=cpu,
        unit="%",
        bound=MOST_CPU,
        kind="required",
        peer="serial loop at the same cadence, without simulators",
        peer_value=peer_cpu,
        ratio=cpu / peer_cpu,
    )
    yield Row("its workers beside it", well["workers"], "%")
    yield Row("fake vendors beside it", well["fakes"], "%")
    yield Row("worker processes", well["processes"], "processes")
    yield Row(
        name="longest time between two polls, of the period",
        value=late,
        unit="periods",
        bound=MOST_PERIODS,
        kind="required",
        peer="one sweep of the serial loop",
        peer_value=sweep["took_s"] / PERIOD_S,
        ratio=late / (sweep["took_s"] / PERIOD_S),
    )
    yield Row(
        name="the same while one vendor hangs, of all others",
        value=_latest(ill["gaps"], others),
        unit="periods",
        bound=MOST_PERIODS,
        kind="required",
    )
    polled = 100 * sum(ill["gaps"][name] <= MOST_PERIODS * PERIOD_S for name in others) / len(others)
    yield Row(
        name="others that are polled in time while one vendor hangs",
        value=polled,
        unit="%",
        bound=100.0,
        sense="least",
        kind="required",
        peer=f"serial loop, reached within {PERIOD_S:g} s",
        peer_value=reached,
        ratio=polled / max(reached, 1.0),
    )
    yield Row("daemon's CPU while one vendor hangs, of one core", ill["daemon"], "%", bound=MOST_CPU, kind="required")


def _sites(vendors: Vendors) -> dict[str, dict[str, Any]]:
    listed = [f"{type_} {n}" for type_, count in MIX.items() for n in range(count)]
    random.Random(1).shuffle(listed)
    types = {each.replace("-", "_").replace(" ", "_"): each.partition(" ")[0] for each in listed}
    opened = vendors.open(types)
    return {name: {"type": type_, **opened[name]} for name, type_ in types.items()}


def _resources(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, each in sites.items():
        device = {} if each["type"] == "braket" else {"backend": DEVICES.get(each["type"], each["device"])}
        found[name] = {"type": each["type"], "slots": 2, "settings": {**each["settings"], **device}}
    settings = {"backend": "ideal", "qubits": 4}
    return found | {f"sim_{n}": {"type": "simulator", "settings": settings} for n in range(SIMULATORS)}


def _settle(site: Qtandemd, count: int) -> None:
    """Until all were seen, and every worker is warm."""
    deadline = time.monotonic() + 300.0
    while time.monotonic() < deadline:
        facts = site.daemon.get("facts")["facts"]
        if len(facts) == count and all(fact["availability"] == "online" for fact in facts):
            break
        time.sleep(1.0)
    else:
        unseen = [fact for fact in facts if fact["availability"] != "online"]
        raise AssertionError(f"{len(facts)} facts, {unseen[:3]}")
    time.sleep(WARM_S)


def _measured(site: Qtandemd, vendors: Vendors) -> dict[str, Any]:
    assert site.process is not None
    daemon, fakes = psutil.Process(site.process.pid), psutil.Process(vendors.pid)
    began = time.monotonic()
    before = _cpu(daemon), _children(daemon), _cpu(fakes)
    time.sleep(MEASURED_S)
    after, ended = (_cpu(daemon), _children(daemon), _cpu(fakes)), time.monotonic()
    share = [100 * (new - old) / (ended - began) for old, new in zip(before, after, strict=True)]
    since = began - PERIOD_S
    gaps = {name: _gap([*(at for at in times if at >= since), ended]) for name, times in vendors.polls().items()}
    return {
        "daemon": share[0],
        "workers": share[1],
        "fakes": share[2],
        "gaps": gaps,
        "processes": len(daemon.children(recursive=True)),
    }


def _gap(times: list[float]) -> float:
    return max(new - old for old, new in pairwise(times))


def _cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def _children(daemon: psutil.Process) -> float:
    """Living and dead: a worker that was killed has cost what it has cost."""
    used = daemon.cpu_times()
    living = sum(_cpu(child) for child in daemon.children(recursive=True))
    return living + used.children_user + used.children_system


def _latest(gaps: Mapping[str, float], names: Iterable[str]) -> float:
    return max(gaps[name] for name in names) / PERIOD_S


def _serial(folder: Path, sites: Mapping[str, Mapping[str, Any]], sweeps: int) -> dict[str, float]:
    with _started(folder, sites, sweeps) as process:
        assert process.stdout is not None
        return json.loads(process.stdout.readline())


def _reached(folder: Path, sites: Mapping[str, Mapping[str, Any]], vendors: Vendors, names: Sequence[str]) -> float:
    """Percent of the resources that the serial loop has asked within a period while one vendor hangs."""
    vendors.clear()
    with _started(folder, sites, sweeps=0) as process:
        time.sleep(PERIOD_S)
        process.kill()
    polls = vendors.polls()
    return 100 * sum(bool(polls[name]) for name in names) / len(names)


def _started(folder: Path, sites: Mapping[str, Mapping[str, Any]], sweeps: int) -> subprocess.Popen[str]:
    path = folder / "sites.json"
    path.write_text(json.dumps([{"name": name, **each} for name, each in sites.items()]))
    argv = [sys.executable, "-m", "tests.bench._serial", str(path), str(sweeps), str(PERIOD_S)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

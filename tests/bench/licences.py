"""From fact to licence on a real Slurm: 1, 10, 100 resources that flip at once.

Ours is the daemon's publisher with the Slurm manager, from the news of the facts to values that slurmctld was read
to show. The peer writes as the reference poller does, one `sacctmgr` call a resource, and reads once at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from tests.bench import _cluster
from tests.bench.rows import Row

skip = _cluster.skip
COUNTS, ROUNDS, LEAST_AT_100 = (1, 10, 100), 3, 10.0

# Runs on the controller as root, while qtandemd is stopped.
SCRIPT = """
import asyncio, json, sys, time
from subprocess import run
from qtandem.core.facts import Availability, Fact
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import ManagerSettings, Timing
from qtandem.core.signals import Signals
from qtandem.daemons.publishers import Publisher, View
from qtandem.slurm import licences
from qtandem.slurm.manager import SlurmManager

COUNTS, ROUNDS = json.loads(sys.argv[1])
NAMES = [f"q{number}" for number in range(max(COUNTS))]

def fact(name, online):
    seen = Availability.ONLINE if online else Availability.OFFLINE
    return Fact(resource=name, availability=seen, at=time.time(), ttl_s=3600)

def shows(names, value):
    text = run(["scontrol", "-o", "show", "lic"], capture_output=True, text=True, check=True).stdout
    shown = licences.read_show(text, "bench")
    return all(shown[name].open == value for name in names)

def peer(names, online):
    began = time.perf_counter()
    for name in names:
        value = 0 if online else 1
        run(["sacctmgr", "-iQ", "modify", "resource", name, "set", f"lastconsumed={value}", "where", "server=bench"],
            capture_output=True, check=True)
    while not shows(names, int(online)):
        pass
    return time.perf_counter() - began

async def main():
    manager = SlurmManager(ManagerSettings(cluster="lab", server="bench"), {name: name for name in NAMES})
    catalog = Catalog({name: Resource(name, "simulator", name) for name in NAMES})
    facts = {name: fact(name, False) for name in NAMES}
    signals = Signals()
    view = View(catalog, facts, {})
    publisher = Publisher(manager, lambda: view, Timing(reassert_s=3600), signals, clock=time.time)
    publisher.start()

    async def settled(names, value):
        while not all(name in publisher.confirmed and publisher.confirmed[name].open == value for name in names):
            await asyncio.sleep(0.001)

    await settled(NAMES, 0)
    out = {count: {"ours": [], "peer": []} for count in COUNTS}
    for _ in range(ROUNDS):
        for count in COUNTS:
            names = NAMES[:count]
            for online in (True, False):
                began = time.perf_counter()
                for name in names:
                    facts[name] = fact(name, online)
                    signals.send("facts", name)
                await settled(names, int(online))
                out[count]["ours"].append(time.perf_counter() - began)
                assert shows(names, int(online))
            for online in (True, False):
                out[count]["peer"].append(await asyncio.to_thread(peer, names, online))
    await publisher.close()
    print(json.dumps(out))

asyncio.run(main())
"""


def rows() -> Iterator[Row]:
    with _cluster.cluster() as site:
        for daemon in ("deadman", "qtandemd"):
            site.kill(daemon)
        argv = ["/opt/qtandem/bin/python", "-c", SCRIPT, json.dumps([COUNTS, ROUNDS])]
        done = site.exec(site.control, argv, timeout=400).check()
    figures = json.loads(done.stdout.splitlines()[-1])
    for count in COUNTS:
        ours, peer = (1000 * median(figures[str(count)][who]) for who in ("ours", "peer"))
        yield Row(
            name=f"fact to licence, {count} flipping at once",
            value=ours,
            unit="ms",
            bound=LEAST_AT_100 if count == 100 else None,
            sense="least",
            of="ratio",
            kind="required" if count == 100 else "info",
            peer="one sacctmgr call a resource",
            peer_value=peer,
            ratio=peer / ours,
        )

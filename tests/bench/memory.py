"""Memory of the daemon, without its workers, at 1,000 resources and 10,000 held leases."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from qtandem.core.leases import cipher
from qtandem.core.leases.model import Lease, LeaseState, OwnerChange, OwnerState, owner_of
from qtandem.core.leases.store import Store
from qtandem.core.runs import JobId, Run
from tests.bench.rows import Row
from tests.fakes.qtandemd import Qtandemd

HERE = Path(__file__).parent
RESOURCES, LEASES = 1_000, 10_000
BOUND_MB = 200.0


def rows() -> Iterator[Row]:
    settings = {"backend": "ideal", "qubits": 4}
    resources = {f"qpu{n}": {"type": "simulator", "slots": 64, "settings": settings} for n in range(RESOURCES)}
    site = Qtandemd(resources, poll_simulator_s=600, poll_cloud_s=600, reap_s=3600)
    site.environment = {"XDG_STATE_HOME": str(site.folder / "devices")}
    try:
        _fill(site)
        site.start()
        _settle(site)
        for _ in range(5):
            for path in ("resources", "facts", "leases", "healthz", "usage"):
                site.daemon.get(path)
        assert site.process is not None
        daemon = psutil.Process(site.process.pid)
        own, workers = _mb(daemon), sum(_mb(child) for child in daemon.children(recursive=True))
    finally:
        site.close()
    bare = _bare(site.folder)
    yield Row(
        name=f"resident, {RESOURCES} resources, {LEASES} leases, without workers",
        value=own,
        unit="MB",
        bound=BOUND_MB,
        kind="required",
        peer="bare aiohttp handlers",
        peer_value=bare,
        ratio=own / bare,
    )
    yield Row(name="its workers beside it", value=workers, unit="MB")


def _fill(site: Qtandemd) -> None:
    """A database as a daemon leaves it that holds the leases."""
    (site.folder / "state").mkdir()
    store = Store(f"sqlite:///{site.folder / 'state' / 'qtandem.db'}", cipher.load(site.folder / "key"))
    now = time.time()
    for number in range(LEASES):
        run = Run(JobId("local", "local", f"8{number:05}").run(0), os.geteuid(), "ann", "physics", "qpu", ("c1",), 3600)
        lease = Lease(
            id=f"{number:032x}",
            owner=owner_of(run),
            resource=f"qpu{number % RESOURCES}",
            slots=1,
            state=LeaseState.HELD,
            uid=run.uid,
            created_at=now,
            changed_at=now,
            token=f"{number:036x}",
        )
        store.reserve(run, [lease], now)
        store.save([lease], OwnerChange(lease.owner, OwnerState.HELD, now))
    store.close()


def _settle(site: Qtandemd) -> None:
    deadline = time.monotonic() + 120.0
    while len(site.daemon.get("facts")["facts"]) < RESOURCES and time.monotonic() < deadline:
        time.sleep(0.5)
    leases = site.daemon.get("leases")["leases"]
    assert len(leases) == LEASES, len(leases)


def _bare(folder: Path) -> float:
    folder.mkdir(exist_ok=True)
    socket = folder / "bare.sock"
    with subprocess.Popen([sys.executable, str(HERE / "_bare.py"), str(socket), "1000"]) as bare:
        try:
            while not socket.exists():
                time.sleep(0.05)
            return _mb(psutil.Process(bare.pid))
        finally:
            bare.terminate()
            socket.unlink(missing_ok=True)


def _mb(process: psutil.Process) -> float:
    return process.memory_info().rss / 2**20

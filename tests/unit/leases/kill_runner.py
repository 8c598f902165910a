"""Runs a scenario of the lease service in child processes, kills each at another step, and judges what is left.

A step is each moment before and after a commit, and before and after each change at the vendor. Prints one JSON
object: `kills`, `double_kills`, and `faults`, which must be empty. Run by `test_kill.py`: the interpreter of a
test session has threads, and must not fork.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy import event

from qtandem.core.errors import QtandemError
from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.model import OwnerState, Task
from qtandem.core.leases.queries import Filter
from qtandem.core.leases.service import LeaseService
from qtandem.core.leases.store import Store
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId, Run
from qtandem.core.signals import Signals
from tests.fakes.vendor import FakeVendor

KEY = Cipher(bytes(range(32)))
SLOTS = {"fez": 1, "torino": 2, "garnet": 1}
JOBS = [JobId("slurm", "c", str(number)) for number in range(1, 6)]


@dataclass(frozen=True)
class Timing:
    reserve_ttl_s: float = 120.0
    claim_ttl_s: float = 600.0
    backoff_max_s: float = 60.0


class Clock:
    """Goes on where the journal of the last process was left, since a real clock does not jump back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.now = float(path.read_text()) if path.exists() else 1000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds
        draft = self._path.with_suffix(".new")
        draft.write_text(str(self.now))
        draft.replace(self._path)


class Killer:
    """Ends this process, as `kill -9` does, at the step with number `at` (0: never)."""

    def __init__(self, at: int) -> None:
        self._at, self._steps, self._lock = at, 0, threading.Lock()

    def step(self, *_ignored: object) -> None:
        with self._lock:
            self._steps += 1
            if self._steps == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


class House:
    def __init__(self, folder: Path, killer: Killer) -> None:
        self.clock = Clock(folder / "clock")
        self.vendor = FakeVendor(SLOTS, folder / "vendor.log", killer.step)
        self.store = Store(f"sqlite:///{folder}/qtandem.db", KEY, committed=killer.step)
        event.listen(self.store.engine, "commit", killer.step)
        self.service = LeaseService(self.store, self.vendor, lambda name: SLOTS[name], self.clock, Signals(), Timing)

    async def begin(self, job: JobId, attempt: int, *resources: str) -> bool:
        run = Run(job.run(attempt), 1001, "ada", "physics")
        try:
            await self.service.begin(run, [Grant(name) for name in resources])
        except QtandemError:
            return False
        return True

    async def later(self, seconds: float) -> None:
        self.clock.forward(seconds)
        await self.service.sweep(self.clock.now)
        await self.service.settled()

    async def close(self) -> None:
        await self.service.close()
        self.store.close()


async def scenario(house: House) -> None:
    service, store, vendor = house.service, house.store, house.vendor
    await service.open()
    first, second, third, fourth, fifth = JOBS
    await house.begin(first, 0, "fez", "torino")
    (lease,) = [lease for lease in service.leases() if lease.resource == "fez"]
    store.add_task(Task("t1", lease.id, lease.owner, "fez", 1001, "", "qasm3", house.clock.now))
    await house.begin(first, 1, "fez", "torino")
    await house.begin(second, 0, "fez")
    store.refuse(str(second), house.clock.now, 15, 600, "busy")
    vendor.fail("acquire", QtandemError("vendor-timeout", "lost"), resource="torino", after=True)
    await house.begin(second, 0, "garnet", "torino")
    await house.later(10)
    claim = await service.claim(1002, "eve", [Grant("garnet")], 100, "chain")
    vendor.fail("release", resource="fez", times=2)
    await asyncio.gather(service.end(first, None, "ended", 0), house.begin(third, 0, "torino"))
    await service.end(fourth, 0, "cancelled")
    await house.begin(fourth, 0, "torino")
    await house.later(2)
    await house.later(5)
    await asyncio.gather(house.begin(fifth, 0, "fez", "torino"), service.end(fifth, 0, "cancelled"))
    await service.end(third, 0, "ended", 0)
    await service.end_claim(claim.id, 1002)
    await service.claim(1002, "eve", [Grant("garnet")], 50)
    await house.later(60)


async def aftermath(house: House) -> None:
    """A restart, and what the manager does then: begin again what had no answer, end everything."""
    service = house.service
    await service.open()
    await service.settled()
    await quiet(house)
    check(house, "after the restart")
    await house.begin(JOBS[0], 2, "fez", "torino")
    await house.begin(JOBS[1], 1, "garnet")
    await quiet(house)
    check(house, "after new starts")
    for job in JOBS:
        await service.end(job, None, "ended")
    for claim in service.claims():
        await service.end_claim(claim.id, None)
    await quiet(house)
    check(house, "at the end")
    assert service.leases() == [], f"leaked {service.leases()}"
    assert house.vendor.sessions() == [], f"leaked {house.vendor.sessions()}"


async def quiet(house: House) -> None:
    """Let every retry have its turn."""
    for _ in range(4):
        await house.later(6)


def check(house: House, when: str) -> None:
    service, store = house.service, house.store
    assert house.vendor.offences() == [], f"{when}: {house.vendor.offences()}"
    held = {(lease.resource, lease.id, lease.token) for lease in service.leases()}
    sessions = {(entry.resource, entry.key, entry.token) for entry in house.vendor.sessions()}
    assert held == sessions, f"{when}: leases {held}, sessions {sessions}"
    assert {lease.state.value for lease in service.leases()} <= {"held"}, f"{when}: {service.leases()}"
    assert store.leases(Filter(open=True)) == sorted_by_time(service.leases()), f"{when}: memory is not the disk"
    assert all(opened.state is OwnerState.HELD for opened in store.load()), f"{when}: {store.load()}"
    for name, total in SLOTS.items():
        assert service.leased(name) <= total, f"{when}: {name}"


def sorted_by_time(leases: list) -> list:  # type: ignore[type-arg]
    return sorted(leases, key=lambda lease: (lease.created_at, lease.id))


def child(folder: Path, at: int, work: Callable[[House], Awaitable[None]]) -> bool:
    """Run `work` in a process that dies at step `at`; whether it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(run(folder, Killer(at), work))
            status = 0
        except BaseException as error:
            (folder / "fault").write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    _, result = os.waitpid(pid, 0)
    return os.WIFSIGNALED(result)


async def run(folder: Path, killer: Killer, work: Callable[[House], Awaitable[None]]) -> None:
    house = House(folder, killer)
    await work(house)
    await house.close()


def trial(root: Path, template: Path, first: int, second: int) -> tuple[bool, bool, str]:
    """Kill the scenario at step `first`, and the restart after it at step `second` (0: not)."""
    folder = root / f"{first}-{second}"
    folder.mkdir()
    shutil.copy(template, folder / "qtandem.db")
    killed = child(folder, first, scenario)
    again = killed and second > 0 and child(folder, second, aftermath)
    fault = folder / "fault"
    if not fault.exists():
        child(folder, 0, aftermath)
    text = fault.read_text() if fault.exists() else ""
    shutil.rmtree(folder)
    return killed, again, text


def restarts(first: int) -> tuple[int, int]:
    """Steps of the restart to kill it at, spread so that neighbours differ."""
    return 1 + first % 7, 8 + first % 11


def main(root: Path, every: int, part: int, parts: int) -> None:
    """Kill at each step of this part of them; every `every`th time, kill the restart as well."""
    gc.freeze()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    template = root / "template.db"
    Store(f"sqlite:///{template}", KEY).close()
    kills = double_kills = 0
    faults: dict[str, str] = {}
    for first in itertools.count(1 + part, parts):
        killed, _, fault = trial(root, template, first, 0)
        if fault:
            faults[f"{first}"] = fault
        if not killed:
            break
        kills += 1
        for second in restarts(first) if first // parts % every == 0 else ():
            _, again, fault = trial(root, template, first, second)
            double_kills += again
            if fault:
                faults[f"{first}-{second}"] = fault
    print(json.dumps({"kills": kills, "double_kills": double_kills, "faults": faults}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))

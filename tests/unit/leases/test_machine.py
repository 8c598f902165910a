"""Any order of starts, ends, claims, faults, time and crashes: slots are never overdrawn, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from qtandem.core.errors import QtandemError
from qtandem.core.leases.cipher import Cipher
from qtandem.core.leases.queries import Filter
from qtandem.core.leases.service import LeaseService
from qtandem.core.leases.store import Store
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId, Run
from qtandem.core.signals import Signals
from tests.fakes.vendor import FakeVendor

SLOTS = {"fez": 1, "torino": 2}
KEY = Cipher(bytes(32))

jobs = st.sampled_from([JobId("slurm", "c", name) for name in "ab"] + [JobId("slurm", "c", "b", 1)])
attempts = st.integers(0, 2)
grants = st.lists(st.builds(Grant, st.sampled_from(sorted(SLOTS)), st.integers(1, 2)), min_size=1, max_size=2)
errors = st.sampled_from(["vendor-error", "vendor-timeout", "not-available", "policy", "bad-credentials"])
seconds = st.sampled_from([0.5, 3.0, 30.0, 200.0])


@dataclass(frozen=True)
class Timing:
    reserve_ttl_s: float = 120.0
    claim_ttl_s: float = 600.0
    backoff_max_s: float = 60.0


class Machine(RuleBasedStateMachine):
    template: Path

    @initialize()
    def set_up(self) -> None:
        self.loop = asyncio.new_event_loop()
        fast = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = Path(tempfile.mkdtemp(dir=fast))
        shutil.copy(self.template, self.folder / "qtandem.db")
        self.vendor, self.now = FakeVendor(SLOTS), 1000.0
        self.pending: list[asyncio.Task[object]] = []
        self._open()

    def _open(self) -> None:
        self.store = Store(f"sqlite:///{self.folder}/qtandem.db", KEY)
        self.service = LeaseService(
            self.store, self.vendor, lambda name: SLOTS[name], lambda: self.now, Signals(), Timing
        )
        self._do(self.service.open())

    def _do(self, work):
        """Run until `work` answers, or until it waits for a paused vendor."""

        async def go() -> None:
            task = asyncio.ensure_future(work)
            self.pending.append(task)
            await self._calm(task)

        self.loop.run_until_complete(go())
        self._collect()

    async def _calm(self, task) -> None:
        while not task.done():
            stuck = [pause for pause in self.vendor.pauses if pause.arrived.is_set() and not pause.go.is_set()]
            if stuck:
                for _ in range(8):
                    await self.service.read(lambda: None)
                    await self.service.write(lambda: None)
                return
            await asyncio.wait([task], timeout=0.01)

    def _collect(self) -> None:
        for task in [task for task in self.pending if task.done()]:
            self.pending.remove(task)
            error = task.exception()
            assert error is None or isinstance(error, QtandemError), repr(error)

    async def _cut_off(self) -> None:
        await self.service.close()
        await asyncio.gather(*self.pending, return_exceptions=True)
        self.pending.clear()

    async def _idle(self) -> None:
        await self.service.settled()
        await asyncio.gather(*self.pending, return_exceptions=True)

    @rule(job=jobs, attempt=attempts, asked=grants)
    def begin(self, job, attempt, asked) -> None:
        self._do(self.service.begin(Run(job.run(attempt), 7, "ada", "physics"), asked))

    @rule(job=jobs, attempt=st.none() | attempts)
    def end(self, job, attempt) -> None:
        self._do(self.service.end(job, attempt, "ended"))

    @rule(asked=grants, ttl=seconds)
    def claim(self, asked, ttl) -> None:
        self._do(self.service.claim(7, "ada", asked, ttl))

    @rule()
    def end_claims(self) -> None:
        for claim in self.service.claims():
            self._do(self.service.end_claim(claim.id, 7))

    @rule(method=st.sampled_from(["acquire", "release", "find_session"]), code=errors, after=st.booleans())
    def fault(self, method, code, after) -> None:
        after = after and code in ("vendor-error", "vendor-timeout")
        self.vendor.fail(method, QtandemError(code, "a fault"), after=after)

    @rule(method=st.sampled_from(["acquire", "release", "find_session"]), after=st.booleans())
    def pause(self, method, after) -> None:
        self.vendor.pause(method, after=after)

    @rule()
    def resume(self) -> None:
        self.vendor.resume()
        self.loop.run_until_complete(self._idle())
        self._collect()

    @rule(seconds=seconds)
    def time_passes(self, seconds) -> None:
        self.now += seconds
        self._do(self.service.sweep(self.now))

    @rule()
    def crash(self) -> None:
        self.loop.run_until_complete(self._cut_off())
        self.vendor.resume()
        self.store.close()
        self._open()

    @invariant()
    def slots_are_never_overdrawn(self) -> None:
        assert self.vendor.offences() == []
        for name, total in SLOTS.items():
            leased = sum(lease.slots for lease in self.service.leases() if lease.resource == name)
            assert leased == self.service.leased(name) <= total

    @invariant()
    def held_leases_are_open_at_the_vendor_and_open_sessions_have_a_lease(self) -> None:
        held = {(x.id, x.token) for x in self.service.leases() if x.state == "held"}
        sessions = {(x.key, x.token) for x in self.vendor.sessions()}
        assert held <= sessions
        assert {key for key, _ in sessions} <= {x.id for x in self.service.leases()}

    @invariant()
    def at_most_one_attempt_of_a_job_is_open(self) -> None:
        open_jobs = [run.id.job for run in self.service.open_runs() if self.service.held(run.id)]
        assert len(open_jobs) == len(set(open_jobs))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.vendor.heal()
        self.resume()
        for job in {run.id.job for run in self.service.open_runs()}:
            self._do(self.service.end(job, None, "ended"))
        self.end_claims()
        for _ in range(4):
            self.time_passes(61.0)
        self.resume()
        assert self.vendor.sessions() == []
        assert self.service.leases() == []
        assert self.store.leases(Filter(open=True)) == []
        assert self.vendor.offences() == []
        self.loop.run_until_complete(self.service.close())
        self.store.close()
        self.loop.close()
        shutil.rmtree(self.folder)


@pytest.mark.timeout(600)
def test_no_order_of_events_leaks_or_overdraws(tmp_path):
    Machine.template = tmp_path / "template.db"
    Store(f"sqlite:///{Machine.template}", KEY).close()
    many = 1000 if os.environ.get("QTANDEM_SOAK") else 60
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=many,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Many jobs, few slots: never more holders than slots, nothing lost, stuck or left behind."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.live.cluster import QPUS, Cluster, Measured, all_at_once
from tests.live.witness import sessions

FLAPPING_S = float(os.environ.get("QTANDEM_FLAPPING_S", "120"))


class Watch(threading.Thread):
    """Reads leases and the manager's own count again and again, and keeps what was over the slots."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster, self._over = cluster, threading.Event()
        self.faults: list[str] = []
        self.readings = 0

    def run(self) -> None:
        while not self._over.wait(0.3):
            leases = self._cluster.leases()
            used = self._cluster.in_use()
            for qpu, slots in QPUS.items():
                leased = sum(row["slots"] for row in leases if row["resource"] == qpu)
                if leased > slots or used.get(qpu, 0) > slots:
                    self.faults.append(f"{qpu}: {leased} leased, {used.get(qpu)} in use, {slots} slots")
            self.readings += 1

    def stop(self) -> None:
        self._over.set()
        self.join(20)


def agreed(cluster: Cluster) -> None:
    """After all jobs: no lease, no session at a QPU, and the manager offers what is there."""
    cluster.wait_no_leases(60)
    cluster.wait_sensors(QPUS, 20)
    for qpu, slots in QPUS.items():
        faults, left = sessions(cluster.witness(qpu), slots)
        assert not faults, f"{qpu}: {faults}"
        assert not left, f"{qpu} still has sessions: {left}"


@pytest.mark.timeout(FLAPPING_S + 480)
def test_twenty_jobs_on_three_flapping_qpus(cluster: Cluster, measured: Measured) -> None:
    chance = random.Random(20260)
    names = list(QPUS)

    def submit(number: int) -> str:
        seconds = 3 + number % 7
        return cluster.submit(f"echo once; sleep {seconds}", qpu=names[number % 3], user=("alice", "bob")[number % 2])

    jobs = all_at_once(20, submit)
    watch = Watch(cluster)
    watch.start()
    end = time.monotonic() + FLAPPING_S
    while time.monotonic() < end:
        qpu = chance.choice(names)
        if chance.random() < 0.5:
            cluster.close(qpu, reason="flapping")
        else:
            cluster.open(qpu)
        time.sleep(chance.uniform(0.2, 2.5))
    cluster.open()
    ended = cluster.wait_ended(jobs, within=400)
    watch.stop()
    assert not watch.faults, watch.faults[:5]
    assert watch.readings > FLAPPING_S / 5
    assert {job: view.outcome for job, view in ended.items() if view.outcome != "completed"} == {}
    for number, job in enumerate(jobs):
        assert cluster.output(job, ("alice", "bob")[number % 2]) == "once\n", f"job {job} ran more or less than once"
    restarts = sum(view.restarts for view in ended.values())
    figures = f"{restarts} restarts, {watch.readings} readings"
    measured(f"{cluster.manager}: 20 jobs over {FLAPPING_S:.0f} s of flapping: {figures}")
    agreed(cluster)


@pytest.mark.timeout(420)
def test_fifty_jobs_back_to_back_on_one_slot_without_a_requeue(cluster: Cluster, measured: Measured) -> None:
    before = len(cluster.witness("east"))
    jobs = all_at_once(50, lambda _: cluster.submit("echo once", qpu="east"))
    began = time.monotonic()
    ended = cluster.wait_ended(jobs, within=360)
    measured(f"{cluster.manager}: 50 jobs back to back on one slot: {time.monotonic() - began:.0f} s")
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert {job: view.restarts for job, view in ended.items() if view.restarts} == {}
    agreed(cluster)
    acquired = [row for row in cluster.witness("east")[before:] if row["event"] == "acquire" and not row.get("again")]
    assert len(acquired) == 50


def test_two_slots_are_two_jobs_at_once_and_one_job_may_take_both(cluster: Cluster) -> None:
    both = cluster.submit("sleep 3", qpu="north:2")
    cluster.wait_state(both, "running")
    pair = [cluster.submit("sleep 3", qpu="north") for _ in range(2)]
    assert {cluster.job(job).state for job in pair} == {"pending"}
    cluster.wait_state(both, "ended")
    cluster.until(cluster.jobs, lambda jobs: all(jobs[job].state == "running" for job in pair), 20, "both run at once")
    cluster.wait_ended(pair)
    agreed(cluster)


def test_all_of_several_is_granted_whole_or_not_at_all(cluster: Cluster) -> None:
    holder = cluster.submit("sleep 60", qpu="south")
    cluster.wait_state(holder, "running")
    both = cluster.submit("true", qpu="east+south")
    time.sleep(2)
    assert cluster.job(both).state == "pending"
    assert {row["resource"] for row in cluster.leases()} == {"south"}
    cluster.cancel(holder)
    assert cluster.wait_state(both, "ended").outcome == "completed"
    agreed(cluster)

"""Chaos for SOAK_SECONDS (an hour): load, flapping QPUs, vendor faults, and daemons and nodes that die."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import pytest

from tests.live.cluster import QPUS, Cluster
from tests.live.scenarios.crowd import Watch, agreed
from tests.live.witness import sessions

OWN_CLUSTER = True
SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
SEED = int(os.environ.get("SOAK_SEED", str(int(time.time()))))
REQUESTS = ("north", "east", "south", "north:2", "east+south", "east/south", "either", "any")
FAULTS = ("hang", "500", "401", "garbage", "crash")


class Chaos:
    """One source of chance, and what it does to the cluster."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.chance = cluster, random.Random(seed)
        self.done: dict[str, int] = {}

    def strike(self) -> None:
        moves = {
            self.flap: 10,
            self.fault: 4,
            self.kill_daemon: 2,
            self.kill_manager: 1,
            self.kill_execution: 1,
            self.lose_node: 0.5,
            self.cancel: 4,
            self.requeue: 2,
        }
        move = self.chance.choices(list(moves), list(moves.values()))[0]
        self.done[move.__name__] = self.done.get(move.__name__, 0) + 1
        move()

    def flap(self) -> None:
        qpu = self.chance.choice(list(QPUS))
        if self.chance.random() < 0.4:
            self.cluster.close(qpu, reason="chaos")
        else:
            self.cluster.open(qpu)

    def fault(self) -> None:
        qpu, fault = self.chance.choice(list(QPUS)), self.chance.choice(FAULTS)
        method = self.chance.choice(("observe", "acquire", "release", "task_start", "all"))
        when = self.chance.choice(("before", "after"))
        self.cluster.set(qpu, fault=fault, fault_on=method, fault_at=when)
        time.sleep(self.chance.uniform(1, 8))
        self.cluster.open(qpu)

    def kill_daemon(self) -> None:
        self.cluster.kill("qtandemd")
        time.sleep(self.chance.choice((0.0, 0.5, 3.0, 15.0)))
        self.cluster.start("qtandemd")

    def kill_manager(self) -> None:
        role = self.chance.choice(("controller", "accounting"))
        self.cluster.kill(role)
        time.sleep(self.chance.uniform(0, 8))
        self.cluster.start(role)

    def kill_execution(self) -> None:
        host = self.chance.choice(self.cluster.workers)
        self.cluster.kill("execution", host)
        time.sleep(self.chance.uniform(0, 5))
        self.cluster.start("execution", host)

    def lose_node(self) -> None:
        host = self.chance.choice(self.cluster.workers)
        self.cluster.lose_node(host)
        time.sleep(self.chance.uniform(1, 25))
        self.cluster.return_node(host)
        self.cluster.revive()

    def cancel(self) -> None:
        self._one("running", self.cluster.cancel)

    def requeue(self) -> None:
        self._one("running", self.cluster.requeue)

    def _one(self, state: str, act: object) -> None:
        chosen = [job for job, view in self.cluster.jobs().items() if view.state == state]
        if chosen and callable(act):
            # It may have ended meanwhile.
            with contextlib.suppress(AssertionError):
                act(self.chance.choice(chosen))


def _load(cluster: Cluster, seed: int, over: threading.Event, jobs: list[str]) -> None:
    chance = random.Random(seed)
    while not over.wait(chance.uniform(0.5, 4)):
        try:
            waiting = sum(view.state == "pending" for view in cluster.jobs().values())
            if waiting < 20:
                done = cluster.try_submit(f"sleep {chance.randint(0, 8)}", chance.choice(REQUESTS))
                if done.status == 0:
                    jobs.append(cluster.submitted(done))
        except (AssertionError, RuntimeError):
            continue  # the manager or the daemon is down just now


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1200)
def test_chaos(cluster: Cluster) -> None:
    chaos, jobs, over = Chaos(cluster, SEED), [], threading.Event()
    load = threading.Thread(target=_load, args=(cluster, SEED + 1, over, jobs), daemon=True)
    load.start()
    began = told = time.monotonic()
    while time.monotonic() - began < SECONDS:
        chaos.strike()
        time.sleep(chaos.chance.uniform(0.5, 6))
        for qpu, slots in QPUS.items():
            assert not (faults := _faults(cluster, qpu, slots)), faults
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{told - began:5.0f} s: {len(jobs)} jobs, {chaos.done}", flush=True)
    over.set()
    load.join(30)
    cluster.revive()
    cluster.open()
    watch = Watch(cluster)
    watch.start()
    end = time.monotonic() + 600

    def left() -> int:
        views = [view for job, view in cluster.jobs().items() if job in jobs and view.state != "ended"]
        for view in views:
            if view.reason == "BeginTime":
                cluster.expedite(view.id)
            elif "held" in view.reason.lower():
                # By us after refusals, or by the manager: a controller that was killed while it started a job
                # starts it again, and the node refuses a second copy.
                cluster.cancel(view.id)
        return len(views)

    cluster.until(left, lambda count: count == 0, end - time.monotonic(), "all jobs ended")
    watch.stop()
    assert not watch.faults
    print(f"seed {SEED}: {len(jobs)} jobs, {chaos.done}")
    agreed(cluster)


def _faults(cluster: Cluster, qpu: str, slots: int) -> list[str]:
    return sessions(cluster.witness(qpu), slots)[0]

"""One record a run and a task, and what they sum up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Task, Usage
from qtandem.core.leases.queries import Filter
from qtandem.core.managers import Grant
from qtandem.core.providers.base import TaskState


def task_of(lease, id, **changes):
    task = Task(id, lease.id, lease.owner, lease.resource, lease.uid, "", "qasm3", lease.created_at, shots=100)
    return replace(task, **changes)


async def test_a_task_is_added_once_a_key(site, run):
    (lease,) = await site.begin(run())
    first = site.store.add_task(task_of(lease, "t1", key="k", versions={"qiskit": "2.0"}))
    assert site.store.add_task(task_of(lease, "t2", key="k")) == first
    assert site.store.add_task(task_of(lease, "t3")).key == "t3"
    assert [task.id for task in site.store.tasks(Filter(owner=lease.owner))] == ["t1", "t3"]
    assert first.run == "slurm:c:1.0"


async def test_a_task_is_kept_with_all_it_takes_to_reproduce_it(site, run):
    (lease,) = await site.begin(run())
    task = site.store.add_task(task_of(lease, "t1"))
    done = replace(
        task,
        state=TaskState.COMPLETED,
        payload_sha256="aa",
        circuit_sha256="bb",
        vendor_task="v-1",
        started_at=1001.0,
        finished_at=1002.0,
        usage_s=0.5,
        cost=1.25,
        currency="EUR",
        calibration_at=900.0,
        versions={"qtandem": "0.1.0"},
        reason="",
    )
    site.store.update_task(done)
    assert site.store.task("t1") == done
    assert site.store.tasks(Filter(open=True)) == []
    assert site.store.tasks(Filter(open=False, account="physics", resource="fez")) == [done]
    assert site.store.task("t9") is None
    with pytest.raises(QtandemError, match="no task t9"):
        site.store.update_task(replace(done, id="t9"))


async def use(site, run):
    """Two runs of two users on two resources, and a claim: 10 s, 20 s · 3 slots, and 5 s still going."""
    (a,) = await site.begin(run("1", uid=1))
    (b,) = await site.begin(run("2", uid=2), ("garnet", 3))
    for lease, id, cost, currency in ((a, "t1", 2.0, "EUR"), (a, "t2", 3.0, "EUR"), (b, "t3", 7.0, "USD")):
        done = task_of(lease, id, state=TaskState.COMPLETED, usage_s=0.5, cost=cost, currency=currency)
        site.store.add_task(done)
    site.store.add_task(task_of(b, "t4", state=TaskState.FAILED, shots=None))
    await site.later(10)
    await site.end("1")
    await site.later(10)
    await site.end("2")
    claim = await site.service.claim(1, "user1", [Grant("torino", 1)], account="physics")
    await site.later(5)
    return claim


async def test_usage_is_one_row_a_run_and_resource(site, run):
    claim = await use(site, run)
    first, second, third = site.store.usage(Filter(), site.clock.now)
    assert first == Usage(
        user="user1",
        account="physics",
        resource="fez",
        owner="run slurm:c:1.0",
        leases=1,
        slots=1,
        started_at=1000.0,
        ended_at=1010.0,
        held_s=10.0,
        tasks=2,
        completed=2,
        shots=200,
        usage_s=1.0,
        cost={"EUR": 5.0},
    )
    assert (second.held_s, second.tasks, second.completed, second.shots) == (60.0, 2, 1, 100)
    assert (third.owner, third.held_s, third.ended_at, third.usage_s) == (f"claim {claim.id}", 5.0, None, None)


async def test_usage_sums_over_what_it_is_not_grouped_by(site, run):
    await use(site, run)
    now = site.clock.now
    (total,) = site.store.usage(Filter(), now, by=("account",))
    assert (total.account, total.user, total.leases, total.held_s, total.tasks) == ("physics", "", 3, 75.0, 4)
    assert total.cost == {"EUR": 5.0, "USD": 7.0}
    assert total.ended_at is None
    users = site.store.usage(Filter(), now, by=("user",))
    assert {row.user: (row.held_s, row.shots) for row in users} == {"user1": (15.0, 200), "user2": (60.0, 100)}


async def test_usage_filters(site, run):
    await use(site, run)
    now = site.clock.now

    def resources(**where):
        return [row.resource for row in site.store.usage(Filter(**where), now)]

    assert resources(user="user2") == ["garnet"]
    assert resources(uid=1) == ["fez", "torino"]
    assert resources(account="chemistry") == []
    assert resources(resource="fez") == ["fez"]
    assert resources(owner="run slurm:c:2.0") == ["garnet"]
    assert resources(since=1015.0) == ["torino"]
    assert resources(until=1015.0) == ["fez", "garnet"]


async def test_a_refused_run_uses_nothing(site, run):
    site.vendor.fail("acquire", QtandemError("policy", "no"))
    with pytest.raises(QtandemError):
        await site.begin(run())
    await site.service.settled()
    assert site.store.usage(Filter(), site.clock.now) == []

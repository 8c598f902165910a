"""What is over for long is forgotten, in small steps, and nothing that is open or within the window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qtandem.core.leases.model import ClaimHead, Lease, LeaseState, OwnerChange, OwnerState, Task, owner_of
from qtandem.core.leases.queries import Filter
from qtandem.core.providers.base import TaskState

DAY = 86_400.0
NOW = 1000 * DAY


def lived(store, record, id, began, ended=None, task=True):
    """A run or claim with one lease and one task, ended or not."""
    owner = owner_of(record)
    lease = Lease(id, owner, "fez", 1, LeaseState.RESERVED, record.uid, began, began, began + 9)
    store.reserve(record, [lease], began)
    held = replace(lease, state=LeaseState.HELD, token="t", changed_at=began + 1, expires_at=None)
    store.save([held], OwnerChange(owner, OwnerState.HELD, began + 1))
    if task:
        made = Task(f"t-{id}", id, owner, "fez", record.uid, "", "qasm3", began, TaskState.COMPLETED)
        store.add_task(replace(made, shots=7, usage_s=1.5, finished_at=began + 2))
    if ended is not None:
        store.save([replace(held, state=LeaseState.RELEASED, changed_at=ended)])
        store.save([], OwnerChange(owner, OwnerState.ENDED, ended))


def claim(id):
    return ClaimHead(id, 1001, "ann", "chain", 1.0, 2.0)


def test_what_ended_before_goes_and_the_rest_stays_whole(store, run):
    lived(store, run("1"), "old", NOW - 500 * DAY, NOW - 499 * DAY)
    lived(store, run("2"), "new", NOW - 10 * DAY, NOW - 9 * DAY)
    lived(store, run("3"), "long", NOW - 500 * DAY, NOW - 1 * DAY)
    lived(store, run("4"), "open", NOW - 500 * DAY)
    lived(store, claim("c1"), "old-claim", NOW - 500 * DAY, NOW - 499 * DAY)
    lived(store, claim("c2"), "open-claim", NOW - 500 * DAY)
    before = {row.owner: row for row in store.usage(Filter(), NOW)}
    assert store.forget(NOW - 400 * DAY) == 2
    assert {lease.id for lease in store.leases(Filter())} == {"new", "long", "open", "open-claim"}
    assert {task.id for task in store.tasks(Filter())} == {"t-new", "t-long", "t-open", "t-open-claim"}
    assert {record.run.id.job.job for record in store.runs(Filter())} == {"2", "3", "4"}
    assert {opened.leases[0].id for opened in store.load()} == {"open", "open-claim"}
    after = {row.owner: row for row in store.usage(Filter(), NOW)}
    assert after == {owner: row for owner, row in before.items() if owner in after}
    assert len(after) == 4
    assert store.forget(NOW - 400 * DAY) == 0


def test_usage_within_the_window_is_unaffected(store, run):
    for number in range(30):
        began = NOW - (number * 40 + 0.5) * DAY
        lived(store, run(str(number)), f"l{number}", began, began + DAY)
    since = Filter(since=NOW - 400 * DAY)
    before = store.usage(since, NOW), store.usage(since, NOW, ("user", "resource"))
    while store.forget(NOW - 400 * DAY, most=4):
        pass
    assert (store.usage(since, NOW), store.usage(since, NOW, ("user", "resource"))) == before
    assert len(before[0]) == 10
    assert len(store.leases(Filter())) == 11, "the one that ended within the window stays too"


def test_each_step_is_small(store, run):
    for number in range(10):
        lived(store, run(str(number)), f"l{number}", NOW - 900 * DAY + number, NOW - 800 * DAY)
    assert [store.forget(NOW - 400 * DAY, most=4) for _ in range(4)] == [4, 4, 2, 0]
    assert store.runs(Filter()) == []


def test_a_run_of_several_leases_goes_with_its_last(store, run):
    one = run("1")
    leases = [
        Lease(id, owner_of(one), resource, 1, LeaseState.RESERVED, one.uid, NOW - 900 * DAY, NOW - 900 * DAY, 1.0)
        for id, resource in (("a", "fez"), ("b", "garnet"))
    ]
    store.reserve(one, leases, NOW - 900 * DAY)
    store.save([replace(leases[0], state=LeaseState.RELEASED, changed_at=NOW - 800 * DAY)])
    store.save([replace(leases[1], state=LeaseState.RELEASED, changed_at=NOW - 1 * DAY)])
    store.save([], OwnerChange(owner_of(one), OwnerState.ENDED, NOW - 800 * DAY))
    assert store.forget(NOW - 400 * DAY) == 1
    assert len(store.runs(Filter())) == 1
    assert store.forget(NOW) == 1
    assert store.runs(Filter()) == []


@pytest.mark.parametrize("age_days", [399, 401])
def test_refusals_of_jobs_that_never_came_back_go_too(store, age_days):
    store.refuse("slurm:c:1", NOW - age_days * DAY, 15.0, 600.0, "busy")
    store.forget(NOW - 400 * DAY)
    assert (store.refusal("slurm:c:1") is None) is (age_days > 400)

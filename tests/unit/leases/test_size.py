"""Ten thousand leases on a thousand resources are cheap, and ended ones cost nothing."""

from __future__ import annotations

import gc
import tracemalloc

from sqlalchemy import text

from qtandem.core.leases.book import Book, Owner
from qtandem.core.leases.model import Lease, LeaseState, OwnerState, run_owner

LEASES, RESOURCES = 10_000, 1_000


def fill(book: Book, run) -> None:
    for number in range(LEASES):
        one = run(str(number))
        owner = Owner(one, OwnerState.HELD)
        book.add(owner)
        lease = Lease(
            f"{number:032x}",
            run_owner(one.id),
            f"qpu_{number % RESOURCES}",
            1,
            LeaseState.HELD,
            1001,
            1.0,
            1.0,
            token=f"token-{number:032x}",
        )
        book.put(owner, lease)


def test_memory_of_open_leases(run):
    gc.collect()
    tracemalloc.start()
    book = Book()
    fill(book, run)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 30 * 1024 * 1024
    assert book.used("qpu_7") == LEASES // RESOURCES


async def test_ended_leases_stay_on_disk_only(site, run):
    for number in range(20):
        await site.begin(run(str(number)))
        await site.end(str(number))
    assert site.service.leases() == []
    assert site.service.open_runs() == []
    with site.store.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM leases")).scalar() == 20
    await site.restart()
    assert site.service.leases() == []


def test_the_query_of_open_leases_uses_an_index(store):
    with store.reading() as connection:
        plan = connection.execute(
            text("EXPLAIN QUERY PLAN SELECT * FROM leases WHERE state IN ('reserved', 'held')")
        ).all()
    assert "leases_by_state" in str(plan)

"""Leases outside a job."""

from __future__ import annotations

import asyncio

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import LeaseState
from qtandem.core.leases.queries import Filter
from qtandem.core.managers import Grant

TWO = [Grant("fez", 1), Grant("garnet", 2)]


async def test_a_claim_holds_until_its_owner_ends_it(site):
    claim = await site.service.claim(7, "ada", TWO, 600, "chain", account="physics")
    assert [(lease.resource, lease.slots, lease.state) for lease in claim.leases] == [
        ("fez", 1, "held"),
        ("garnet", 2, "held"),
    ]
    assert claim.expires_at == site.clock.now + 600
    assert site.service.claims(7) == [claim]
    assert site.service.claims(8) == []
    assert await site.service.end_claim(claim.id, 7)
    assert not await site.service.end_claim(claim.id, 7)
    assert site.vendor.sessions() == []


async def test_only_its_owner_and_root_use_and_end_a_claim(site):
    claim = await site.service.claim(7, "ada", TWO)
    lease = claim.leases[0]
    assert site.service.usable(lease.id, 7) == lease
    with pytest.raises(QtandemError) as caught:
        site.service.usable(lease.id, 8)
    assert caught.value.code == "not-yours"
    with pytest.raises(QtandemError) as caught:
        await site.service.end_claim(claim.id, 8)
    assert caught.value.code == "not-yours"
    assert await site.service.end_claim(claim.id, None)


async def test_a_claim_expires(site):
    claim = await site.service.claim(7, "ada", TWO, 600)
    await site.later(599)
    assert site.service.claims() == [claim]
    assert site.service.next_sweep() == claim.expires_at
    await site.restart()
    await site.later(1)
    assert site.service.leases() == []
    assert site.vendor.sessions() == []
    assert {lease.state for lease in site.store.leases(Filter())} == {LeaseState.EXPIRED}
    with pytest.raises(QtandemError) as caught:
        site.service.usable(claim.leases[0].id, 7)
    assert caught.value.code == "no-lease"


async def test_no_claim_outlives_the_configured_time(site):
    claim = await site.service.claim(7, "ada", TWO, 10**9)
    assert claim.expires_at == site.clock.now + site.timing.claim_ttl_s


async def test_the_same_name_is_the_same_claim(site):
    pair = await asyncio.gather(*(site.service.claim(7, "ada", TWO, 600, "chain") for _ in range(2)))
    assert pair[0] == pair[1] == await site.service.claim(7, "ada", TWO, 600, "chain")
    with pytest.raises(QtandemError) as caught:
        await site.service.claim(7, "ada", [Grant("torino", 1)], 600, "chain")
    assert caught.value.code == "ambiguous"
    other = await site.service.claim(8, "eve", [Grant("torino", 1)], 600, "chain")
    assert other.id != pair[0].id


async def test_a_refused_claim_leaves_nothing(site):
    site.vendor.fail("acquire", QtandemError("policy", "no sessions"), resource="garnet")
    with pytest.raises(QtandemError, match="no sessions"):
        await site.service.claim(7, "ada", TWO)
    await site.service.settled()
    assert site.vendor.sessions() == []
    assert site.service.leases() == []


async def test_claims_and_runs_share_the_slots(site, run):
    await site.service.claim(7, "ada", TWO)
    with pytest.raises(QtandemError) as caught:
        await site.begin(run())
    assert caught.value.code == "slots-busy"

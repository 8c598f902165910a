"""A vendor's session is never two leases', whatever the vendor takes it for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant
from qtandem.core.runs import Run, RunId
from tests.fakes.house import House


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with House(tmp_path, {"fez": 2}) as made:
        yield made


def run(house: House, job: str) -> Run:
    return Run(RunId(house.manager.id(job)), 1000, "ann")


async def test_the_session_of_another_lease_is_neither_taken_nor_released(house: House) -> None:
    [mine] = await house.leases.begin(run(house, "1"), [Grant("fez")])

    async def mistake(*_: object) -> str:
        return mine.token or ""

    house.workers.acquire = mistake  # type: ignore[method-assign]
    house.workers.find_session = mistake  # type: ignore[method-assign]
    with pytest.raises(QtandemError, match="session of another lease") as caught:
        await house.leases.begin(run(house, "2"), [Grant("fez")])
    assert caught.value.retryable
    await house.leases.settled()
    assert [lease.id for lease in house.leases.leases()] == [mine.id]
    assert len(house.workers.sessions()) == 1
    assert ("release", "fez") not in house.workers.calls


async def test_its_own_session_is_found(house: House) -> None:
    [mine] = await house.leases.begin(run(house, "1"), [Grant("fez")])
    assert await house.calls.find_session("fez", mine.id) == mine.token

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from qtandem.daemons import observer
from tests.fakes.house import House


@pytest.fixture
def eventually() -> Callable[..., object]:
    """Await a condition that other tasks bring about; fails after `timeout` seconds."""

    async def wait(condition: Callable[[], object], timeout: float = 5.0) -> object:
        async with asyncio.timeout(timeout):
            while not (result := condition()):  # noqa: ASYNC110 - conditions of many kinds, none of them an event
                await asyncio.sleep(0.005)
        return result

    return wait


@pytest.fixture(autouse=True)
def nudges_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "NUDGED_S", 0.01)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with House(tmp_path, {"fez": 2, "torino": 1}) as built:
        yield built


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket in it."""
    with tempfile.TemporaryDirectory(prefix="qt") as folder:
        yield Path(folder)

"""The reaper forgets what is over for longer than the site keeps it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from qtandem.core.leases.queries import Filter
from qtandem.core.managers import Grant
from qtandem.core.runs import Run, RunId
from qtandem.daemons import reaping
from qtandem.daemons.reaping import Reaping
from tests.fakes.house import House


@pytest.mark.parametrize(("days", "left"), [(400.0, 0), (0.0, 3)])
async def test_the_setting_decides(
    tmp_path: Path, eventually: Callable, monkeypatch: pytest.MonkeyPatch, days: float, left: int
) -> None:
    monkeypatch.setattr(reaping, "FORGET_NEXT_S", 0.01)
    async with House(tmp_path, {"fez": 1}) as house:
        for job in ("1", "2", "3"):
            await house.leases.begin(Run(RunId(house.manager.id(job)), 1000, "ann"), [Grant("fez")])
            await house.leases.end(house.manager.id(job), None, "over")
        house.context.settings.daemon.__dict__["keep_days"] = days
        now = house.context.clock()
        house.context.clock = lambda: now + 401 * 86_400.0
        forgetting = asyncio.create_task(Reaping(house.context).forget_forever())
        if days:
            await eventually(lambda: not house.store.leases(Filter()))
        else:
            await asyncio.sleep(0.1)
        assert len(await house.context.records.runs(Filter())) == left
        forgetting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await forgetting

"""The judge of the live tests must itself convict: a doubled session, too many slots, one left open."""

from __future__ import annotations

from pathlib import Path

from qtandem.core.providers.simulator.device import SimulatedDevice
from tests.live.witness import sessions


def _acquired(token: str, key: str, slots: int = 1) -> dict[str, object]:
    return {"at": 1.0, "event": "acquire", "token": token, "key": key, "slots": slots}


def _released(token: str, key: str) -> dict[str, object]:
    return {"at": 2.0, "event": "release", "token": token, "key": key}


def test_sessions_one_after_the_other_are_right() -> None:
    log = [_acquired("a", "one"), _released("a", "one"), _acquired("b", "two"), _released("b", "two")]
    assert sessions(log, 1) == ([], {})


def test_a_second_session_for_one_key_is_a_fault() -> None:
    faults, _ = sessions([_acquired("a", "one"), _acquired("b", "one")], 2)
    assert len(faults) == 1
    assert "twice" in faults[0]


def test_more_than_the_slots_is_a_fault() -> None:
    faults, _ = sessions([_acquired("a", "one"), _acquired("b", "two", 2)], 2)
    assert ["3 of 2 slots" in fault for fault in faults] == [True]


def test_a_session_that_stays_open_is_named() -> None:
    assert sessions([_acquired("a", "one", 2)], 2) == ([], {"one": 2})


def test_the_log_of_a_real_device_is_read(tmp_path: Path) -> None:
    device = SimulatedDevice(tmp_path)
    token = device.acquire("one", 1, 1)
    assert device.acquire("one", 1, 1) == token
    assert sessions(device.log(), 1) == ([], {"one": 1})
    device.release(token)
    assert sessions(device.log(), 1) == ([], {})

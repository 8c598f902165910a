from __future__ import annotations

import socket
from pathlib import Path

import pytest

from qtandem.daemons.notify import Notifier


@pytest.fixture
def receiver(short_path: Path) -> socket.socket:
    receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiving.bind(str(short_path / "notify"))
    receiving.settimeout(2.0)
    return receiving


def test_the_service_manager_hears_each_state(receiver: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": receiver.getsockname()})
    notifier.ready("3 resources")
    notifier.reloading()
    notifier.alive()
    notifier.stopping()
    heard = [receiver.recv(4096).decode() for _ in range(4)]
    assert heard[0] == "READY=1\nSTATUS=3 resources"
    assert heard[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert heard[1].partition("USEC=")[2].isdigit()
    assert heard[2:] == ["WATCHDOG=1", "STOPPING=1"]
    receiver.close()


def test_an_abstract_address_works() -> None:
    receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiving.bind(b"\0qtandem-test-" + str(id(receiving)).encode())
    receiving.settimeout(2.0)
    name = receiving.getsockname()
    Notifier({"NOTIFY_SOCKET": "@" + bytes(name).decode()[1:]}).alive()
    assert receiving.recv(100) == b"WATCHDOG=1"
    receiving.close()


def test_nobody_to_tell_is_no_error(short_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(short_path / "gone")}).ready()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "7"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_its_time(environ: dict[str, str], seconds: float | None) -> None:
    assert Notifier(environ, pid=7).watchdog_s == seconds

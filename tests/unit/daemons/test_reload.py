"""What a new configuration takes the place of is closed: it may have processes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qtandem.core.config import Configuration, load
from qtandem.core.managers import Manager
from qtandem.daemons.daemon import Daemon
from tests.fakes.manager import FakeManager


class Closable(FakeManager):
    """A manager that keeps something open."""

    def __init__(self, natives: Mapping[str, str]) -> None:
        super().__init__("pbs", "lab", natives)
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


def configured(folder: Path, daemon: str = "", timing: str = "") -> Configuration:
    (folder / "qtandem.toml").write_text(
        f"""[daemon]
state_dir = "{folder}"
runtime_dir = "{folder}"
socket = "{folder}/q.sock"
master_key = "{folder}/key"
metrics = ""
{daemon}
[timing]
{timing}
[managers.pbs]
cluster = "lab"
"""
    )
    return load(folder / "qtandem.toml")


async def test_managers_of_before_are_closed(short_path: Path) -> None:
    made: list[Closable] = []

    def build(_name: str, _settings: object, natives: Mapping[str, str]) -> Manager:
        made.append(Closable(natives))
        return made[-1]

    daemon = Daemon(configured(short_path), build=build)
    await daemon.open()
    assert [manager.closed for manager in made] == [0]
    assert await daemon.reload()
    assert [manager.closed for manager in made] == [1, 0]
    await daemon.close()
    assert [manager.closed for manager in made] == [1, 1]


async def test_what_a_reload_cannot_change_is_told_and_nothing_else(short_path: Path) -> None:
    daemon = Daemon(configured(short_path), build=lambda *_: Closable({}))
    await daemon.open()
    configured(short_path, 'login_hosts = ["login1"]\nlog_level = "debug"', "heartbeat_s = 2\nreap_s = 20")
    assert await daemon.reload()
    told = [problem for problem in daemon.context.problems if "next start" in problem]
    assert [problem.split()[0] for problem in told] == ["daemon.log_level", "timing.heartbeat_s"]
    await daemon.close()

"""The dead-man closes every sensor once per outage, until confirmed, and never because of a clock."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qtandem.core.config import Configuration
from qtandem.core.errors import QtandemError
from qtandem.core.managers import Published, SensorValue
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.daemons import deadman as module
from qtandem.daemons import registry
from qtandem.daemons.deadman import RETRY_MAX_S, DeadMan, Target, find_target, watch_forever
from qtandem.daemons.heartbeat import Beat, write_beat, write_names
from qtandem.daemons.notify import Notifier

LIMIT = 30.0


@dataclass
class Recorder:
    """A manager that notes publications; `answers` are given in turn, then everything is confirmed."""

    calls: list[list[SensorValue]] = field(default_factory=list)
    answers: list[Published | Exception] = field(default_factory=list)

    async def publish(self, values):
        self.calls.append(list(values))
        answer = self.answers.pop(0) if self.answers else Published(frozenset(one.native for one in values))
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class World:
    """One host: its monotonic clock, its runtime directory, its manager."""

    runtime_dir: Path
    now: float = 1000.0
    manager: Recorder = field(default_factory=Recorder)
    slots: dict[str, int] = field(default_factory=lambda: {"ibm_fez": 2, "iqm": 1})

    def deadman(self, boot: str = "b1") -> DeadMan:
        return DeadMan(
            name="slurm",
            runtime_dir=self.runtime_dir,
            limit_s=LIMIT,
            target=lambda: Target(self.manager, self.slots),
            state=self.runtime_dir / "deadman-slurm.json",
            monotonic=lambda: self.now,
            boot=boot,
        )

    def beat(self, at: float, healthy: bool = True) -> None:
        write_beat(self.runtime_dir, "slurm", Beat(at, healthy))

    async def after(self, deadman: DeadMan, seconds: float) -> float:
        self.now += seconds
        return await deadman.step()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_closes_every_sensor_when_the_heartbeat_is_too_old(world):
    world.beat(1.0)
    deadman = world.deadman()
    await deadman.step()
    await world.after(deadman, LIMIT)
    assert world.manager.calls == []
    await world.after(deadman, 1)
    assert world.manager.calls == [[SensorValue("ibm_fez", 2, 2), SensorValue("iqm", 1, 1)]]


async def test_closes_once_per_outage_and_opens_nothing(world):
    world.beat(1.0)
    deadman = world.deadman()
    await deadman.step()
    for _ in range(5):
        await world.after(deadman, LIMIT + 1)
    assert len(world.manager.calls) == 1
    world.beat(2.0)
    await world.after(deadman, 1)
    assert len(world.manager.calls) == 1
    await world.after(deadman, LIMIT + 1)
    assert len(world.manager.calls) == 2
    assert all(value.open == 0 for call in world.manager.calls for value in call)


async def test_does_nothing_while_the_daemon_beats(world):
    deadman = world.deadman()
    for number in range(100):
        world.beat(float(number + 1))
        await world.after(deadman, 5)
    assert world.manager.calls == []


async def test_counts_from_its_start_when_there_was_never_a_heartbeat(world):
    deadman = world.deadman()
    await world.after(deadman, LIMIT - 1)
    assert world.manager.calls == []
    await world.after(deadman, 2)
    assert len(world.manager.calls) == 1


async def test_an_unhealthy_daemon_that_writes_counts_as_silent(world):
    world.beat(1.0)
    deadman = world.deadman()
    await deadman.step()
    for number in range(8):
        world.beat(2.0 + number, healthy=False)
        await world.after(deadman, 5)
    assert len(world.manager.calls) == 1


async def test_retries_with_growing_pauses_until_all_are_confirmed_and_asks_only_for_the_rest(world):
    world.manager.answers = [
        QtandemError("manager-unreachable", "slurmdbd is away"),
        Published(frozenset({"iqm"}), {"ibm_fez": "busy"}),
        Published(frozenset()),
    ]
    deadman = world.deadman()
    pauses = [await world.after(deadman, LIMIT + 1)]
    for _ in range(3):
        pauses.append(await world.after(deadman, pauses[-1]))
    asked = [[value.native for value in call] for call in world.manager.calls]
    assert asked == [["ibm_fez", "iqm"], ["ibm_fez", "iqm"], ["ibm_fez"], ["ibm_fez"]]
    assert pauses[:3] == [1.0, 2.0, 4.0]
    await world.after(deadman, 100)
    assert len(world.manager.calls) == 4


async def test_pauses_between_retries_are_bounded(world):
    world.manager.answers = [QtandemError("manager-unreachable", "away")] * 20
    deadman = world.deadman()
    pauses = [await world.after(deadman, LIMIT + 1) for _ in range(20)]
    assert max(pauses) == RETRY_MAX_S


async def test_stops_retrying_when_the_heartbeat_is_back(world):
    world.manager.answers = [QtandemError("manager-unreachable", "away")] * 9
    world.beat(1.0)
    deadman = world.deadman()
    await deadman.step()
    await world.after(deadman, LIMIT + 1)
    world.beat(2.0)
    await world.after(deadman, 1)
    await world.after(deadman, 1)
    assert len(world.manager.calls) == 1


async def test_a_manager_that_hangs_is_tried_again(world, monkeypatch):
    monkeypatch.setattr(module, "PUBLISH_DEADLINE_S", 0.01)
    hang = world.manager.publish

    async def publish(values):
        if not world.manager.calls:
            world.manager.calls.append(list(values))
            await asyncio.Event().wait()
        return await hang(values)

    monkeypatch.setattr(world.manager, "publish", publish)
    deadman = world.deadman()
    await world.after(deadman, LIMIT + 1)
    await world.after(deadman, 1)
    assert len(world.manager.calls) == 2


@pytest.mark.parametrize("jump_s", [86400 * 365, -86400 * 365])
async def test_a_clock_jump_closes_nothing(world, jump_s):
    world.beat(1.7e9)
    deadman = world.deadman()
    await deadman.step()
    file = world.runtime_dir / "heartbeat.slurm"
    os.utime(file, (file.stat().st_mtime + jump_s,) * 2)
    await world.after(deadman, 5)
    world.beat(1.7e9 + jump_s)
    await world.after(deadman, LIMIT - 1)
    world.beat(1.7e9 + jump_s + 5)
    await world.after(deadman, LIMIT - 1)
    assert world.manager.calls == []


async def test_touching_the_file_without_a_new_beat_keeps_nothing_open(world):
    world.beat(1.0)
    deadman = world.deadman()
    await deadman.step()
    for _ in range(8):
        os.utime(world.runtime_dir / "heartbeat.slurm")
        await world.after(deadman, 5)
    assert len(world.manager.calls) == 1


async def test_a_restart_goes_on_counting(world):
    world.beat(1.0)
    await world.deadman().step()
    await world.after(world.deadman(), LIMIT - 5)
    await world.after(world.deadman(), 6)
    assert len(world.manager.calls) == 1
    await world.after(world.deadman(), 100)
    assert len(world.manager.calls) == 1


async def test_a_boot_starts_the_count_anew(world):
    world.beat(1.0)
    await world.deadman("b1").step()
    world.now = 5.0
    deadman = world.deadman("b2")
    await deadman.step()
    await world.after(deadman, LIMIT - 1)
    assert world.manager.calls == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"boot": "b1", "at": "x", "since": 1, "closed": 0}'])
async def test_a_damaged_state_starts_the_count_anew(world, text):
    (world.runtime_dir / "deadman-slurm.json").write_text(text)
    deadman = world.deadman()
    await deadman.step()
    assert world.manager.calls == []


async def test_the_newest_configuration_is_closed(world):
    deadman = world.deadman()
    world.slots = {"new": 3}
    await world.after(deadman, LIMIT + 1)
    assert world.manager.calls == [[SensorValue("new", 3, 3)]]


async def test_the_loop_tells_the_service_manager_and_ends_when_told(world):
    sent = []

    class Heard(Notifier):
        def _send(self, *lines):
            sent.extend(lines)

    stop = asyncio.Event()
    task = asyncio.create_task(watch_forever(world.deadman(), Heard({}), stop))
    async with asyncio.timeout(5):
        while "WATCHDOG=1" not in sent:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    stop.set()
    await task
    assert sent[0] == "READY=1"
    assert "STOPPING=1" in sent


@pytest.fixture
def built(monkeypatch):
    """Notes what the registry was asked for."""
    asked = {}

    def build(name, settings, natives):
        asked.update(name=name, settings=settings, natives=dict(natives))
        return Recorder()

    monkeypatch.setattr(registry, "build", build)
    return asked


def test_a_host_without_the_list_of_resources_closes_the_mirrored_names(tmp_path, built):
    write_names(tmp_path, "ibm fez\tibm_fez\t2\n")
    target = find_target("slurm", tmp_path, lambda: Configuration(Settings(), Catalog()))
    assert target.slots == {"ibm_fez": 2}
    assert built["natives"] == {"ibm fez": "ibm_fez"}


def test_a_broken_configuration_does_not_keep_the_mirrored_names_open(tmp_path, built):
    write_names(tmp_path, "ibm_fez\tibm_fez\t2\n")

    def broken():
        raise QtandemError("bad-config", "cannot be read")

    assert find_target("slurm", tmp_path, broken).slots == {"ibm_fez": 2}


def test_not_knowing_any_resource_is_an_error_that_says_so(tmp_path, built):
    with pytest.raises(QtandemError, match="No resource is known"):
        find_target("slurm", tmp_path, lambda: Configuration(Settings(), Catalog()))


@pytest.fixture
def host(tmp_path):
    """A configuration and a stand-in manager that a fresh process loads by entry point of its own."""
    (tmp_path / "standin.py").write_text(
        "import json, pathlib\n"
        "from qtandem.core.managers import Published\n"
        "class Standin:\n"
        "    def __init__(self, settings, natives):\n"
        "        self.out = pathlib.Path(settings.options['out'])\n"
        "    async def publish(self, values):\n"
        "        self.out.write_text(json.dumps([[v.native, v.total, v.closed] for v in values]))\n"
        "        return Published(frozenset(v.native for v in values))\n"
    )
    (tmp_path / "run.py").write_text(
        "import sys\n"
        "from qtandem.daemons import deadman, registry\n"
        "registry.MANAGERS['standin'] = 'standin:Standin'\n"
        "sys.exit(deadman.main(sys.argv[1:]))\n"
    )
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "qtandem.toml").write_text(
        f'[daemon]\nruntime_dir = "{run}"\nqrmi_config = "{tmp_path}/none.json"\n'
        "[timing]\ndeadman_s = 0.05\n"
        f'[managers.standin]\noptions = {{ out = "{tmp_path}/closed.json" }}\n'
        '[resources.sim]\ntype = "simulator"\nslots = 3\n'
    )
    return tmp_path


def command(host, *options: str) -> list[str]:
    return [sys.executable, str(host / "run.py"), "--manager", "standin", "--config", f"{host}/qtandem.toml", *options]


def environment(host) -> dict[str, str]:
    rooms = Path(__file__).parents[3] / ".dev"
    return {**os.environ, "PYTHONPATH": f"{rooms}:{host}"}


def test_once_counts_from_its_first_look_then_closes(host):
    first = subprocess.run(command(host, "--once"), env=environment(host), timeout=30)
    assert first.returncode == 0
    kept = host / "run" / "deadman-standin.json"
    assert kept.exists()
    assert not (host / "closed.json").exists()
    second = subprocess.run(command(host, "--once"), env=environment(host), timeout=30)
    assert second.returncode == 0
    assert json.loads((host / "closed.json").read_text()) == [["sim", 3, 3]]
    assert json.loads(kept.read_text())["closed"] is True


def test_the_loop_closes_alone_and_ends_on_sigterm(host):
    process = subprocess.Popen(command(host), env=environment(host), stderr=subprocess.PIPE, text=True)
    lines = iter(process.stderr.readline, "")
    assert any('"closed"' in line for line in lines)
    process.terminate()
    assert process.wait(10) == 0
    assert json.loads((host / "closed.json").read_text()) == [["sim", 3, 3]]


def test_an_unknown_manager_is_one_line_with_a_fix(host):
    line = [sys.executable, "-m", "qtandem.daemons.deadman", "--manager", "nope", "--once"]
    line += ["--config", f"{host}/qtandem.toml"]
    result = subprocess.run(line, env=environment(host), timeout=30, capture_output=True, text=True)
    assert result.returncode == 5
    assert "no manager 'nope'" in result.stderr

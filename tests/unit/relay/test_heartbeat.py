"""Names and heartbeat: written whole, readable by all, and moving only while the daemon itself is well."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from qtandem.core.errors import QtandemError
from qtandem.daemons.heartbeat import (
    NAMES,
    Beat,
    NameRow,
    parse_names,
    read_beat,
    read_names,
    write_beat,
    write_names,
    write_sensors,
)

TEXT = "ibm_fez\tibm_fez\t2\nmy-qpu\tmy_qpu\t1\n"


def age_mark(runtime_dir) -> int:
    return (runtime_dir / "heartbeat.slurm").stat().st_mtime_ns


def aged(runtime_dir) -> int:
    os.utime(runtime_dir / "heartbeat.slurm", ns=(10**18, 10**18))
    return 10**18


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_names_round_trip_and_are_world_readable(tmp_path):
    write_names(tmp_path, TEXT)
    assert read_names(tmp_path) == (NameRow("ibm_fez", "ibm_fez", 2), NameRow("my-qpu", "my_qpu", 1))
    assert (tmp_path / NAMES).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("text", ["x", "x\ty", "x\ty\tz", "\ty\t1", "<html>\n"])
def test_what_is_no_list_of_names_does_not_replace_one(tmp_path, text):
    write_names(tmp_path, TEXT)
    with pytest.raises(QtandemError):
        write_names(tmp_path, text)
    assert (tmp_path / NAMES).read_text() == TEXT


def test_files_that_are_no_text_are_replaced(tmp_path):
    """As a broken disk leaves them: a relay that stumbled here would do so at each start."""
    for name in ("names", "sensors.lsf"):
        (tmp_path / name).write_bytes(b"\xff\x00\t\xfe")
    with pytest.raises(QtandemError):
        read_names(tmp_path)
    write_names(tmp_path, TEXT)
    write_sensors(tmp_path, "lsf", {"fez": 1})
    assert read_names(tmp_path)[0].name == "ibm_fez"
    assert (tmp_path / "sensors.lsf").read_text() == "fez 1\n"


def test_no_names_were_mirrored(tmp_path):
    assert read_names(tmp_path) == ()
    assert parse_names("") == ()


def test_a_planted_link_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / NAMES).symlink_to(victim)
    write_names(tmp_path, TEXT)
    assert victim.read_text() == "keep"
    assert not (tmp_path / NAMES).is_symlink()


def test_a_beat_is_json_for_everybody(tmp_path):
    assert write_beat(tmp_path, "slurm", Beat(12.5, True))
    assert json.loads((tmp_path / "heartbeat.slurm").read_text()) == {"at": 12.5, "healthy": True}
    assert (tmp_path / "heartbeat.slurm").stat().st_mode & 0o777 == 0o644


def test_a_daemon_that_stands_still_does_not_beat(tmp_path):
    write_beat(tmp_path, "slurm", Beat(1.0, True))
    mark = aged(tmp_path)
    assert not write_beat(tmp_path, "slurm", Beat(1.0, True))
    assert age_mark(tmp_path) == mark
    assert write_beat(tmp_path, "slurm", Beat(2.0, True))
    assert age_mark(tmp_path) != mark


def test_a_sick_daemon_shows_but_does_not_beat(tmp_path):
    write_beat(tmp_path, "slurm", Beat(1.0, True))
    mark = aged(tmp_path)
    for at in (2.0, 3.0):
        assert not write_beat(tmp_path, "slurm", Beat(at, False))
    assert age_mark(tmp_path) == mark
    assert read_beat(tmp_path, "slurm") == Beat(1.0, False)


def test_a_sick_daemon_makes_no_first_beat(tmp_path):
    assert not write_beat(tmp_path, "slurm", Beat(1.0, False))
    assert read_beat(tmp_path, "slurm") is None


def test_a_daemon_whose_clock_went_back_still_beats(tmp_path):
    write_beat(tmp_path, "slurm", Beat(1000.0, True))
    assert write_beat(tmp_path, "slurm", Beat(10.0, True))


@pytest.mark.parametrize("manager", ["", "../x", "a/b", "a.b", "é"])
def test_what_is_no_managers_name_writes_no_file(tmp_path, manager):
    with pytest.raises(QtandemError, match="not a manager"):
        write_beat(tmp_path, manager, Beat(1.0, True))
    assert not list(tmp_path.iterdir())


def test_one_managers_silence_is_not_the_others(tmp_path):
    write_beat(tmp_path, "slurm", Beat(1.0, True))
    write_beat(tmp_path, "gridengine", Beat(1.0, False))
    assert read_beat(tmp_path, "gridengine") is None
    assert read_beat(tmp_path, "slurm") == Beat(1.0, True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": "x", "healthy": true}', '{"at": 1}'])
def test_a_damaged_heartbeat_is_none(tmp_path, text):
    (tmp_path / "heartbeat.slurm").write_text(text)
    assert read_beat(tmp_path, "slurm") is None


async def test_the_relay_mirrors_names_and_heartbeat(start_relay, daemon, node):
    running = await start_relay(daemon.server, node, mirror=True)
    await until(lambda: (running.runtime_dir / NAMES).exists())
    assert (running.runtime_dir / NAMES).read_text() == daemon.names
    first = read_beat(running.runtime_dir, "slurm")
    await until(lambda: read_beat(running.runtime_dir, "slurm").at > first.at)


async def test_a_reachable_daemon_that_is_not_well_does_not_beat_here(start_relay, daemon, node):
    running = await start_relay(daemon.server, node, mirror=True)
    await until(lambda: read_beat(running.runtime_dir, "slurm") is not None)
    daemon.healthy = False
    await until(lambda: not read_beat(running.runtime_dir, "slurm").healthy)
    mark, at = age_mark(running.runtime_dir), daemon.health_at
    await until(lambda: daemon.health_at > at + 3)
    assert age_mark(running.runtime_dir) == mark
    daemon.healthy = True
    await until(lambda: read_beat(running.runtime_dir, "slurm").healthy)


async def test_a_reachable_daemon_whose_health_is_old_does_not_beat_here(start_relay, daemon, node):
    daemon.ticks = False
    running = await start_relay(daemon.server, node, mirror=True)
    await until(lambda: (running.runtime_dir / NAMES).exists())
    mark = age_mark(running.runtime_dir)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(until(lambda: age_mark(running.runtime_dir) != mark), 0.3)


async def test_names_stay_while_the_daemon_is_away_and_change_when_it_is_back(site, serve, start_relay, tmp_path):
    async with serve(site):
        await site.enrol("c1", tmp_path / "node")
        running = await start_relay(site.server, tmp_path / "node", mirror=True)
        await until(lambda: (running.runtime_dir / NAMES).exists())
    last = read_beat(running.runtime_dir, "slurm")
    await until(lambda: running.relay.upstream._pool is None)
    assert read_names(running.runtime_dir) == (NameRow("ibm_fez", "ibm_fez", 2),)
    assert read_beat(running.runtime_dir, "slurm") == last
    site.names = TEXT
    async with serve(site):
        await until(lambda: len(read_names(running.runtime_dir)) == 2)
        await until(lambda: read_beat(running.runtime_dir, "slurm") != last)


async def test_connections_that_hang_are_given_up_after_a_missed_beat(start_relay, daemon, node, monkeypatch):
    monkeypatch.setattr("qtandem.daemons.relay.MIRROR_CALL_S", 0.1)
    running = await start_relay(daemon.server, node, mirror=True)
    await until(lambda: running.relay.upstream._pool is not None)
    before = running.relay.upstream._pool
    daemon.stuck = True
    await until(lambda: running.relay.upstream._pool is not before)
    daemon.stuck = False


async def test_a_runtime_directory_that_is_gone_does_not_end_the_relay(start_relay, daemon, node, tmp_path):
    running = await start_relay(daemon.server, node, mirror=True, runtime_dir=tmp_path / "missing")
    seen = daemon.health_at
    await until(lambda: daemon.health_at > seen + 3)
    (tmp_path / "missing").mkdir()
    await until(lambda: read_beat(tmp_path / "missing", "slurm") is not None)
    assert not running.task.done()


def test_sensors_are_mirrored_once_they_are_known(tmp_path):
    path = tmp_path / "sensors.lsf"
    write_sensors(tmp_path, "lsf", {})
    assert not path.exists()
    write_sensors(tmp_path, "lsf", {"torino": 0, "fez": 2})
    assert path.read_text() == "fez 2\ntorino 0\n"
    write_sensors(tmp_path, "lsf", {})
    assert path.read_text() == "fez 2\ntorino 0\n"


@pytest.mark.parametrize(
    ("manager", "values"), [("../lsf", {"fez": 1}), ("lsf", {"fez 1\nx": 1}), ("lsf", {"fez": -1})]
)
def test_sensors_of_another_form_do_not_get_into_the_file(tmp_path, manager, values):
    write_sensors(tmp_path, "lsf", {"fez": 1})
    with pytest.raises(QtandemError):
        write_sensors(tmp_path, manager, values)
    assert (tmp_path / "sensors.lsf").read_text() == "fez 1\n"

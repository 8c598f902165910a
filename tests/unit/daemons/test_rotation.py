"""New secrets are taken up while the daemon runs; what fails keeps the old one and is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qtandem.core.resources import Catalog, Resource
from qtandem.core.sources import ObserveSource, Source
from qtandem.daemons import rotation
from qtandem.daemons.rotation import Rotation


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def written(path: Path, text: str) -> Path:
    """Another file in its place, as tools that rotate keys write it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    return fresh.replace(path)


def catalog(**sources: Source) -> Catalog:
    return Catalog({"a": Resource("a", "simulator", "a", sources=sources), "b": Resource("b", "simulator", "b")})


def counting(folder: Path, refresh_s: float = 300.0) -> Source:
    """A command that prints how often it was run, and fails while the file `down` is there."""
    text = (
        f"import pathlib, sys; f = pathlib.Path({str(folder)!r})\n"
        "if (f / 'down').exists(): sys.exit(1)\n"
        "n = len(list(f.glob('run*'))); (f / f'run{n}').touch(); print(f'key{n}')"
    )
    return Source(command=(sys.executable, "-c", text), refresh_s=refresh_s)


async def test_a_changed_file_is_read_again_and_nothing_else_changes(tmp_path: Path, clock: Clock) -> None:
    keeper, file = Rotation(clock), written(tmp_path / "key", "one")
    first = await keeper.fill(catalog(api_key=Source(file=file)))
    assert first.get("a").settings == {"api_key": "one"}
    assert await keeper.fill(first) is first
    written(file, "two")
    second = await keeper.fill(first)
    assert second.get("a").settings == {"api_key": "two"}
    assert second.get("b") is first.get("b")


async def test_a_file_that_goes_keeps_its_secret_and_is_a_problem_until_it_is_back(
    tmp_path: Path, clock: Clock
) -> None:
    keeper, file = Rotation(clock), written(tmp_path / "key", "one")
    first = await keeper.fill(catalog(api_key=Source(file=file)))
    file.unlink()
    assert await keeper.fill(first) is first
    [problem] = keeper.problems.values()
    assert "api_key" in problem
    assert "one" not in problem.replace("None", "")
    written(file, "two")
    assert (await keeper.fill(first)).get("a").settings == {"api_key": "two"}
    assert not keeper.problems


async def test_a_command_is_run_again_when_its_time_is_over(tmp_path: Path, clock: Clock) -> None:
    keeper = Rotation(clock)
    filled = await keeper.fill(catalog(api_key=counting(tmp_path, refresh_s=300)))
    clock.now += 299
    assert await keeper.fill(filled) is filled
    clock.now += 1
    assert (await keeper.fill(filled)).get("a").settings == {"api_key": "key1"}


async def test_a_refused_secret_is_fetched_early_but_not_all_the_time(tmp_path: Path, clock: Clock) -> None:
    keeper = Rotation(clock)
    filled = await keeper.fill(catalog(api_key=counting(tmp_path)))
    clock.now += 1
    assert await keeper.fill(filled, ["a"]) is filled
    clock.now += rotation.AGAIN_S
    filled = await keeper.fill(filled, ["a"])
    assert filled.get("a").settings == {"api_key": "key1"}
    clock.now += rotation.AGAIN_S
    assert await keeper.fill(filled, ["b"]) is filled


async def test_a_command_that_fails_keeps_the_last_secret(tmp_path: Path, clock: Clock) -> None:
    keeper = Rotation(clock)
    filled = await keeper.fill(catalog(api_key=counting(tmp_path)))
    (tmp_path / "down").touch()
    clock.now += 301
    assert await keeper.fill(filled) is filled
    assert "status 1" in next(iter(keeper.problems.values()))
    (tmp_path / "down").unlink()
    clock.now += rotation.AGAIN_S
    assert (await keeper.fill(filled)).get("a").settings == {"api_key": "key1"}
    assert not keeper.problems


async def test_observing_and_executing_rotate_apart(tmp_path: Path, clock: Clock) -> None:
    run, look = written(tmp_path / "run", "run1"), written(tmp_path / "look", "look1")
    resource = Resource(
        "a", "simulator", "a", sources={"k": Source(file=run)}, observe_sources={"k": ObserveSource(file=look)}
    )
    keeper = Rotation(clock)
    filled = await keeper.fill(Catalog({"a": resource}))
    written(look, "look2")
    filled = await keeper.fill(filled)
    assert filled.get("a").spec().settings == {"k": "run1"}
    assert filled.get("a").observe_spec().settings == {"k": "look2"}

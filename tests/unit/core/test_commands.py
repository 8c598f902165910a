import asyncio
import os
import time
from pathlib import Path

import pytest

from qtandem.core import commands
from qtandem.core.commands import CommandError


async def test_output_and_exit_come_back() -> None:
    result = await commands.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=5, check=False)
    assert (result.exit, result.stdout, result.stderr) == (3, "out\n", "err\n")


async def test_failure_carries_what_was_run_and_said() -> None:
    with pytest.raises(CommandError) as caught:
        await commands.run(["sh", "-c", "echo no such licence >&2; exit 1"], timeout_s=5)
    error = caught.value
    assert (error.code, error.exit, error.cause) == ("command-failed", 1, "no such licence")
    assert error.argv[0] == "sh"
    assert "status 1" in error.message


async def test_a_missing_program_is_an_error_of_its_own_words() -> None:
    with pytest.raises(CommandError, match="cannot be started"):
        await commands.run(["/no/such/program"], timeout_s=1)


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while not gone(pid):
        assert time.monotonic() < deadline, "the grandchild lives on"
        time.sleep(0.01)


def wait_written(path: Path) -> None:
    deadline = time.monotonic() + 5
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("flavour", ["async", "sync"])
def test_a_deadline_kills_the_whole_group(tmp_path: Path, flavour: str) -> None:
    pidfile = tmp_path / "pid"
    argv = ["sh", "-c", f"sleep 60 & echo $! > {pidfile}; wait"]

    def call() -> None:
        if flavour == "async":
            asyncio.run(commands.run(argv, timeout_s=0.3))
        else:
            commands.run_sync(argv, timeout_s=0.3)

    with pytest.raises(CommandError, match="within") as caught:
        call()
    assert caught.value.timed_out
    wait_gone(int(pidfile.read_text()))


async def test_cancelling_the_caller_kills_the_command(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    task = asyncio.create_task(commands.run(["sh", "-c", f"echo $$ > {pidfile}; sleep 60"], timeout_s=60))
    await asyncio.to_thread(wait_written, pidfile)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_gone(int(pidfile.read_text()))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("turns", range(2, 7))
async def test_cancelling_a_caller_whose_command_just_starts_kills_what_that_started(
    tmp_path: Path, turns: int, times: int
) -> None:
    pidfile = tmp_path / "pid"
    task = asyncio.create_task(commands.run(["sh", "-c", f"echo $$ > {pidfile}; sleep 60; :"], timeout_s=60))
    for _ in range(turns):
        await asyncio.sleep(0)
    # The loop stands still until the command is well under way.
    wait_written(pidfile)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    await asyncio.to_thread(wait_gone, int(pidfile.read_text()))


def test_the_environment_is_minimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    lines = commands.run_sync(["env"], timeout_s=5, env={"SLURM_CONF": "/x"}).stdout.splitlines()
    assert {"LC_ALL=C", "SLURM_CONF=/x", f"PATH={os.environ['PATH']}"} <= set(lines)
    assert "SECRET_OF_THE_DAEMON" not in "".join(lines)


def test_standard_input_is_given() -> None:
    assert commands.run_sync(["cat"], timeout_s=5, stdin="a\nb\n").stdout == "a\nb\n"

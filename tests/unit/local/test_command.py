import asyncio

import pytest

from qtandem.local.command import main


@pytest.fixture
def shell(machine, capsys):
    async def run(verb, *words):
        common = ["--state-dir", str(machine.folder), "--socket", str(machine.daemon.path)]
        status = await asyncio.to_thread(main, [verb, *common, *words])
        return status, capsys.readouterr()

    return run


async def test_submit_wait_list(machine, shell, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("echo $1\n")
    await machine.run()
    await machine.open()
    status, out = await shell("submit", "--qpu", "fez", "--wait", str(script), "hello")
    assert (status, out.out) == (0, "local:local:1\n")
    assert (machine.folder / "output" / "1.out").read_text() == "hello\n"
    _, out = await shell("list", "--all")
    assert out.out.split("\t")[:5] == ["1", "job.sh", out.out.split("\t")[2], "fez", "completed"]
    assert (await shell("list"))[1].out == ""


async def test_hold_release_cancel(machine, shell):
    await machine.run()
    await shell("submit", "--qpu", "fez", "/bin/true")
    assert (await shell("hold", "local:local:1"))[0] == 0
    await machine.open()
    await machine.until(1, lambda row: row.reason.startswith("held"))
    assert (await shell("release", "1"))[0] == 0
    assert (await shell("wait", "1"))[0] == 0
    assert (await shell("cancel", "1"))[0] == 0


async def test_an_unknown_job_is_one_line_and_a_status(shell):
    status, out = await shell("cancel", "9")
    assert status == 3
    assert out.err.startswith("qtandem-local: The queue of this machine has no job 9")


async def test_a_submission_without_a_script_says_how(shell):
    status, out = await shell("submit", "--qpu", "fez")
    assert (status, out.err.splitlines()[0]) == (2, "qtandem-local: No script is named [bad-request]")
    assert "SCRIPT" in out.err


async def test_a_script_that_is_not_there_is_refused_at_once(shell):
    status, out = await shell("submit", "no-such-file.py")
    assert status == 2
    assert "no-such-file.py is no file here and no command in PATH" in out.err

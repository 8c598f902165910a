"""Results go through the daemon in pieces and to the byte."""

from __future__ import annotations

import asyncio
import io
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Task
from qtandem.core.managers import Grant
from qtandem.core.providers.base import ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.pool import Workers
from qtandem.core.runs import Run, RunId
from qtandem.core.wiretext import decode_text
from qtandem.daemons import app, tls
from qtandem.daemons.results import PIECE, Results, as_answer
from qtandem.daemons.taskfiles import TaskFiles
from tests.fakes import providers
from tests.fakes.house import House

TASK = Task("t1", "l1", "run 1", "fez", 1000, "k", "qasm3", 1.0, TaskState.COMPLETED, vendor_task="v1")
LARGE = 24 << 20
# Characters of one to four bytes, those that JSON escapes, a lone surrogate and a null: pieces cut them anywhere.
ODD = 'a"\\\n\u0000é\u2028€\ud800😀%+ =\x7f'


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with House(tmp_path, {"fez": 1}) as made:
        yield made


async def task_of(house: House) -> Task:
    run = Run(RunId(house.manager.id("1")), 1000, "ann", nodes=("c1",))
    [lease] = await house.leases.begin(run, [Grant("fez")])
    return await house.tasks.start(lease, 1000, {"kind": "qasm2", "program": "OPENQASM 2.0;", "shots": 1}, "")


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("content", ["", "x", ODD, ODD * (PIECE // len(ODD)), "😀" * PIECE])
async def test_an_answer_holds_the_text_to_the_byte(content: str, text: bool) -> None:
    raw = content.encode("utf-8", "surrogatepass")
    said = b"".join([piece async for piece in as_answer(io.BytesIO(raw), text=text)])
    if text and "\ud800" not in content:
        assert decode_text(said.decode()) == {"text": content}
    elif not text:
        assert json.loads(said) == {"text": content}


async def test_half_a_character_at_the_end_is_no_answer() -> None:
    with pytest.raises(UnicodeDecodeError):
        [piece async for piece in as_answer(io.BytesIO("€".encode()[:2]), text=False)]


async def test_a_result_goes_from_a_worker_to_its_file_in_pieces(tmp_path: Path) -> None:
    workers = Workers({"fez": ProviderSpec("fez", "scripted", {})}, command=providers.command())
    files = TaskFiles(tmp_path)

    class Calls:
        async def call(self, resource, method, *args, purpose="observe", uid=None, sink=None):
            return await workers.call(resource, "task_logs", f"long:{LARGE}", purpose="execute", sink=sink)

    tracemalloc.start()
    try:
        await Results(files, Calls()).fetch(TASK)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await workers.close()
    with files.result("t1", 1000) as file:
        assert file.read() == b"x" * LARGE
    assert peak < LARGE / 4


async def test_a_worker_that_dies_half_way_leaves_no_result(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)

    class Calls:
        async def call(self, *_args, sink=None, **_more):
            sink.write(b"half")
            raise QtandemError("vendor-error", "its process was ended by SIGSEGV")

    with pytest.raises(QtandemError, match="SIGSEGV"):
        await Results(files, Calls()).fetch(TASK)
    assert files.result("t1", 1000) is None
    assert list((tmp_path / "tasks" / "1000").iterdir()) == []


async def test_the_end_is_told_before_the_disk_has_it_and_survives_that_it_never_does(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()
    written = house.context.records.update_task

    async def slow(task: Task) -> None:
        if task.state.final:
            await never.wait()
        await written(task)

    monkeypatch.setattr(house.context.records, "update_task", slow)
    task = await task_of(house)
    async with asyncio.timeout(5.0):
        while not (await house.tasks.wait(task.id, 1.0)).state.final:
            pass
    with await house.tasks.result(task.id) as file:
        said = file.read()
    assert (await house.context.records.task(task.id)).state is not TaskState.COMPLETED
    await house.tasks.close()
    monkeypatch.undo()
    house.tasks = house.new_tasks(tmp_path)
    await house.tasks.open()
    async with asyncio.timeout(5.0):
        while not (await house.tasks.wait(task.id, 1.0)).state.final:
            pass
    await house.tasks.written()
    assert (await house.context.records.task(task.id)).state is TaskState.COMPLETED
    with await house.tasks.result(task.id) as file:
        assert file.read() == said
    assert len(house.workers.started) == 1


async def test_what_a_task_has_used_is_asked_for_after_its_end_was_told(house: House, eventually: Callable) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    call = house.workers.call

    async def usage(resource, method, *args, **more):
        if method == "task_usage":
            asked.set()
            await answer.wait()
            return 2.5
        told = await call(resource, method, *args, **more)
        if method != "task_statuses":
            return told
        return {
            task: replace(each, usage_s=None, more=True) if isinstance(each, TaskReport) else each
            for task, each in told.items()
        }

    house.workers.call = usage  # type: ignore[method-assign]
    task = await task_of(house)
    async with asyncio.timeout(5.0):
        while not (seen := await house.tasks.wait(task.id, 1.0)).state.final:
            pass
        await asked.wait()
    assert seen.usage_s is None
    answer.set()
    await house.tasks.written()
    assert (await house.context.records.task(task.id)).usage_s == 2.5
    assert (await house.tasks.get(task.id)).usage_s == 2.5


async def test_a_large_result_is_sent_with_little_memory_as_fast_as_it_is_taken(
    house: House, short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await task_of(house)
    async with asyncio.timeout(5.0):
        while not (await house.tasks.wait(task.id, 1.0)).state.final:
            pass
    await house.tasks.written()
    content = (ODD.replace("\ud800", "") * (1 + LARGE // 24))[:LARGE]
    (tmp_path / "tasks" / "1000" / f"{task.id}.result").write_text(content)
    monkeypatch.setattr(tls, "caller", lambda *_: tls.Caller(1000, None))
    runner = app.runner(app.build(house.context), 1.0)
    await runner.setup()
    await web.UnixSite(runner, str(short_path / "q")).start()
    url, size, parts = f"http://q/v1/tasks/{task.id}/result", 0, []
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(short_path / "q"))) as session:
        async with session.get(url) as answer:
            assert json.loads(await answer.read()) == {"text": content}
        tracemalloc.start()
        try:
            async with session.get(url, headers={"Accept": "text/plain"}) as answer:
                async for part in answer.content.iter_any():
                    size += len(part)
                    parts = [part[-1:]]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    await runner.cleanup()
    assert size > LARGE
    assert parts == [b"\n"]
    assert peak < 4 << 20

"""Results of tasks: from the vendor into a private file, from there to whoever asks, and never whole in memory."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator
from typing import BinaryIO
from urllib.parse import quote

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Task
from qtandem.core.wiretext import TEXT_SAFE
from qtandem.daemons.logs import log
from qtandem.daemons.taskfiles import TaskFiles
from qtandem.daemons.vendorcalls import Calls

PIECE = 1 << 16


class Results:
    """Those of one daemon."""

    def __init__(self, files: TaskFiles, calls: Calls) -> None:
        self._files, self._calls = files, calls

    async def fetch(self, task: Task) -> None:
        """Bring a result from its vendor into its file; raises the vendor's error, `internal` for the disk's."""
        receiving = await asyncio.to_thread(self._files.receive, task.id, task.uid)
        try:
            await self._calls.call(
                task.resource, "task_result", task.vendor_task, purpose="execute", uid=task.uid, sink=receiving
            )
            await asyncio.to_thread(receiving.keep)
        finally:
            receiving.drop()

    async def settle(self, task: Task) -> None:
        """Have a fetched result on disk for good. What the disk does not take the vendor still has."""
        try:
            await asyncio.to_thread(self._files.settle, task.id, task.uid)
        except QtandemError as error:
            log("tasks").warning("result not kept", task=task.id, why=error.one_line())

    async def open(self, task: Task) -> BinaryIO:
        """The result of a completed task, which is fetched where it is not here any more."""
        file = await asyncio.to_thread(self._files.result, task.id, task.uid)
        if file is None:
            await self.fetch(task)
            file = await asyncio.to_thread(self._files.result, task.id, task.uid)
            await self.settle(task)
        if file is None:
            raise QtandemError("internal", f"The result of {task.id} was removed while it was asked for")
        return file


async def as_answer(file: BinaryIO, *, text: bool) -> AsyncIterator[bytes]:
    """The bytes of `TextAnswer` with the text in the file, in JSON or in the text form, piece by piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    before, after = (b"text=", b"\n") if text else (b'{"text":"', b'"}')
    while raw := await asyncio.to_thread(file.read, PIECE):
        part = decoder.decode(raw)
        written = quote(part, safe=TEXT_SAFE, errors="surrogatepass") if text else json.dumps(part)[1:-1]
        yield before + written.encode()
        before = b""
    decoder.decode(b"", final=True)
    yield before + after

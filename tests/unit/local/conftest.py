import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qtandem.core.client.transport import Daemon
from qtandem.core.managers import SensorValue
from qtandem.core.settings import ManagerSettings
from qtandem.local.gate import Gate
from qtandem.local.manager import LocalManager
from qtandem.local.queue import LocalQueue
from qtandem.local.runner import Runner
from qtandem.local.store import Row, State
from tests.fakes.daemon import FakeDaemon


class Machine:
    """A queue, its manager as the daemon has it, a daemon that admits everything, and a runner on demand."""

    def __init__(self, folder: Path, daemon: FakeDaemon) -> None:
        self.folder, self.daemon = folder, daemon
        self.queue = LocalQueue(folder, daemon=Daemon(daemon.path))
        settings = ManagerSettings(options={"state_dir": str(folder)})
        self.manager = LocalManager(settings, {"fez": "fez", "ibm-x": "ibm_x"})
        self._runner: Runner | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self, limit: int = 8) -> None:
        self._runner = Runner(self.folder, Gate(Daemon(self.daemon.path), "local"), limit=limit)
        self._task = asyncio.create_task(self._runner.run())

    async def stop(self) -> None:
        if self._runner and self._task:
            self._runner.stop()
            await self._task
            self._runner = self._task = None

    async def open(self, native: str = "fez", total: int = 1, closed: int = 0) -> None:
        await self.manager.publish([SensorValue(native, total, closed)])

    async def submit(self, script: str, qpu: str = "fez", **options: object) -> int:
        return await asyncio.to_thread(self.queue.submit, [sys.executable, "-c", script], qpu, **options)

    async def until(self, job: int, met: Callable[[Row], bool]) -> Row:
        async with asyncio.timeout(20):
            while not met(row := self.queue.job(job)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return row

    async def ended(self, job: int) -> Row:
        return await self.until(job, lambda row: row.state.final)

    async def in_state(self, job: int, state: State) -> Row:
        return await self.until(job, lambda row: row.state is state)

    def events(self, job: int) -> list[str]:
        """The starts and ends of a job, as `start 0`, `end 0`, in the order in which the daemon heard them."""
        heard = [call for call in self.daemon.calls if call.path in ("/start", "/end")]
        return [f"{call.path[1:]} {call.body['attempt']}" for call in heard if call.body["job"] == str(job)]


@pytest.fixture
async def machine(tmp_path):
    def submit(call):
        return {"verdict": "admit", "request": call.body["request"], "native": {"qpus": call.body["request"]}}

    def start(call):
        return {"verdict": "admit", "run": f"local:local:{call.body['job']}.{call.body['attempt']}"}

    def environment(call):
        run = call.path.split("/")[2]
        return {"run": run, "uid": 0, "env": {"QTANDEM_RUN": run, "QRMI_JOB_QPU_RESOURCES": "fez"}}

    daemon = FakeDaemon(
        {
            "POST /submit": submit,
            "POST /start": start,
            "POST /end": {"ended": 1},
            "GET /runs/*/environment": environment,
        }
    ).start()
    machine = Machine(tmp_path, daemon)
    yield machine
    await machine.stop()
    daemon.close()

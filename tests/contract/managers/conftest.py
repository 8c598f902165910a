"""What the contract suite needs of each manager: to submit, run, requeue and end jobs behind its back."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from qtandem.core.managers import Grant, Job, JobState, Manager
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.gridengine.manager import GridEngineManager
from qtandem.local.manager import LocalManager
from qtandem.local.store import QueueStore, State
from qtandem.lsf.manager import LsfManager
from qtandem.pbs.manager import PbsManager
from qtandem.slurm.manager import SlurmManager
from tests.fakes.gridengine.cell import FakeCell
from tests.fakes.lsf.cluster import FakeLsf
from tests.fakes.manager import FakeManager
from tests.fakes.pbs.complex import FakePbsComplex
from tests.fakes.pbs.driven import driven
from tests.fakes.slurm.cluster import FakeSlurm

NATIVES = {"fez": "fez", "ibm-x": "ibm_x"}


@dataclass
class Rig:
    """One manager under test. Jobs are made with its own native text, as its submit hook writes it.

    `foreign` is native text that is not ours. `cut` makes the manager not answer; None where that cannot be.
    `commands` counts the external commands so far; None where there are none.
    """

    manager: Manager
    submit: Callable[[str], Awaitable[JobId]]
    run: Callable[[JobId], Awaitable[None]]
    requeue: Callable[[JobId], Awaitable[None]]
    end: Callable[[JobId], Awaitable[None]]
    foreign: str
    cut: Callable[[], None] | None = None
    commands: Callable[[], int] | None = None

    def native(self, *grants: Grant) -> str:
        [text] = self.manager.native_request(grants).values()
        return text

    async def job(self, id: JobId) -> Job:
        found = (await self.manager.jobs([id]))[id]
        assert found is not None
        return found


def memory(_folder: Path) -> Rig:
    """The fake that other tests use has to keep the contract as well."""
    manager = FakeManager(natives=NATIVES)
    numbers = iter(range(1, 1000))

    async def submit(native: str) -> JobId:
        return manager.add(str(next(numbers)), grants=manager.read_native(native), reason="Licenses").id

    async def requeue(id: JobId) -> None:
        manager.become(id, JobState.PENDING, attempt=manager.known[id].attempt + 1)

    async def become(id: JobId, state: JobState) -> None:
        manager.become(id, state)

    def cut() -> None:
        manager.unreachable = True

    return Rig(
        manager,
        submit,
        lambda id: become(id, JobState.RUNNING),
        requeue,
        lambda id: become(id, JobState.ENDED),
        "matlab:3",
        cut,
    )


def local(folder: Path) -> Rig:
    manager = LocalManager(ManagerSettings(options={"state_dir": str(folder)}), NATIVES)
    store = QueueStore(folder)

    async def submit(native: str) -> JobId:
        job = {
            "name": "job", "uid": os.geteuid(), "user": "ann", "argv": ["true"], "env": {}, "cwd": "/", "output": "",
            "request": "", "native": native, "can_requeue": True, "state": State.PENDING, "submitted_at": 0.0,
        }  # fmt: skip
        return JobId("local", "local", str(store.add(job)))

    async def update(id: JobId, **values: object) -> None:
        store.update(int(id.job), **values)

    async def requeue(id: JobId) -> None:
        row = store.get(int(id.job))
        assert row is not None
        await update(id, state=State.PENDING, attempt=row.attempt + 1)

    return Rig(
        manager,
        submit,
        lambda id: update(id, state=State.RUNNING),
        requeue,
        lambda id: update(id, state=State.COMPLETED),
        "matlab:3",
    )


def slurm(folder: Path) -> Rig:
    fake = FakeSlurm(folder / "slurm")
    numbers = iter(range(1, 1000))

    async def submit(native: str) -> JobId:
        number = next(numbers)
        fake.submit(number, native)
        return JobId("slurm", "lab", str(number))

    async def run(id: JobId) -> None:
        fake.become(int(id.job), "RUNNING")

    async def requeue(id: JobId) -> None:
        fake.become(int(id.job), "PENDING", restart_cnt=fake.job(int(id.job))["restart_cnt"] + 1)

    async def end(id: JobId) -> None:
        fake.become(int(id.job), "COMPLETED")

    settings = ManagerSettings(cluster="lab", bin_dir=str(fake.bin))
    return Rig(
        SlurmManager(settings, NATIVES),
        submit,
        run,
        requeue,
        end,
        "matlab@flex:3,ansys:1",
        lambda: fake.down("slurmctld", "slurmdbd"),
        lambda: len(fake.calls),
    )


def pbs(folder: Path) -> Rig:
    """By PBS's commands."""
    fake = FakePbsComplex(folder / "pbs")
    numbers = iter(range(1, 1000))

    async def submit(native: str) -> JobId:
        number = str(next(numbers))
        fake.submit(number, native)
        return JobId("pbs", "lab", number)

    async def run(id: JobId) -> None:
        fake.run(id.job)

    async def requeue(id: JobId) -> None:
        fake.become(id.job, job_state="Q")

    async def end(id: JobId) -> None:
        fake.become(id.job, job_state="F")

    return Rig(
        PbsManager(ManagerSettings(cluster="lab", bin_dir=str(fake.bin)), NATIVES),
        submit,
        run,
        requeue,
        end,
        "matlab=3,ncpus=2",
        fake.down,
        lambda: len(fake.calls),
    )


def pbs_library(_folder: Path) -> Rig:
    """By libpbs: the bindings, on a stand-in for it."""
    port = driven()

    async def submit(native: str) -> JobId:
        pairs = [part.partition("=") for part in native.split(",") if part]
        made = await port.call("submit", attributes=[["Resource_List", name, value] for name, _, value in pairs])
        return JobId("pbs", "lab", made.partition(".")[0])

    def cut() -> None:
        # As with a server that went away: what is there cannot be asked any more.
        port._arguments = ("library", "/nonexistent/libpbs.so.0")
        if port._child is not None:
            port._child.kill()

    manager = PbsManager(ManagerSettings(cluster="lab"), NATIVES, port=port)
    return Rig(
        manager,
        submit,
        lambda id: port.call("run", id=id.job),
        lambda id: port.call("rerun", id=id.job),
        lambda id: port.call("delete", id=id.job),
        "matlab=3,ncpus=2",
        cut,
        lambda: port.calls,
    )


def gridengine(folder: Path) -> Rig:
    cell = FakeCell(folder)
    options = {"state": str(folder / "holds.json")}
    manager = GridEngineManager(ManagerSettings(cluster="lab", bin_dir=str(cell.bin_dir), options=options), NATIVES)

    async def submit(native: str) -> JobId:
        return JobId("gridengine", "lab", cell.submit(native))

    async def become(id: JobId, word: str) -> None:
        cell.become(id.job, word)

    return Rig(
        manager,
        submit,
        lambda id: become(id, "r"),
        lambda id: become(id, "Rq"),
        lambda id: become(id, ""),
        "matlab=3",
        cell.cut,
    )


def lsf(folder: Path, form: str = "json") -> Rig:
    """As Spectrum LSF 10.1 is documented, or by the texts of older forms."""
    fake = FakeLsf(folder / "lsf", form)

    async def submit(native: str) -> JobId:
        return JobId("lsf", "lab", fake.submit(native))

    async def become(id: JobId, stat: str) -> None:
        fake.become(id.job, stat)

    return Rig(
        LsfManager(fake.settings(), NATIVES),
        submit,
        lambda id: become(id, "RUN"),
        lambda id: become(id, "PEND"),
        lambda id: become(id, ""),
        "mem=3",
        fake.cut,
        lambda: len(fake.read()["log"]),
    )


RIGS: dict[str, Callable[[Path], Rig]] = {
    "memory": memory,
    "local": local,
    "slurm": slurm,
    "gridengine": gridengine,
    "lsf": lsf,
    "lsf by texts": lambda folder: lsf(folder, "text"),
    "pbs": pbs,
    "pbs by libpbs": pbs_library,
}


@pytest.fixture(params=sorted(RIGS))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return RIGS[request.param](tmp_path)


@pytest.fixture
def several() -> Sequence[Grant]:
    return Grant("fez", 2), Grant("ibm-x", 1)

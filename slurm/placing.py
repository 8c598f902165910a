"""What Slurm does of a plan: it shows the cluster, tests submissions, pins, keeps off, and orders pending jobs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

from qtandem.core.commands import CommandError
from qtandem.core.errors import QtandemError
from qtandem.core.inventory import Inventory, Placed, Shape, Trial
from qtandem.core.manager_commands import ManagerCommands
from qtandem.core.runs import JobId
from qtandem.slurm import inventory, jobs
from qtandem.slurm.inventory import Site
from qtandem.slurm.jobs import Record

STATES = "PENDING,CONFIGURING,RUNNING,COMPLETING,SUSPENDED,STOPPED"
TRIALS_AT_ONCE = 4
_STARTS = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
# A submission is tested under our own user; what that user may not do says nothing of the job's owner.
_CANNOT_RUN = ("Requested node configuration is not available", "Requested nodes are busy", "Invalid node name")


class Placing:
    """Meets `core.inventory.Placer` for a class that has Slurm's commands and can read records."""

    cluster: str
    _client: ManagerCommands
    _server: str
    _names: Mapping[str, str]
    _site: Site | None = None
    _memory: bool | None = None

    async def _records(self, *selection: str) -> list[Record]:
        raise NotImplementedError

    async def inventory(self, now: float, pins: Mapping[str, Sequence[str]]) -> Inventory:
        texts = await asyncio.gather(
            self._text("nodes"), self._text("partitions"), self._text("reservations"),
            self._client.run("squeue", "--json", "-t", STATES),
        )  # fmt: skip
        memory = await self._counts_memory()
        # Of a large site this is tens of megabytes: it must not hold up the calls of hooks.
        self._site, found = await asyncio.to_thread(self._understood, *texts[:3], texts[3].stdout, now, memory, pins)
        return found

    def _understood(
        self,
        nodes: str,
        partitions: str,
        reservations: str,
        queue: str,
        now: float,
        memory: bool,
        pins: Mapping[str, Sequence[str]],
    ) -> tuple[Site, Inventory]:
        all_nodes, records = jobs.records(nodes, "nodes"), jobs.records(queue)
        place = inventory.site(
            all_nodes, jobs.records(partitions, "partitions"), jobs.records(reservations, "reservations")
        )
        own = inventory.Own(self.cluster, self._server, self._names, pins)
        waiting, masks = inventory.waiting(records, place, own, now)
        return place, Inventory(now, inventory.hosts(all_nodes, inventory.running(records)), waiting, masks, memory)

    def permitted(self, shape: Shape, now: float) -> frozenset[str] | None:
        return None if self._site is None else self._site.permitted(shape, now)

    def gpus(self, text: str) -> tuple[int, str]:
        return inventory.gpus(text)

    async def trials(self, wanted: Mapping[JobId, Sequence[str]]) -> dict[JobId, Trial]:
        if not wanted:
            return {}
        found = await self._records("-t", "PD", "-j", ",".join(jobs.target(job) for job in wanted))
        shapes = {jobs.job_id(record, self.cluster): inventory.shape(record) for record in found}
        turns = asyncio.Semaphore(TRIALS_AT_ONCE)

        async def trial(job: JobId, nodes: Sequence[str]) -> Trial:
            async with turns:
                return await self._trial(shapes[job], nodes) if job in shapes else Trial("it waits no longer")

        answers = await asyncio.gather(*(trial(job, nodes) for job, nodes in wanted.items()))
        return dict(zip(wanted, answers, strict=True))

    async def place(self, job: JobId, nodes: Sequence[str]) -> None:
        await self._update(job, f"reqnodelist={inventory.fold(nodes)}")

    async def bar(self, job: JobId, nodes: Sequence[str]) -> None:
        await self._update(job, f"excnodelist={inventory.fold(nodes)}")

    async def reorder(self, job: JobId, nice: int) -> None:
        await self._update(job, f"nice={nice}")

    def native_placement(self, placed: Placed, shape: Shape) -> tuple[dict[str, str], str]:
        nodes = inventory.fold(placed.nodes)
        note = f"{placed.policy}:{nodes}"
        if placed.policy == "pin":
            return {"req_nodes": nodes}, note
        if placed.policy == "exclude":
            return {"exc_nodes": inventory.fold({*placed.nodes, *shape.excluded})}, note
        return {}, note

    async def _trial(self, shape: Shape, nodes: Sequence[str]) -> Trial:
        try:
            done = await self._client.run("sbatch", *trial_arguments(shape, nodes))
        except CommandError as error:
            if error.exit is None:
                raise
            return read_refusal(error.stderr or error.stdout)
        return read_trial(done.stderr + done.stdout)

    async def _update(self, job: JobId, change: str) -> None:
        await self._client.run("scontrol", "update", f"jobid={jobs.target(job)}", change)

    async def _text(self, kind: str) -> str:
        return (await self._client.run("scontrol", "show", kind, "--json")).stdout

    async def _counts_memory(self) -> bool:
        """Whether select/cons_tres counts memory, from SelectTypeParameters; asked once, since it needs a restart."""
        if self._memory is None:
            text = (await self._client.run("scontrol", "show", "config")).stdout
            match = re.search(r"^SelectTypeParameters\s*=\s*(\S+)", text, re.MULTILINE)
            if match is None:
                raise QtandemError("manager-unreachable", "Slurm's configuration shows no SelectTypeParameters")
            self._memory = "MEMORY" in match[1].upper()
        return self._memory


def trial_arguments(shape: Shape, nodes: Sequence[str]) -> list[str]:
    """What sbatch takes to test such a job on these nodes. Account and QOS are the owner's: ours would be refused."""
    arguments = [
        "--test-only", f"--nodes={shape.nodes}", f"--ntasks={shape.nodes}", f"--cpus-per-task={shape.cpus}",
        f"--nodelist={inventory.fold(nodes)}",
    ]  # fmt: skip
    optional = {
        "--partition": ",".join(shape.partitions),
        "--mem": f"{shape.memory_mb}M" if shape.memory_mb else "",
        "--gres": ":".join(filter(None, ("gpu", shape.gpu_type, str(shape.gpus)))) if shape.gpus else "",
        "--constraint": shape.features,
        "--reservation": shape.reservation,
        "--time": str(-(-shape.time_limit_s // 60)) if shape.time_limit_s else "",
    }
    arguments += [f"{option}={value}" for option, value in optional.items() if value]
    return [*arguments, *(["--exclusive"] if shape.exclusive else []), "--wrap=true"]


def read_trial(text: str) -> Trial:
    """The start that sbatch promises, in the local time of its host."""
    match = _STARTS.search(text)
    return Trial(starts_at=time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) if match else None)


def read_refusal(text: str) -> Trial:
    """A refusal for the nodes' sake; any other says nothing of the job."""
    words = " ".join(text.split()).rpartition("allocation failure: ")[2]
    return Trial(refused=words) if any(known in words for known in _CANNOT_RUN) else Trial()

"""Slurm as the daemon sees it: sensors are licences with a dynamic count, jobs come from squeue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from qtandem.core.commands import CommandError
from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities, Published, SensorValue
from qtandem.core.processes import Start, start_child
from qtandem.core.runs import JobId, valid_cluster
from qtandem.slurm import jobs, licences
from qtandem.slurm.commands import Client, SlurmSettings
from qtandem.slurm.jobs import Record
from qtandem.slurm.licences import Licence
from qtandem.slurm.placing import Placing

# Writing a partly closed sensor races with jobs that start meanwhile; each round starts from what was read.
ROUNDS = 3
# slurmdbd pushes a value to slurmctld after it has answered sacctmgr.
PUSH_READS, PUSH_PAUSE_S = 5, 0.02
KICKS_A_NATIVE, KICKS = 2, 16
IDS_A_CALL = 500


class SlurmManager(Placing):
    """Meets `core.managers.Manager`. `natives` maps configured resource names to licence names."""

    name = "slurm"
    launchable = True
    capabilities = ManagerCapabilities(
        limits={"requeue": "only batch jobs; an interactive job whose start is refused is cancelled by Slurm"}
    )

    def __init__(self, settings: SlurmSettings, natives: Mapping[str, str], *, start: Start = start_child) -> None:
        if not valid_cluster(settings.cluster):
            message = f"managers.slurm.cluster is {settings.cluster!r}, which is no cluster name"
            raise QtandemError("bad-config", message, remedy="Set it to the ClusterName of slurm.conf.")
        self.cluster = settings.cluster
        self._server = settings.server
        self._natives = dict(natives)
        self._names = {native: name for name, native in natives.items()}
        self._client = Client(settings, start)
        self._writing = asyncio.Lock()

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        pairs = [(self._natives[grant.resource], grant.slots) for grant in grants]
        return {"licenses": licences.request(pairs, self._server)}

    def read_native(self, text: str) -> tuple[Grant, ...]:
        return licences.read_request(text, self._server, self._names)

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        """One read, one sacctmgr call for each distinct value, one read; nothing is written that holds already."""
        async with self._writing:
            return await self._publish(values)

    async def _publish(self, values: Sequence[SensorValue]) -> Published:
        shown, refused = await self._show(), dict[str, str]()
        for _ in range(ROUNDS):
            wrong = [value for value in values if not _holds(value, shown)]
            if not wrong or refused:
                break
            refused = await self._write(wrong, shown)
            shown = await self._read_back(wrong)
        confirmed = frozenset(value.native for value in values if _holds(value, shown))
        failed = {
            value.native: refused.get(value.native) or licences.show(value, shown.get(value.native))
            for value in values
            if value.native not in confirmed
        }
        return Published(confirmed, failed)

    async def _show(self) -> dict[str, Licence]:
        return licences.read_show((await self._client.run("scontrol", "-o", "show", "lic")).stdout, self._server)

    async def _read_back(self, values: Sequence[SensorValue]) -> dict[str, Licence]:
        shown = await self._show()
        for _ in range(PUSH_READS - 1):
            if all(_holds(value, shown) for value in values):
                break
            await asyncio.sleep(PUSH_PAUSE_S)
            shown = await self._show()
        return shown

    async def _write(self, values: Sequence[SensorValue], shown: Mapping[str, Licence]) -> dict[str, str]:
        """Write the values; returns the natives that sacctmgr refused, with its words."""
        refused: dict[str, str] = {}
        for names, arguments in _updates(values, shown, self._server, self.cluster):
            try:
                await self._client.run("sacctmgr", *arguments)
            except QtandemError as error:
                refused.update(dict.fromkeys(names, _refusal(error)))
        return refused

    async def sensors(self) -> dict[str, int]:
        ours = set(self._natives.values())
        return {native: licence.open for native, licence in (await self._show()).items() if native in ours}

    async def kick(self, natives: Iterable[str]) -> None:
        """Write the present comment of a few waiting jobs back, which asks slurmctld to schedule.

        It keeps the request until `batch_sched_delay` has passed since it last scheduled, so one kick is enough;
        every other update that it takes waits for the same pause.
        """
        wanted = sorted(set(natives))
        if not wanted:
            return
        listed = await self._client.run("squeue", "-h", "-t", "PD", "-L", self._filter(wanted), "-o", "%i|%r|%Q|%W")
        waiting = jobs.waiting(listed.stdout, self._server)
        chosen = {identity for native in wanted for identity in waiting.get(native, [])[:KICKS_A_NATIVE]}
        if not chosen:
            return
        found = await self._records("-t", "PD", "-j", ",".join(sorted(chosen)[:KICKS]))
        ready = [record for record in found if record.get("state_reason") in jobs.WAITING]
        await asyncio.gather(*(self._touch(record) for record in ready[:KICKS]))

    async def _touch(self, record: Record) -> None:
        comment = str(record.get("comment") or "")
        try:
            await self._client.run("scontrol", "update", f"jobid={jobs.exactly(record)}", f"comment={comment}")
        except CommandError:
            # It started or went away since it was listed; then it needs no kick.
            return

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        ours = [job for job in dict.fromkeys(ids) if job.manager == self.name and job.cluster == self.cluster]
        out: dict[JobId, Job | None] = dict.fromkeys(ids)
        for first in range(0, len(ours), IDS_A_CALL):
            chunk = ours[first : first + IDS_A_CALL]
            asked = sorted({jobs.target(job) for job in chunk} | {job.job for job in chunk})
            found = await self._records("-t", "all", "-j", ",".join(asked))
            pairs = [(record, self._job(record)) for record in found]
            out.update(jobs.lookup(chunk, pairs))
        return out

    async def pending(self) -> list[Job]:
        if not self._natives:
            return []
        found = await self._records("-t", "PD", "-L", self._filter(self._natives.values()))
        listed = [job for record in found for job in jobs.elements(record, self._job(record))]
        return [job for job in listed if job.grants and job.state is JobState.PENDING]

    async def hold(self, job: JobId, comment: str) -> None:
        """Hold so that the owner can release it; what the owner wrote into the comment stays before ours."""
        known = (await self.jobs([job]))[job]
        if known is None or known.state is JobState.ENDED:
            return
        pending = known.state is JobState.PENDING
        await self._client.run("scontrol", "uhold" if pending else "requeuehold", jobs.target(job))
        text = jobs.comment_with(known.comment, comment)
        await self._client.run("scontrol", "update", f"jobid={jobs.target(job)}", f"comment={text}")

    async def delay(self, job: JobId, seconds: float) -> None:
        when = f"now+{max(1, round(seconds))}" if seconds > 0 else "now"
        await self._client.run("scontrol", "update", f"jobid={jobs.target(job)}", f"starttime={when}")

    async def move(self, job: JobId, grants: Sequence[Grant]) -> None:
        """The submit hook refuses it once the job has started, so a run never loses what it leased."""
        [ours] = self.native_request(grants).values()
        for record in await self._records("-t", "PD", "-j", jobs.target(job)):
            others = licences.others(str(record.get("licenses") or ""), self._server, self._names)
            text = ",".join([*others, ours])
            moved = jobs.exactly(record) if job.index is None else jobs.target(job)
            await self._client.run("scontrol", "update", f"jobid={moved}", f"licenses={text}")

    def _job(self, record: Record) -> Job:
        return jobs.job(record, self.cluster, self._server, self._names)

    def _filter(self, natives: Iterable[str]) -> str:
        return ",".join(f"{native}@{self._server}" for native in natives)

    async def _records(self, *selection: str) -> list[Record]:
        try:
            return jobs.records((await self._client.run("squeue", "--json", *selection)).stdout)
        except CommandError as error:
            if "Invalid job id" in error.stderr + error.stdout:
                return []
            raise


def _refusal(error: QtandemError) -> str:
    """sacctmgr's refusal for an admin. Slurm lets an operator set licences, and only an administrator make them."""
    if "denied" in (error.cause or ""):
        return f"{error.message} ({error.cause}). On the controller, as root: qtandem install slurm --apply"
    return error.one_line()


def _holds(value: SensorValue, shown: Mapping[str, Licence]) -> bool:
    licence = shown.get(value.native)
    return licence is not None and licences.holds(value, licence)


def _updates(
    values: Sequence[SensorValue], shown: Mapping[str, Licence], server: str, cluster: str
) -> list[tuple[list[str], list[str]]]:
    """The sacctmgr calls for the values: (natives, arguments) each, one for each distinct change."""
    missing: dict[tuple[int, int], list[str]] = {}
    resized: dict[tuple[int, int], list[str]] = {}
    changed: dict[int, list[str]] = {}
    for value in sorted(values, key=lambda value: value.native):
        licence = shown.get(value.native)
        consumed = licences.consumed(value, licence.used if licence else 0)
        if licence is None:
            missing.setdefault((value.total, consumed), []).append(value.native)
        elif licence.total != value.total:
            resized.setdefault((value.total, consumed), []).append(value.native)
        else:
            changed.setdefault(consumed, []).append(value.native)
    return [
        *((names, licences.add(names, *key, server, cluster)) for key, names in missing.items()),
        *((names, licences.resize(names, *key, server)) for key, names in resized.items()),
        *((names, licences.set_consumed(names, key, server)) for key, names in changed.items()),
    ]

"""Grid Engine as the daemon sees it: a QPU's sensor is the capacity of a JOB consumable on the global host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from qtandem.core.commands import CommandError
from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities, Published, SensorValue
from qtandem.core.processes import Start, start_child
from qtandem.core.runs import JobId, valid_cluster
from qtandem.gridengine import complexes, define, holds, records
from qtandem.gridengine.client import Client, GridEngineSettings
from qtandem.gridengine.holds import Holds
from qtandem.gridengine.records import Record, Row

IDS_A_CALL = 200
KEPT = 10_000
# The context of a job that runs with a QPU.
LEASE = "qtandem_lease"
STATE = Path("/var/lib/qtandem/gridengine.json")


class GridEngineManager:
    """Meets `core.managers.Manager`. `natives` maps configured resource names to native names.

    Grid Engine does the arithmetic: what its own jobs use is taken from the capacity that is set here, and the
    load sensors of the hosts can only lower what is left.
    """

    name = "gridengine"
    launchable = True
    capabilities = ManagerCapabilities(
        attempts=False,
        hooks_on_nodes=True,
        spelling="-l qpu={}",
        limits={
            "attempts": "Grid Engine does not count a job's restarts; the daemon does",
            "requeue": "not interactive jobs: one whose start is refused is ended by Grid Engine",
        },
    )

    def __init__(
        self,
        settings: GridEngineSettings,
        natives: Mapping[str, str],
        *,
        start: Start = start_child,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not valid_cluster(settings.cluster):
            message = f"managers.gridengine.cluster is {settings.cluster!r}, which is no cluster name"
            raise QtandemError("bad-config", message, remedy="Give the cell a name of letters, digits, - and _.")
        self.cluster = settings.cluster
        self._natives = dict(natives)
        self._names = {native: name for name, native in natives.items()}
        self._client = Client(settings, start)
        self._holds = Holds(self._client, Path(settings.options.get("state") or STATE), clock)
        self._bin_dir, self._launched = settings.bin_dir, start is not start_child
        self._writing = asyncio.Lock()
        self._shown: dict[str, int] = {}
        self._kicked: set[str] = set()
        self._owners: dict[str, str] = {}

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        return {"l": complexes.request((self._natives[grant.resource], grant.slots) for grant in grants)}

    def read_native(self, text: str) -> tuple[Grant, ...]:
        return complexes.read_request(text, self._names)

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        """One write of what differs, one read. What is known to differ is written without a look before.

        Where a capacity rises the scheduler is asked to run while the values are read back.
        """
        async with self._writing:
            shown, refused = self._shown, ""
            wrong = _differing(values, shown)
            if not wrong:
                shown = await self._capacities()
                wrong = _differing(values, shown)
            if wrong:
                try:
                    await self._set(wrong)
                except CommandError as error:
                    refused = error.one_line()
                raised = {native for native, value in wrong.items() if value > shown.get(native, 0)}
                shown, _ = await asyncio.gather(self._capacities(), self._kick_early(raised))
        confirmed = frozenset(value.native for value in values if shown.get(value.native) == value.open)
        failed = {
            value.native: refused or f"{complexes.name(value.native)} is {shown.get(value.native, 'not set')}"
            for value in values
            if value.native not in confirmed
        }
        return Published(confirmed, failed)

    async def _set(self, capacities: Mapping[str, int]) -> None:
        """Set capacities on the global host; a complex that is missing is defined first."""
        text = complexes.request(sorted(capacities.items()))
        argv = ("qconf", "-mattr", "exechost", "complex_values", text, "global")
        try:
            await self._client.run(*argv)
        except CommandError as error:
            if "complex attribute" not in f"{error.stderr} {error.stdout}":
                raise
            await self._define(capacities)
            await self._client.run(*argv)

    async def _kick_early(self, natives: set[str]) -> None:
        if not natives:
            return
        try:
            await self._client.run("qconf", "-tsm")
            self._kicked = natives
        except QtandemError:
            # The kick that follows a publication tells of it.
            return

    async def _capacities(self) -> dict[str, int]:
        said = complexes.attributes((await self._client.run("qconf", "-se", "global")).stdout)
        pairs = complexes.pairs(said.get("complex_values", ""))
        found = {key.removeprefix(complexes.PREFIX): complexes.whole(value) for key, value in pairs.items()}
        self._shown = {native: value for native, value in found.items() if value is not None}
        return self._shown

    async def _define(self, natives: Iterable[str]) -> None:
        """As a process of the launcher where there is one: with `qconf -Mc` any complex could be changed."""
        if self._launched:
            await self._client.run(define.PROGRAM, *define.arguments(self._bin_dir, natives))
        else:
            await asyncio.to_thread(define.add, self._client, natives)

    async def sensors(self) -> dict[str, int]:
        if not self._natives:
            return {}
        names = {complexes.name(native): native for native in self._natives.values()}
        text = (await self._client.run("qhost", "-F", ",".join(sorted(names)), "-xml")).stdout
        out: dict[str, int] = {}
        for value in records.parsed(text).iterfind("host[@name='global']/resourcevalue"):
            native = names.get(value.get("name", ""))
            number = complexes.whole(value.text or "")
            if native is not None and number is not None:
                out[native] = max(0, number)
        return out

    async def kick(self, natives: Iterable[str]) -> None:
        """Have the scheduler run now: its monitoring of the next run is the one thing that starts one."""
        wanted, kicked, self._kicked = set(natives), self._kicked, set()
        if not wanted <= kicked:
            await self._client.run("qconf", "-tsm")

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        ours = [job for job in dict.fromkeys(ids) if job.manager == self.name and job.cluster == self.cluster]
        out: dict[JobId, Job | None] = dict.fromkeys(ids)
        numbers = [number for number in dict.fromkeys(job.job for job in ours) if number.isdigit()]
        # Most owners are known from the look at pending jobs; then both questions are asked at once.
        guessed = sorted({self._owners[number] for number in numbers if number in self._owners})
        found, rows = await asyncio.gather(self._records(numbers), self._rows(guessed))
        owners = {record.owner for record in found.values() if record.array or any(record.tasks.values())}
        if not owners <= set(guessed):
            rows = await self._rows(sorted(owners))
        for job in ours:
            record = found.get(job.job)
            if record is not None:
                out[job] = self._job(job, record, [row for row in rows if row.job == job.job])
        return out

    async def _records(self, numbers: Sequence[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        for first in range(0, len(numbers), IDS_A_CALL):
            chunk = ",".join(numbers[first : first + IDS_A_CALL])
            found |= records.records((await self._client.run("qstat", "-j", chunk, "-xml")).stdout)
        if len(self._owners) > KEPT:
            self._owners.clear()
        self._owners |= {number: record.owner for number, record in found.items()}
        return found

    async def _rows(self, owners: Sequence[str]) -> list[Row]:
        """Lines of the owners' jobs: hosts, suspension, and which tasks of an array are left."""
        if not owners:
            return []
        listed = await self._client.run("qstat", "-u", ",".join(owners), "-s", "prs", "-g", "t", "-xml")
        return records.rows(listed.stdout)

    def _job(self, job: JobId, record: Record, rows: Sequence[Row]) -> Job | None:
        if job.index is not None and not (record.array and record.has(job.index)):
            return None
        wanted = {job.index or 0} if record.array and job.index is not None else None
        mine = [row for row in rows if wanted is None or row.tasks & wanted]
        begun = any(status for task, status in record.tasks.items() if job.index is None or task == job.index)
        state = records.state_of(row.state for row in mine)
        if not begun and not record.array:
            state = JobState.PENDING
        if state is JobState.ENDED and begun:
            # It went between the two questions.
            return None
        if state is JobState.ENDED and record.array:
            return None
        started = [row for row in mine if row.host and "q" not in row.state]
        pause = self._holds.of(job)
        return Job(
            id=job,
            state=state,
            uid=record.uid,
            user=record.owner,
            account=record.project or None,
            partition=started[0].queue if started else None,
            nodes=tuple(dict.fromkeys(row.host for row in started)),
            time_limit_s=records.h_rt(record.requests),
            can_requeue=not record.interactive,
            reason=self._reason(record) if state is JobState.PENDING else "",
            comment=pause.comment if pause else record.context.get(holds.COMMENT, ""),
            grants=complexes.read_request(",".join(f"{k}={v}" for k, v in record.requests.items()), self._names),
            eligible_at=(pause.until if pause else 0.0) or record.eligible_at or None,
            whole=record.array and job.index is None,
        )

    def _reason(self, record: Record) -> str:
        """Grid Engine's own words (with schedd_job_info), those about a QPU first."""
        told = sorted(record.messages, key=lambda message: f":{complexes.PREFIX}" not in message)
        return told[0] if told else ""

    async def pending(self) -> list[Job]:
        """Also lets go those whose back-off is over, which a restart of the daemon could have forgotten."""
        if not self._natives:
            return []
        listed = (await self._client.run("qstat", "-u", "*", "-s", "p", "-r", "-xml")).stdout
        numbers = records.asking(listed, map(complexes.name, self._natives.values()))
        if not numbers:
            await self._holds.renew(())
            return []
        found = await self._records(numbers)
        rows = records.rows(listed)
        ids = [JobId(self.name, self.cluster, number) for number in found]
        await self._holds.renew(ids)
        seen = [self._job(job, found[job.job], [row for row in rows if row.job == job.job]) for job in ids]
        return [job for job in seen if job is not None and job.grants and job.state is JobState.PENDING]

    async def running(self) -> list[Job]:
        if not self._natives:
            return []
        listed = (await self._client.run("qstat", "-u", "*", "-s", "rs", "-r", "-xml")).stdout
        asking = set(records.asking(listed, map(complexes.name, self._natives.values())))
        found = [(row, task) for row in records.rows(listed) if row.job in asking for task in row.tasks]
        ids = [JobId(self.name, self.cluster, row.job, task or None) for row, task in found]
        seen = (await self.jobs(ids)).values() if ids else ()
        return [job for job in seen if job is not None and job.grants and job.state is JobState.RUNNING]

    async def hold(self, job: JobId, comment: str) -> None:
        """An operator's hold, which its owner cannot lift; the comment goes into the job's context too."""
        found = (await self.jobs([job]))[job]
        if found is None:
            return
        await self._holds.keep(job, comment)
        if found.state is not JobState.PENDING:
            await self._client.run("qmod", "-rj", holds.target(job))

    async def delay(self, job: JobId, seconds: float) -> None:
        """A manager's hold for so long."""
        await self._holds.delay(job, seconds)

    async def mark(self, job: JobId, leases: Sequence[str]) -> None:
        """The leases of a run in the context of its job. Elements of an array share that of their job: theirs is not
        there."""
        if job.index is None:
            await self._client.run("qalter", "-ac", holds.context(**{LEASE: "+".join(leases)}), job.job)


def _differing(values: Sequence[SensorValue], shown: Mapping[str, int]) -> dict[str, int]:
    return {value.native: value.open for value in values if shown.get(value.native) != value.open}

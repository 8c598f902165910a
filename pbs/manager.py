"""PBS as the daemon sees it: a QPU's sensor is a counted resource of the server, and PBS counts its own jobs."""

from __future__ import annotations

import asyncio
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities, ManagerSection, Published, SensorValue
from qtandem.core.processes import Start
from qtandem.core.runs import JobId, valid_cluster
from qtandem.pbs import records
from qtandem.pbs.apart import Apart
from qtandem.pbs.child import COMMANDS, LIBRARY
from qtandem.pbs.clients import Client, Clients
from qtandem.pbs.port import Port
from qtandem.pbs.records import Record

KEPT_UIDS_S = 600.0
# Two times of a job that are as good as one: seconds are whole in PBS, and hosts' clocks differ.
SAME_S = 3.0


class PbsSettings(ManagerSection, Protocol):
    """What this manager needs of its section in the configuration.

    `options`: `exec` is PBS_EXEC where it is not /opt/pbs, `conf` the path of pbs.conf, `access` `commands` where
    libpbs shall not be used, `sensor` `script` where the scheduler asks by server_dyn_res scripts.
    """


def bin_dir(settings: PbsSettings) -> str:
    """Where the commands are; empty: in PATH."""
    prefix = settings.options.get("exec", "")
    return settings.bin_dir or (f"{prefix}/bin" if prefix else "")


def client(settings: PbsSettings) -> Client:
    return Client(bin_dir(settings), settings.options.get("conf", ""))


def way(settings: PbsSettings) -> tuple[str, str]:
    """How PBS is spoken to, as `child.py` takes it: libpbs where it is and nobody chose the commands."""
    if settings.options.get("access") != "commands" and not settings.bin_dir:
        # The bindings are of no use where there is no PBS, and a broken cffi must not stop the commands.
        try:
            from qtandem.pbs import ifl

            path = ifl.find(settings.options.get("exec", ""))
        except ImportError:
            path = None
        if path is not None:
            return LIBRARY, str(path)
    return COMMANDS, bin_dir(settings)


def access(settings: PbsSettings, launch: Start | None = None) -> Port:
    """libpbs in a process apart, or the commands; with a launcher both in its process apart."""
    how, place = way(settings)
    if how == COMMANDS and launch is None:
        return Clients(client(settings))
    return Apart(how, place, settings.options.get("conf", ""), launch=launch)


class PbsManager:
    """Meets `core.managers.Manager`. `natives` maps configured resource names to native names.

    With `start`, the launcher starts the process that speaks to PBS, under a user of its own.
    """

    name = "pbs"
    launchable = True
    capabilities = ManagerCapabilities(
        hooks_on_nodes=True,
        spelling="-l qpu={}",
        limits={"requeue": "not interactive jobs, nor those with -r n: PBS ends one whose start is refused"},
    )

    def __init__(
        self,
        settings: PbsSettings,
        natives: Mapping[str, str],
        *,
        port: Port | None = None,
        start: Start | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not valid_cluster(settings.cluster):
            message = f"managers.pbs.cluster is {settings.cluster!r}, which is no cluster name"
            raise QtandemError("bad-config", message, remedy="Give the PBS complex a name of letters, digits, - and _.")
        self.cluster = settings.cluster
        self._natives = dict(natives)
        self._names = {native: name for name, native in natives.items()}
        self._port = port or access(settings, start)
        self._by_script = settings.options.get("sensor") == "script"
        self._shown: dict[str, int] = {}
        self._clock = clock
        self._uids: dict[str, tuple[float, int]] = {}
        self._writing = asyncio.Lock()

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        return {"l": records.request((self._natives[grant.resource], grant.slots) for grant in grants)}

    def read_native(self, text: str) -> tuple[Grant, ...]:
        return records.read_request(text, self._names)

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        """One read, one write of what differs, one read; a resource that is missing is made first.

        Not one of a QPU that is configured no more: where somebody has taken it away, there is nothing to close.

        With `server_dyn_res` scripts there is nothing to write: they ask the daemon.
        """
        if self._by_script:
            self._shown |= {value.native: value.open for value in values}
            return Published(frozenset(value.native for value in values))
        async with self._writing:
            shown, refused = records.available(await self._port.server()), ""
            known = set(self._natives.values())
            gone = {value.native for value in values if value.native not in known and value.native not in shown}
            wrong = {
                value.native: value.open
                for value in values
                if shown.get(value.native) != value.open and value.native not in gone
            }
            if wrong:
                refused = await self._write(wrong, [native for native in wrong if native not in shown])
                shown = records.available(await self._port.server())
        right = {value.native for value in values if shown.get(value.native) == value.open}
        confirmed = frozenset(right | gone)
        failed = {
            value.native: refused or f"{records.resource(value.native)} is {shown.get(value.native, 'not set')}"
            for value in values
            if value.native not in confirmed
        }
        return Published(confirmed, failed)

    async def _write(self, wrong: Mapping[str, int], unset: Sequence[str]) -> str:
        """Write in one request; one that PBS does not know is made. Returns PBS's words where it refuses."""
        values = {records.resource(native): value for native, value in sorted(wrong.items())}
        try:
            await self._port.available(values, [])
        except QtandemError as error:
            if error.code == "manager-unreachable" or not unset:
                return self._told(error)
            try:
                await self._port.available(values, [records.resource(native) for native in sorted(unset)])
            except QtandemError as second:
                return self._told(second)
        return ""

    def _told(self, error: QtandemError) -> str:
        if error.code == "manager-unreachable":
            raise error
        return error.one_line()

    async def sensors(self) -> dict[str, int]:
        if self._by_script:
            return dict(self._shown)
        return records.sensors(await self._port.server(), self._natives.values())

    async def kick(self, natives: Iterable[str]) -> None:
        """PBS notices no change of a number until its next cycle."""
        if any(True for _ in natives):
            await self._port.nudge()

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        out: dict[JobId, Job | None] = dict.fromkeys(ids)
        ours = [job for job in out if job.manager == self.name and job.cluster == self.cluster]
        if not ours:
            return out
        asked = [records.target(job) for job in ours]
        found = await self._read(await self._port.jobs(asked))
        left = [job for job in ours if job.index is None and job not in found]
        if left:
            # An array is known by its own form of the id only.
            found |= await self._read(await self._port.jobs([records.target(job, array=True) for job in left]))
        return out | {job: found.get(job) for job in ours}

    async def _read(self, told: Sequence[Record]) -> dict[JobId, Job]:
        uids = await self._known({records.owner(record) for record in told})
        read = (records.job(record, self.cluster, self._names, uids) for record in told)
        return {job.id: job for job in read if job is not None}

    async def pending(self) -> list[Job]:
        if not self._natives:
            return []
        # Of an array that has begun, elements may wait.
        told = await self._port.asking(self._resources(), "BHQTW")
        waiting = [record for record in told if record.get("job_state")[:1] in ("Q", "H", "W", "T")]
        return [job for job in (await self._read(waiting)).values() if job.grants]

    async def running(self) -> list[Job]:
        if not self._natives:
            return []
        told = await self._port.asking(self._resources(), "R", elements=True)
        return [job for job in (await self._read(told)).values() if job.grants and job.state is JobState.RUNNING]

    def _resources(self) -> list[str]:
        return [records.resource(native) for native in sorted(self._natives.values())]

    async def hold(self, job: JobId, comment: str) -> None:
        """A system hold, which its owner cannot lift. PBS holds no element of an array alone: then the array."""
        found = (await self.jobs([job]))[job]
        if found is None or found.state is JobState.ENDED:
            return
        id = await self._target(job)
        await self._port.hold(id)
        try:
            await self._port.comment(id, records.comment(comment))
        finally:
            if found.state is not JobState.PENDING and found.can_requeue:
                await self._port.rerun(records.target(job))

    async def delay(self, job: JobId, seconds: float) -> None:
        """The job's Execution_Time. An element of an array has none; the daemon refuses its start until then.

        Never to an earlier time than the job has, as its hook may have put it off just now: PBS keeps the clock of
        each time that a job was given, and puts a job that is just ending when one of them runs out into its queue.
        """
        if job.index is not None:
            return
        at = self._clock() + max(0.0, seconds)
        known = await self._port.jobs([records.target(job)])
        has = records.moment(known[0].get("Execution_Time")) if known else None
        if has is None or has < at - SAME_S:
            await self._port.eligible(records.target(job, array=not known), at)

    async def _target(self, job: JobId) -> str:
        if job.index is not None:
            return records.target(job, array=True)
        known = await self._port.jobs([records.target(job)])
        return records.target(job, array=not known)

    async def close(self) -> None:
        await self._port.close()

    async def _known(self, users: Iterable[str]) -> dict[str, int]:
        """Uids by name; a directory service may be slow."""
        now = time.monotonic()
        new = [user for user in users if user not in self._uids or now >= self._uids[user][0]]
        if new:
            found = await asyncio.to_thread(lambda: {user: _uid(user) for user in new})
            self._uids |= {user: (now + KEPT_UIDS_S, uid) for user, uid in found.items()}
        return {user: self._uids[user][1] for user in users}


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return records.NO_UID

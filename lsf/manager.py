"""LSF as the daemon sees it: a QPU's sensor is an external load index that elim.qpu reports from a file of ours."""

from __future__ import annotations

import asyncio
import pwd
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from qtandem.core.background import Background
from qtandem.core.commands import CommandError
from qtandem.core.errors import QtandemError
from qtandem.core.files import write_atomic
from qtandem.core.manager_commands import ManagerCommands
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities, ManagerSection, Published, SensorValue
from qtandem.core.pauses import Pauses
from qtandem.core.processes import Start, start_child
from qtandem.core.runs import JobId, valid_cluster
from qtandem.lsf import records, requirements, site
from qtandem.lsf.jobs import Jobs, none_found
from qtandem.lsf.records import Record

KEPT_UIDS_S = 600.0
# Of a user that this host does not know: no lease can be of use to that job here.
NO_UID = 2**32 - 2
# LSF has noted the command and carries it out later, unless another one comes first.
UNDER_WAY = "operation is in progress"
# Of a job that was stopped before it began.
STOPPED = "PSUSP"
# How long a value may be on its way: through the relay's mirror, the elim's period, LIM's, and mbatchd's.
LAG_S = 45.0
SENSORS = Path("/run/qtandem/sensors.lsf")
STATE = Path("/var/lib/qtandem/lsf.json")
_UNREACHABLE = (
    "lim is down", "batch system daemon not responding", "batch library error", "communication time out",
    "cannot connect to", "failed in an lsf library call", "connection refused", "cannot find the master",
    "open lsf.conf", "open file lsf.conf", "lsf base system is down", "internal library error", "mbatchd is down",
)  # fmt: skip


class LsfSettings(ManagerSection, Protocol):
    """What this manager needs of its section in the configuration.

    `options`: `envdir` is the folder of lsf.conf where it is not /etc, `sensors` and `state` the files of this
    manager where they are not in /run/qtandem and /var/lib/qtandem.
    """


class Client(ManagerCommands):
    """LSF's commands, and the cluster that they speak to."""

    def __init__(self, settings: LsfSettings, start: Start = start_child) -> None:
        path = site.conf_path(settings.options)
        self.conf = site.conf(path)
        folder = settings.bin_dir or self.conf.get("LSF_BINDIR", "")
        super().__init__(folder, site.environment(path, self.conf), _UNREACHABLE, start)

    def has(self, program: str) -> bool:
        return shutil.which(self.argv(program)[0]) is not None


class LsfManager:
    """Meets `core.managers.Manager`. `natives` maps configured resource names to native names.

    LSF does the arithmetic: what its own jobs have reserved (`rusage`) is taken from the value that elim.qpu reports.
    """

    name = "lsf"
    launchable = True
    capabilities = ManagerCapabilities(
        attempts=False,
        hooks_on_nodes=True,
        hooks_as_owner=True,
        spelling='-a "qpu({})"',
        limits={"attempts": "LSF does not tell how often a job was started; the daemon counts"},
    )

    def __init__(
        self,
        settings: LsfSettings,
        natives: Mapping[str, str],
        *,
        start: Start = start_child,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not valid_cluster(settings.cluster):
            message = f"managers.lsf.cluster is {settings.cluster!r}, which is no cluster name"
            raise QtandemError("bad-config", message, remedy="Set it to the name of the cluster in lsf.shared.")
        self.cluster = settings.cluster
        self._natives = dict(natives)
        self._names = {native: name for name, native in natives.items()}
        self._client = Client(settings, start)
        self._jobs = Jobs(self._client)
        self._clock = clock
        self._sensors = Path(settings.options.get("sensors") or SENSORS)
        self._pauses = Pauses(Path(settings.options.get("state") or STATE))
        self._values: dict[str, int] = {}
        self._since: dict[str, tuple[int, float]] = {}
        self._uids: dict[str, tuple[float, int]] = {}
        self._timers: dict[JobId, asyncio.TimerHandle] = {}
        self._releases = Background()

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        return {"R": requirements.request((self._natives[grant.resource], grant.slots) for grant in grants)}

    def read_native(self, text: str) -> tuple[Grant, ...]:
        return requirements.read_request(text, self._names)

    # ---- sensors
    @property
    def open_slots(self) -> Mapping[str, int]:
        """What the elims are to show, by native name: for hosts that have no file of ours but a relay's mirror."""
        return dict(self._values)

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        """Write the file that elim.qpu reads, and look what LIM shows. A value that is on its way counts as shown."""
        wanted = {value.native: value.open for value in values}
        self._values |= wanted
        self._write()
        shown = records.shared_values((await self._client.run("lsload", "-s")).stdout, list(wanted))
        now = self._clock()
        failed = {}
        for native, value in wanted.items():
            if shown.get(native) == value:
                self._since.pop(native, None)
                continue
            before, since = self._since.get(native, (value, now))
            since = since if before == value else now
            self._since[native] = (value, since)
            if now - since > LAG_S:
                failed[native] = f"{requirements.name(native)} is {shown.get(native, 'not set')}: does elim.qpu run?"
        return Published(frozenset(wanted.keys() - failed.keys()), failed)

    def _write(self) -> None:
        """Unless that is what the file has already."""
        text = "".join(f"{native} {value}\n" for native, value in sorted(self._values.items()))
        try:
            if not self._sensors.exists() or self._sensors.read_bytes() != text.encode():
                write_atomic(self._sensors, text.encode())
        except OSError as error:
            raise QtandemError("manager-unreachable", f"{self._sensors} cannot be written", cause=str(error)) from error

    async def sensors(self) -> dict[str, int]:
        natives = sorted(self._natives.values())
        return records.shared_values((await self._client.run("bhosts", "-s")).stdout, natives) if natives else {}

    async def kick(self, natives: Iterable[str]) -> None:
        """LSF looks at its jobs by itself when a value has come to it, and by no command sooner."""

    # ---- jobs
    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        ours = [job for job in dict.fromkeys(ids) if job.manager == self.name and job.cluster == self.cluster]
        out: dict[JobId, Job | None] = dict.fromkeys(ids)
        numbers = [number for number in dict.fromkeys(job.job for job in ours) if number.isdigit()]
        found = await self._jobs.of(numbers)
        uids = await self._known({record.user for record in found})
        for job in ours:
            mine = [record for record in found if record.job == job.job and (record.index or None) == job.index]
            whole = not mine and job.index is None
            if whole:
                # An array by its own id: as the furthest of its elements is.
                mine = sorted((one for one in found if one.job == job.job), key=lambda one: _ORDER.index(one.state))
            if mine:
                out[job] = replace(self._job(job, mine[0], uids), whole=whole)
        return out

    async def pending(self) -> list[Job]:
        """Also lets go those whose pause is over, which a restart of the daemon could have forgotten."""
        if not self._natives:
            return []
        found = records.asking(record for record in await self._jobs.unfinished() if record.state is JobState.PENDING)
        uids = await self._known({record.user for record in found})
        ids = {self._id(record): record for record in found}
        now = self._clock()
        for job in self._pauses.over(now):
            if job in ids and job not in self._timers:
                await self._let_go(job)
        self._pauses.keep_only(ids, now)
        seen = [self._job(job, record, uids) for job, record in ids.items()]
        return [job for job in seen if job.grants]

    def _id(self, record: Record) -> JobId:
        return JobId(self.name, self.cluster, record.job, record.index or None)

    def _job(self, job: JobId, record: Record, uids: Mapping[str, int]) -> Job:
        # One that somebody has resumed meanwhile is paused no more.
        pause = self._pauses.get(job) if record.stat == STOPPED else None
        return Job(
            id=job,
            state=record.state,
            uid=uids[record.user],
            user=record.user,
            account=record.project or None,
            partition=record.queue,
            nodes=record.hosts,
            time_limit_s=record.time_limit_s,
            reason=record.reason if record.state is JobState.PENDING else "",
            comment=pause.comment if pause else "",
            grants=requirements.reserved(record.requirement, self._names),
            eligible_at=(pause.until or None) if pause else None,
        )

    async def _known(self, users: Iterable[str]) -> dict[str, int]:
        """Uids by name; a directory service may be slow."""
        now = time.monotonic()
        new = [user for user in users if user not in self._uids or now >= self._uids[user][0]]
        if new:
            found = await asyncio.to_thread(lambda: {user: _uid(user) for user in new})
            self._uids |= {user: (now + KEPT_UIDS_S, uid) for user, uid in found.items()}
        return {user: self._uids[user][1] for user in users}

    # ---- hold and delay
    async def hold(self, job: JobId, comment: str) -> None:
        """Stopped by the administrator, so that its owner cannot resume it; the comment is a message of the job.

        One that LSF has started again meanwhile is told of by an error, and can be held once it waits: a signal that
        comes when its pre_exec ends is taken for under way by OpenLava for ever, and keeps each later one waiting.
        """
        found = (await self.jobs([job]))[job]
        if found is None or found.state is JobState.ENDED:
            return
        if found.state is not JobState.PENDING:
            message = f"{job} has started again; it is held when it waits"
            raise QtandemError("manager-unreachable", message, retry_after=1.0)
        self._forget_timer(job)
        await self._stop(job)
        self._pauses.set(job, 0.0, comment)
        if self._client.has("bpost"):
            await self._client.run("bpost", "-d", " ".join(comment.split())[:500], _target(job))

    async def delay(self, job: JobId, seconds: float) -> None:
        """Stopped for so long. The end is in a file, so that it outlives the daemon."""
        self._forget_timer(job)
        if seconds <= 0:
            await self._let_go(job)
            return
        self._pauses.set(job, self._clock() + seconds, "")
        await self._stop(job)
        self._timers[job] = asyncio.get_running_loop().call_later(seconds, self._release_later, job)

    async def _stop(self, job: JobId) -> None:
        try:
            await self._client.run("bstop", _target(job))
        except CommandError as error:
            said = f"{error.stderr} {error.stdout}".lower()
            if "already" not in said and "suspended" not in said and UNDER_WAY not in said:
                raise

    def _release_later(self, job: JobId) -> None:
        self._timers.pop(job, None)
        # Whatever goes wrong: `pending` finds the job again.
        self._releases.spawn(self._let_go(job), forgiven=True)

    async def _let_go(self, job: JobId) -> None:
        try:
            await self._client.run("bresume", _target(job))
        except CommandError as error:
            said = f"{error.stderr} {error.stdout}".lower()
            if UNDER_WAY in said:
                # `pending` sees whether it was done.
                return
            if not none_found(error) and "already" not in said and "not been suspended" not in said:
                raise
        self._pauses.forget(job)

    def _forget_timer(self, job: JobId) -> None:
        timer = self._timers.pop(job, None)
        if timer is not None:
            timer.cancel()


_ORDER = (JobState.RUNNING, JobState.SUSPENDED, JobState.PENDING, JobState.ENDED)


def _target(job: JobId) -> str:
    return job.job if job.index is None else f"{job.job}[{job.index}]"


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return NO_UID

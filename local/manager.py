"""The manager port for the jobs of one machine."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Job, JobState, ManagerCapabilities, Published, SensorValue
from qtandem.core.runs import JobId
from qtandem.core.settings import ManagerSettings
from qtandem.local.bell import Bell
from qtandem.local.sensors import SensorFile
from qtandem.local.store import ACTIVE, QueueStore, Row, State

CLUSTER = "local"
_GRANT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]{0,38})(?::(?P<slots>[1-9]\d{0,4}))?")


class LocalManager:
    """Jobs of a `LocalQueue`. The option `state_dir` names the queue's folder."""

    name = "local"
    capabilities = ManagerCapabilities(arrays=False, limits={"arrays": "the queue of one machine has no arrays"})

    def __init__(
        self, settings: ManagerSettings, natives: Mapping[str, str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = settings.cluster or CLUSTER
        self._natives = dict(natives)
        self._names = {native: name for name, native in natives.items()}
        self._clock = clock
        named = settings.options.get("state_dir")
        folder = prepared(Path(named) if named else default_folder())
        self._store = QueueStore(folder)
        self._sensors = SensorFile(folder / "sensors.json")
        self._bell = Bell(folder / "bell")

    def native_request(self, grants: Sequence[Grant]) -> dict[str, str]:
        """`{"qpus": "NATIVE:SLOTS,…"}`."""
        return {"qpus": ",".join(f"{self._natives[grant.resource]}:{grant.slots}" for grant in grants)}

    def read_native(self, text: str) -> tuple[Grant, ...]:
        return tuple(
            Grant(self._names[native], slots) for native, slots in grants_of(text).items() if native in self._names
        )

    async def publish(self, values: Sequence[SensorValue]) -> Published:
        seen = await asyncio.to_thread(self._sensors.update, values)
        self._bell.ring()
        confirmed = frozenset(value.native for value in values if seen.get(value.native) == value)
        failed = {value.native: "reads back otherwise" for value in values if value.native not in confirmed}
        return Published(confirmed, failed)

    async def sensors(self) -> dict[str, int]:
        def read() -> dict[str, int]:
            values = self._sensors.read()
            used = used_slots(self._store.in_states(*ACTIVE))
            unset = SensorValue("", 0, 0)
            return {
                native: max(0, values.get(native, unset).open - used.get(native, 0))
                for native in sorted({*values, *self._natives.values()})
            }

        return await asyncio.to_thread(read)

    async def kick(self, natives: Iterable[str]) -> None:  # noqa: ARG002
        """The runner looks at all pending jobs in one cycle, whichever QPU they wait for."""
        self._bell.ring()

    async def jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
        rows = {row.id: row for row in await asyncio.to_thread(self._store.all)}
        out: dict[JobId, Job | None] = {}
        for job in ids:
            row = rows.get(int(job.job)) if self._mine(job) else None
            out[job] = self._job(row) if row else None
        return out

    async def pending(self) -> list[Job]:
        rows = await asyncio.to_thread(self._store.in_states, State.PENDING)
        return [job for job in map(self._job, rows) if job.grants]

    async def hold(self, job: JobId, comment: str) -> None:
        row = await self._known(job)
        if row.state in ACTIVE:
            wanted = "requeue" if row.can_requeue else row.wanted
            await asyncio.to_thread(self._store.update, row.id, held=True, comment=comment, wanted=wanted)
        else:
            await asyncio.to_thread(self._store.update, row.id, only=(State.PENDING,), held=True, comment=comment)
        self._bell.ring()

    async def delay(self, job: JobId, seconds: float) -> None:
        row = await self._known(job)
        until = self._clock() + seconds if seconds > 0 else 0.0
        await asyncio.to_thread(self._store.update, row.id, only=(State.PENDING,), eligible_at=until)
        self._bell.ring()

    async def _known(self, job: JobId) -> Row:
        row = await asyncio.to_thread(self._store.get, int(job.job)) if self._mine(job) else None
        if row is None:
            raise QtandemError("no-such-run", f"The queue of this machine has no job {job}")
        return row

    def _mine(self, job: JobId) -> bool:
        return (job.manager, job.cluster, job.index) == (self.name, self.cluster, None) and job.job.isdigit()

    def _job(self, row: Row) -> Job:
        active = row.state in ACTIVE
        state = JobState.RUNNING if active else JobState.PENDING if row.state is State.PENDING else JobState.ENDED
        return Job(
            id=JobId(self.name, self.cluster, str(row.id)),
            state=state,
            uid=row.uid,
            user=row.user,
            attempt=row.attempt,
            account=row.account,
            nodes=(socket.gethostname(),) if active else (),
            time_limit_s=row.time_limit_s,
            can_requeue=row.can_requeue,
            reason=row.reason,
            comment=row.comment,
            grants=self.read_native(row.native),
            eligible_at=row.eligible_at or None,
        )


def grants_of(native: str) -> dict[str, int]:
    """Slots by native name in a job's text `NATIVE[:SLOTS],…`; parts that are something else are left out."""
    matches = (_GRANT.fullmatch(part.strip()) for part in native.split(","))
    return {match["name"]: int(match["slots"] or 1) for match in matches if match}


def used_slots(rows: Iterable[Row]) -> dict[str, int]:
    """Slots that these jobs use, by native name."""
    used: dict[str, int] = {}
    for row in rows:
        for native, slots in grants_of(row.native).items():
            used[native] = used.get(native, 0) + slots
    return used


def default_folder() -> Path:
    """`/var/lib/qtandem/local` for root, else `qtandem/local` in the user's state directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/qtandem/local")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "qtandem" / "local"


def prepared(folder: Path) -> Path:
    """The folder, made for its owner only: it keeps the environment of jobs."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise QtandemError("bad-config", f"{folder} cannot be made", cause=error.strerror) from error
    return folder

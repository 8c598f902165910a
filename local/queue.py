"""The users' side of the queue of one machine: submit, look, cancel, hold, release, wait."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.core.runs import JobId
from qtandem.local.bell import Bell
from qtandem.local.gate import MANAGER, Gate
from qtandem.local.manager import CLUSTER, default_folder, prepared
from qtandem.local.store import ACTIVE, QueueStore, Row, State

LOOK_S = 0.05
LISTED = "See: python -m qtandem.local.command list --all"
# Variables of a surrounding job must not reach another one.
_OF_A_JOB = re.compile(r"QTANDEM_RUN|QRMI_.*|SLURM_JOB_QPU_.*|.*_QRMI_JOB_.*|LOCAL_JOB_.*")


class LocalQueue:
    """The queue in `folder`. A runner (`qtandem.local.runner`) must be there for jobs to run.

    Methods raise `no-such-run` for an unknown job.
    """

    def __init__(
        self,
        folder: Path | None = None,
        cluster: str = CLUSTER,
        *,
        daemon: Daemon | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = prepared(folder or default_folder())
        self.cluster = cluster
        self._clock = clock
        self._gate = Gate(daemon or Daemon(), cluster)
        self._store = QueueStore(self.folder)
        self._bell = Bell(self.folder / "bell")

    def submit(
        self,
        argv: Sequence[str],
        request: str = "",
        *,
        name: str = "",
        account: str | None = None,
        cwd: Path | None = None,
        output: Path | None = None,
        environ: Mapping[str, str] | None = None,
        time_limit_s: int | None = None,
        can_requeue: bool = True,
    ) -> int:
        """Queue a command and return its job id.

        `request` is what `--qpu` takes; empty for a job without a QPU. `output` (default: a file in the
        queue's folder) gets stdout and stderr. Raises what the daemon refuses it for.
        """
        uid = os.getuid()
        user = _user(uid)
        canonical, native = self._gate.submit(request, uid, user, account) if request else ("", "")
        out = self.folder / "output"
        out.mkdir(mode=0o700, exist_ok=True)
        job = self._store.add(
            {
                "name": name or Path(argv[0]).name,
                "uid": uid,
                "user": user,
                "account": account,
                "argv": argv,
                "env": _plain(os.environ if environ is None else environ),
                "cwd": str(cwd or Path.cwd()),
                "output": str(output or out / "%j.out"),
                "request": canonical,
                "native": native,
                "time_limit_s": time_limit_s,
                "can_requeue": can_requeue,
                "state": State.PENDING,
                "submitted_at": self._clock(),
            }
        )
        self._bell.ring()
        return job

    def job(self, job: int) -> Row:
        row = self._store.get(job)
        if row is None:
            raise QtandemError("no-such-run", f"The queue of this machine has no job {job}", remedy=LISTED)
        return row

    def jobs(self) -> list[Row]:
        return self._store.all()

    def full_id(self, job: int) -> JobId:
        return JobId(MANAGER, self.cluster, str(job))

    def cancel(self, job: int) -> None:
        """End a job: a pending one at once, a running one by a signal. An ended one is no error."""
        self.job(job)
        gone = {"state": State.CANCELLED, "ended_at": self._clock(), "reason": "cancelled"}
        if not self._store.update(job, only=(State.PENDING,), **gone):
            self._store.update(job, only=ACTIVE, wanted="cancel")
        self._bell.ring()

    def hold(self, job: int, comment: str = "held by its user") -> None:
        self.job(job)
        self._store.update(job, only=(State.PENDING,), held=True, comment=comment)
        self._bell.ring()

    def release(self, job: int) -> None:
        """Let a held or delayed job try again now."""
        self.job(job)
        self._store.update(job, only=(State.PENDING,), held=False, comment="", eligible_at=0.0, refusals=0)
        self._bell.ring()

    def wait(self, job: int, timeout: float | None = None) -> Row:
        """The job once it has ended, or as it is after `timeout` seconds."""
        ends = None if timeout is None else self._clock() + timeout
        while True:
            row = self.job(job)
            if row.state.final or (ends is not None and self._clock() >= ends):
                return row
            time.sleep(LOOK_S)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if not _OF_A_JOB.fullmatch(key)}

"""What this manager needs of PBS, whichever way PBS is spoken to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from qtandem.pbs.records import Record

# What is read of a job; nothing of a user's own wording but the comment.
JOB_ATTRIBUTES = (
    "Job_Owner", "euser", "queue", "job_state", "Account_Name", "Resource_List", "exec_host", "run_version",
    "Rerunable", "interactive", "comment", "Execution_Time",
)  # fmt: skip
# Of a counted resource: `q` has the server count it, `m` sends it to the nodes. Without `m` the hooks there would take
# a job for one without a QPU.
FLAGS = "qm"
# A server that hangs would have its clients hang for ever.
TIMEOUT_S = 20.0


class Port(Protocol):
    """Calls raise `manager-unreachable` if PBS gives no answer, `command-failed` if it refuses."""

    async def server(self) -> Record: ...

    async def jobs(self, ids: Sequence[str]) -> list[Record]:
        """Those of the jobs that PBS has and that are not over."""

    async def asking(self, resources: Sequence[str], states: str, elements: bool = False) -> list[Record]:
        """Jobs in one of the states (letters) that ask for one of the resources; with the elements of arrays."""

    async def available(self, values: Mapping[str, int], missing: Sequence[str]) -> None:
        """Set `resources_available` of the server; resources that are `missing` are made first."""

    async def nudge(self) -> None:
        """Have the scheduler look now, if the site lets it look at all."""

    async def hold(self, id: str) -> None:
        """A hold that its owner cannot lift."""

    async def comment(self, id: str, text: str) -> None: ...

    async def eligible(self, id: str, at: float) -> None:
        """Let the job start no earlier than at a Unix time."""

    async def rerun(self, id: str) -> None: ...

    async def close(self) -> None: ...

"""PBS by its commands: `qstat -F json`, `qselect`, `qmgr`, `qhold`, `qalter`, `qrerun`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from qtandem.core.errors import QtandemError
from qtandem.core.manager_commands import ManagerCommands
from qtandem.pbs import records
from qtandem.pbs.port import FLAGS
from qtandem.pbs.records import Record

IDS_A_CALL = 200
_UNREACHABLE = (
    "cannot connect to server", "connection refused", "connect failure", "no server to connect", "timed out",
    "batch protocol error", "pbs_server is not running", "end of file", "unknown host", "pbs_iff",
)  # fmt: skip
_GONE = ("unknown job id", "job has finished", "history job")


class Client(ManagerCommands):
    """PBS's commands."""

    def __init__(self, bin_dir: str = "", conf: str = "") -> None:
        super().__init__(bin_dir, {"PBS_CONF_FILE": conf} if conf else {}, _UNREACHABLE)


class Clients:
    """Meets `Port`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def server(self) -> Record:
        found = records.objects((await self._client.run("qstat", "-B", "-f", "-F", "json")).stdout, "Server")
        if not found:
            raise QtandemError("manager-unreachable", "qstat tells of no server")
        return found[0]

    async def jobs(self, ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for first in range(0, len(ids), IDS_A_CALL):
            chunk = ids[first : first + IDS_A_CALL]
            # It ends with an error if one of them is not there, and tells of the others all the same.
            done = await self._client.run("qstat", "-f", "-F", "json", *chunk, check=False)
            if done.stdout.strip():
                found += records.objects(done.stdout, "Jobs")
            elif not any(words in done.stderr.lower() for words in _GONE):
                raise QtandemError("manager-unreachable", "qstat gave no answer", cause=done.stderr.strip() or None)
        return found

    async def asking(self, resources: Sequence[str], states: str, elements: bool = False) -> list[Record]:
        ids: dict[str, None] = {}
        select = ("qselect", "-T") if elements else ("qselect",)
        for resource in resources:
            listed = await self._client.run(*select, "-s", states, "-l", f"{resource}.gt.0")
            ids |= dict.fromkeys(listed.stdout.split())
        return await self.jobs(list(ids)) if ids else []

    async def available(self, values: Mapping[str, int], missing: Sequence[str]) -> None:
        lines = [f"create resource {name} type=long,flag={FLAGS}" for name in missing]
        lines += [f"set server resources_available.{name} = {value}" for name, value in values.items()]
        await self._client.run("qmgr", stdin="".join(f"{line}\n" for line in lines))

    async def nudge(self) -> None:
        if (await self.server()).get("scheduling").lower() in ("true", "1"):
            await self._client.run("qmgr", "-c", "set server scheduling = true")

    async def hold(self, id: str) -> None:
        await self._client.run("qhold", "-h", "s", id)

    async def comment(self, id: str, text: str) -> None:
        # The value of -W has quotes of its own.
        words = text.replace('"', "'").replace("\\", "/")
        await self._client.run("qalter", "-W", f'comment="{words}"', id)

    async def eligible(self, id: str, at: float) -> None:
        # To the second, and never a little too early.
        stamp = time.strftime("%Y%m%d%H%M.%S", time.localtime(int(at) + 1))
        await self._client.run("qalter", "-a", stamp, id)

    async def rerun(self, id: str) -> None:
        await self._client.run("qrerun", id)

    async def close(self) -> None:
        return None

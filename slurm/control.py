"""Nodes, jobs, hold and release of a Slurm cluster: by Slurm's commands always, by pyslurm where it fits.

pyslurm is bound to one release of Slurm at build time, so most hosts have none that fits; `choose` says why.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.manager_commands import ManagerCommands
from qtandem.slurm import conf, jobs
from qtandem.slurm.bound import words
from qtandem.slurm.commands import UNREACHABLE, Client, SlurmSettings, environment

MODULE = "qtandem.slurm.bound"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `states` in upper case, the base state and its flags; sets are of names."""

    name: str
    states: frozenset[str]
    features: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, by its own number. `held`: it has no priority, so it starts only when it is released."""

    id: int
    state: str
    user_id: int
    licences: str = ""
    held: bool = False


class Control(Protocol):
    """Raises `manager-unreachable`, `command-failed`."""

    async def nodes(self) -> dict[str, NodeView]: ...

    async def jobs(self) -> dict[int, JobView]: ...

    async def hold(self, job: int) -> None:
        """Hold so that the owner may release it."""

    async def release(self, job: int) -> None: ...


class ByCommands:
    """`scontrol --json`, which every Slurm from 24.11 on has."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def nodes(self) -> dict[str, NodeView]:
        text = (await self._client.run("scontrol", "show", "nodes", "--json")).stdout
        return _by_name(jobs.records(text, "nodes"))

    async def jobs(self) -> dict[int, JobView]:
        text = (await self._client.run("scontrol", "show", "jobs", "--json")).stdout
        return _by_number(jobs.records(text))

    async def hold(self, job: int) -> None:
        await self._client.run("scontrol", "uhold", str(job))

    async def release(self, job: int) -> None:
        await self._client.run("scontrol", "release", str(job))


class ByBindings(ByCommands):
    """pyslurm, in a process for each call; its failures carry its own words.

    It cannot hold a job so that its owner may release it: `Job.hold(mode="user")` writes through a null pointer
    (24.11.0, 25.11.2). That stays with the command.
    """

    def __init__(self, settings: SlurmSettings) -> None:
        super().__init__(Client(settings))
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._commands = ManagerCommands("", environment(settings) | path, UNREACHABLE)

    async def fits(self, slurm: str) -> str:
        """Why it is of no use for a Slurm of this version; empty if it fits."""
        try:
            return str(await self._ask("fits", slurm))
        except QtandemError as error:
            return f"pyslurm cannot be used: {error.cause or error.message}"

    async def nodes(self) -> dict[str, NodeView]:
        return _by_name(await self._ask("nodes"))

    async def jobs(self) -> dict[int, JobView]:
        return _by_number(await self._ask("jobs"))

    async def release(self, job: int) -> None:
        await self._ask("release", str(job))

    async def _ask(self, *call: str) -> Any:
        said = (await self._commands.run(sys.executable, "-P", "-m", MODULE, *call)).stdout
        try:
            return json.loads(said)
        except ValueError as error:
            raise QtandemError("manager-unreachable", f"pyslurm's answer cannot be read: {error}") from error


class Preferring:
    """The first of two ways; the other where the first fails, since its process may have crashed."""

    def __init__(self, first: Control, second: Control) -> None:
        self._first, self._second = first, second

    async def nodes(self) -> dict[str, NodeView]:
        try:
            return await self._first.nodes()
        except QtandemError:
            return await self._second.nodes()

    async def jobs(self) -> dict[int, JobView]:
        try:
            return await self._first.jobs()
        except QtandemError:
            return await self._second.jobs()

    async def hold(self, job: int) -> None:
        try:
            await self._first.hold(job)
        except QtandemError:
            await self._second.hold(job)

    async def release(self, job: int) -> None:
        try:
            await self._first.release(job)
        except QtandemError:
            await self._second.release(job)


async def choose(settings: SlurmSettings) -> tuple[Control, str]:
    """The control to use, and why it is not pyslurm (empty if it is). Raises as `Client.run` does."""
    client = Client(settings)
    commands = ByCommands(client)
    if not installed():
        return commands, "pyslurm is not installed"
    bindings = ByBindings(settings)
    version = conf.version((await client.run("scontrol", "--version")).stdout)
    # The version of one release in pyslurm's spelling, 24.5 for Slurm's 24.05.
    lack = await bindings.fits("{}.{}".format(*version)) if version else "Slurm's version cannot be read"
    return (commands, lack) if lack else (Preferring(bindings, commands), "")


def installed() -> bool:
    """Whether there is a pyslurm beside us, of whatever version; it is not imported."""
    return importlib.util.find_spec("pyslurm") is not None


def _by_name(records: list[Mapping[str, Any]]) -> dict[str, NodeView]:
    return {node.name: node for node in map(_node, records)}


def _by_number(records: list[Mapping[str, Any]]) -> dict[int, JobView]:
    return {job.id: job for job in map(_job, records)}


def _node(record: Mapping[str, Any]) -> NodeView:
    states = frozenset(word.upper() for word in words(record.get("state")))
    return NodeView(
        str(record["name"]),
        states,
        frozenset(words(record.get("features"))),
        frozenset(words(record.get("partitions"))),
    )


def _job(record: Mapping[str, Any]) -> JobView:
    states = record.get("job_state") or ["UNKNOWN"]
    state = states if isinstance(states, str) else str(states[0])
    licences, priority = str(record.get("licenses") or ""), jobs.number(record.get("priority"))
    return JobView(int(record["job_id"]), state, int(record.get("user_id") or 0), licences, priority == 0)

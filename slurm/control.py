"""Nodes, jobs, hold and release of a Slurm cluster: by Slurm's commands always, by pyslurm where it fits.

pyslurm is bound to one release of Slurm at build time, so most hosts have none that fits; `choose` says why.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from qtandem.core.errors import QtandemError
from qtandem.slurm import conf, jobs
from qtandem.slurm.manager import Client, SlurmSettings


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
    """Synchronous: call it from a thread. Raises `manager-unreachable`, `command-failed`."""

    def nodes(self) -> dict[str, NodeView]: ...

    def jobs(self) -> dict[int, JobView]: ...

    def hold(self, job: int) -> None:
        """Hold so that the owner may release it."""

    def release(self, job: int) -> None: ...


class ByCommands:
    """`scontrol --json`, which every Slurm from 24.11 on has."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._client = Client(settings)

    def nodes(self) -> dict[str, NodeView]:
        text = self._client.run_sync("scontrol", "show", "nodes", "--json").stdout
        found = (_node(record) for record in jobs.records(text, "nodes"))
        return {node.name: node for node in found}

    def jobs(self) -> dict[int, JobView]:
        text = self._client.run_sync("scontrol", "show", "jobs", "--json").stdout
        found = (_job(record) for record in jobs.records(text))
        return {job.id: job for job in found}

    def hold(self, job: int) -> None:
        self._client.run_sync("scontrol", "uhold", str(job))

    def release(self, job: int) -> None:
        self._client.run_sync("scontrol", "release", str(job))


class ByBindings:
    """pyslurm; its failures carry its own words."""

    def __init__(self, module: Any) -> None:
        self._pyslurm = module

    def nodes(self) -> dict[str, NodeView]:
        found = self._call(self._pyslurm.Nodes.load)
        return {str(name): _bound_node(str(name), node) for name, node in found.items()}

    def jobs(self) -> dict[int, JobView]:
        found = self._call(self._pyslurm.Jobs.load)
        return {int(number): _bound_job(int(number), job) for number, job in found.items()}

    def hold(self, job: int) -> None:
        self._call(lambda: self._pyslurm.Job(job).hold(mode="user"))

    def release(self, job: int) -> None:
        self._call(lambda: self._pyslurm.Job(job).release())

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except self._pyslurm.RPCError as error:
            code = "manager-unreachable" if "contact" in str(error).lower() else "command-failed"
            raise QtandemError(code, f"pyslurm: {error}") from error


def choose(settings: SlurmSettings) -> tuple[Control, str]:
    """The control to use, and why it is not pyslurm (empty if it is)."""
    module, lack = bindings(settings)
    return (ByCommands(settings), lack) if module is None else (ByBindings(module), "")


def bindings(settings: SlurmSettings) -> tuple[Any, str]:
    """pyslurm where it can be imported and was built for the Slurm that answers; else None and the reason."""
    try:
        module = importlib.import_module("pyslurm")
    except (ImportError, OSError, RuntimeError) as error:
        # A build for another release raises RuntimeError while it is imported.
        return None, f"pyslurm cannot be imported: {error}"
    if not all(hasattr(module, name) for name in ("Nodes", "Jobs", "Job", "RPCError")):
        return None, "pyslurm is of an old form, without Nodes and Jobs"
    ours = conf.version(Client(settings).run_sync("scontrol", "--version").stdout)
    theirs = re.match(r"(\d+)\.(\d+)", str(getattr(module, "__version__", "")))
    if ours is None or theirs is None or (int(theirs[1]), int(theirs[2])) != ours[:2]:
        return None, f"pyslurm {getattr(module, '__version__', '?')} is not for Slurm {'.'.join(map(str, ours or ()))}"
    return module, ""


def _words(value: object) -> frozenset[str]:
    parts = value if isinstance(value, list | tuple) else re.split(r"[,+]", str(value or ""))
    return frozenset(str(part).strip() for part in parts if str(part).strip())


def _node(record: Mapping[str, Any]) -> NodeView:
    states = frozenset(word.upper() for word in _words(record.get("state")))
    partitions = _words(record.get("partitions"))
    return NodeView(str(record["name"]), states, _words(record.get("features")), partitions)


def _job(record: Mapping[str, Any]) -> JobView:
    states = record.get("job_state") or ["UNKNOWN"]
    state = states if isinstance(states, str) else str(states[0])
    licences, priority = str(record.get("licenses") or ""), jobs.number(record.get("priority"))
    return JobView(int(record["job_id"]), state, int(record.get("user_id") or 0), licences, priority == 0)


def _bound_node(name: str, node: Any) -> NodeView:
    states = frozenset(word.upper() for word in _words(node.state))
    return NodeView(name, states, _words(node.available_features), _words(node.partitions))


def _bound_job(number: int, job: Any) -> JobView:
    licences = job.licenses
    text = ",".join(licences) if isinstance(licences, list | tuple) else str(licences or "")
    return JobView(number, str(job.state), int(job.user_id), text, job.priority == 0)

"""A manager that shows its nodes and does what plans say, in memory; and the planner's service without a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.inventory import Host, Inventory, Placed, Shape, Trial, Waiting
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId
from tests.fakes.manager import FakeManager


class FakePlacer(FakeManager):
    """`hosts` are all nodes; `refusals` what a tested submission on a node says; `told` every change, in order."""

    def __init__(self, hosts: Sequence[Host] = (), natives: Mapping[str, str] | None = None) -> None:
        super().__init__(natives=natives)
        self.hosts = list(hosts)
        self.waiting: dict[str, Waiting] = {}
        self.refusals: dict[str, str] = {}
        self.told: list[tuple[str, str, object]] = []
        self.read = 0
        self.fails: set[str] = set()

    def wait(self, number: str, cpus: int, *, at: float = 0.0, grants: Sequence[Grant] = (), **fields: Any) -> str:
        """Add a pending job; its id."""
        shape = Shape(cpus=cpus, memory_mb=1000, **{k: fields.pop(k) for k in ("required", "excluded") if k in fields})
        job = Waiting(self.id(number), 1000, "u1000", shape, 0, fields.pop("priority", 10), 0, at, at, tuple(grants))
        self.waiting[number] = replace(job, **fields)
        return str(job.id)

    async def inventory(self, now: float, pins: Mapping[str, Sequence[str]]) -> Inventory:
        self._reach()
        self.read += 1
        return Inventory(now, tuple(self.hosts), tuple(self.waiting.values()), (self._all(),))

    def permitted(self, shape: Shape, now: float) -> frozenset[str] | None:
        return self._all() - frozenset(shape.excluded) if self.read else None

    def gpus(self, text: str) -> tuple[int, str]:
        return text.count("gpu"), ""

    async def trials(self, wanted: Mapping[JobId, Sequence[str]]) -> dict[JobId, Trial]:
        return {job: Trial(self.refusals.get(nodes[0], "")) for job, nodes in wanted.items()}

    async def place(self, job: JobId, nodes: Sequence[str]) -> None:
        self._change("place", job, tuple(nodes), required=tuple(nodes))

    async def bar(self, job: JobId, nodes: Sequence[str]) -> None:
        self._change("bar", job, tuple(nodes), excluded=tuple(nodes))

    async def reorder(self, job: JobId, nice: int) -> None:
        self._reach()
        self.told.append(("reorder", job.job, nice))
        self.waiting[job.job] = replace(self.waiting[job.job], nice=nice)

    def native_placement(self, placed: Placed, shape: Shape) -> tuple[dict[str, str], str]:
        nodes = ",".join(placed.nodes)
        key = {"pin": "req_nodes", "exclude": "exc_nodes"}.get(placed.policy)
        return ({key: nodes} if key else {}), f"{placed.policy}:{nodes}"

    def _change(self, what: str, job: JobId, told: object, **shape: Any) -> None:
        self._reach()
        if job.job in self.fails or job.job not in self.waiting:
            raise QtandemError("command-failed", "Job is no longer pending execution")
        self.told.append((what, job.job, told))
        known = self.waiting[job.job]
        self.waiting[job.job] = replace(known, shape=replace(known.shape, **shape))

    def _all(self) -> frozenset[str]:
        return frozenset(host.name for host in self.hosts)


class ServiceHere:
    """Meets what `Planning` needs of `Planners`; answers from the real service, in this process."""

    def __init__(self) -> None:
        from qtandem.core.planner.service import Service

        self._service = Service()
        self.late = False

    async def plan(self, message: Mapping[str, object], limit_s: float) -> dict[str, Any]:
        return self._value({"do": "plan", **message})

    async def look(self, message: Mapping[str, object]) -> None:
        self._value({"do": "look", **message})

    async def ask(self, message: Mapping[str, object], wait_s: float) -> dict[str, Any] | None:
        return None if self.late else self._value({"do": "ask", **message})

    async def took(self, message: Mapping[str, object]) -> None:
        self._value({"do": "took", **message})

    async def close(self) -> None:
        """There is nothing to end."""

    def _value(self, message: dict[str, Any]) -> Any:
        answer = self._service.answer(message)
        if not answer["ok"]:
            raise QtandemError.from_wire(answer["error"])
        return answer["value"]

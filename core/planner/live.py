"""From a manager's inventory to an instance: running work is taken off capacity, pending work is planned.

Units: cpu in 100 millicores, mem in 16 MiB. Managers say nothing of storage; `net` carries exclusive use: a node
without jobs has SHARES, which a job that wants it alone takes whole, and any other takes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qtandem.core.inventory import Host, Inventory, Shape, Waiting
from qtandem.core.managers import Grant
from qtandem.core.planner.instance import Backend, Instance, Node, Quantum, Vector, Workload

SHARES = 10_000
STEP_MB = 16
# More than any node has, and far from what the solvers' integers cannot hold: what a job asks for is a user's text.
MOST = 1 << 40
# pi_i of the job with the manager's highest priority; others have their share of it, and 1 at least.
STEPS = 100


@dataclass(frozen=True, slots=True)
class Prices:
    """What a node in use costs: $ a core or GPU and hour, W a node, core and GPU. A measured power is used as it is."""

    core_h: float = 0.034
    gpu_h: float = 1.40
    node_w: float = 294.0
    core_w: float = 10.7
    gpu_w: float = 250.0

    def cost(self, host: Host) -> float:
        return self.core_h * host.cpus + self.gpu_h * host.gpus

    def power(self, host: Host) -> float:
        return host.watts or self.node_w + self.core_w * host.cpus + self.gpu_w * host.gpus


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a plan is made from.

    `free`: free slots of the resources that are open. `reach`: nodes that reach a resource, where not all do. `pins`:
    the node to which a pending job is pinned by us; that it changes counts against `move_budget`, unless the node can
    no longer take it.
    """

    inventory: Inventory
    free: Mapping[str, int] = field(default_factory=dict)
    reach: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    prices: Prices = Prices()
    move_budget: int | None = None


@dataclass(frozen=True)
class Live:
    """The instance with the job behind each workload; `skipped` are jobs that are not planned, with the reason."""

    instance: Instance
    jobs: Mapping[str, Waiting]
    members: Mapping[str, str]
    skipped: tuple[tuple[Waiting, str], ...]


def build(situation: Situation) -> Live:
    """The instance of what could start now. Raises `bad-plan` if no node takes jobs."""
    inventory = situation.inventory
    planned: list[Waiting] = []
    skipped: list[tuple[Waiting, str]] = []
    rooms = _Rooms(inventory)
    for job in inventory.waiting:
        why = job.skipped or _closed(job.grants, situation.free) or _shared(job, inventory, rooms)
        if why:
            skipped.append((job, why))
        else:
            planned.append(job)
    planned.sort(key=lambda job: (-job.priority, job.submitted_at, str(job.id)))
    masks = _Masks(inventory, situation.reach)
    steps = _steps(planned)
    nodes = tuple(node(host, inventory.memory, situation.prices) for host in inventory.hosts)
    homes = _Homes(nodes, situation.pins)
    workloads: list[Workload] = []
    members: dict[str, str] = {}
    for job in planned:
        mask = masks.of(job)
        for name in _names(job):
            members[name] = str(job.id)
            workload = _workload(job, name, mask, steps[job.priority], inventory.memory)
            workloads.append(homes.settled(workload, masks.sets[mask]))
    instance = Instance(
        nodes=nodes,
        workloads=tuple(workloads),
        backends=tuple(Backend(name, slots) for name, slots in sorted(situation.free.items())),
        masks=masks.sets,
        move_budget=situation.move_budget,
    )
    return Live(instance, {str(job.id): job for job in planned}, members, tuple(skipped))


def node(host: Host, memory: bool, prices: Prices) -> Node:
    """The node with what its running jobs leave; it is `active` if it has any, for then its cost is sunk."""
    shares = SHARES if not host.running else max(0, SHARES - 1 - host.running)
    room = host.free_memory_mb // STEP_MB if memory else host.memory_mb // STEP_MB
    return Node(
        name=host.name,
        capacity=(host.free_cpus * 10, room, 0, shares, host.free_gpus),
        cost=prices.cost(host),
        power=prices.power(host),
        active=host.running > 0,
    )


def alone(shape: Shape, memory: bool) -> bool:
    """Whether no other job can be on its nodes: where memory is counted, one that asks for none gets a node's all."""
    return shape.exclusive or (memory and not shape.memory_mb)


def demand(shape: Shape, memory: bool) -> Vector:
    """Of one node."""
    amount = min(MOST, -(-shape.memory_mb // STEP_MB)) if memory else 0
    return min(MOST, shape.cpus * 10), amount, 0, SHARES if alone(shape, memory) else 1, min(MOST, shape.gpus)


def quantum(grants: tuple[Grant, ...]) -> Quantum | None:
    """The need of a QPU. Scores of resources come with selection; until then the granted one has them all."""
    return Quantum({grants[0].resource: 100}, grants[0].slots) if grants else None


def _workload(job: Waiting, name: str, mask: int, priority: int, memory: bool) -> Workload:
    first = name == str(job.id) or name.endswith("/0")
    return Workload(
        name=name,
        demand=demand(job.shape, memory),
        priority=priority,
        gang=str(job.id) if job.shape.nodes > 1 else None,
        mask=mask,
        quantum=quantum(job.grants) if first else None,
    )


class _Homes:
    """Where pinned jobs are, as long as their nodes can take them."""

    def __init__(self, nodes: tuple[Node, ...], pins: Mapping[str, str]) -> None:
        self._pins, self._left = pins, {node.name: node.capacity for node in nodes}

    def settled(self, workload: Workload, permitted: frozenset[str]) -> Workload:
        node = self._pins.get(workload.name)
        room = self._left.get(node) if node in permitted else None
        if node is None or room is None or any(a > b for a, b in zip(workload.demand, room, strict=True)):
            return workload
        a, b, c, d, e = (have - takes for have, takes in zip(room, workload.demand, strict=True))
        self._left[node] = a, b, c, d, e
        return replace(workload, node=node)


def _names(job: Waiting) -> list[str]:
    return [str(job.id)] if job.shape.nodes == 1 else [f"{job.id}/{number}" for number in range(job.shape.nodes)]


def _closed(grants: tuple[Grant, ...], free: Mapping[str, int]) -> str:
    if len(grants) > 1:
        return "it asks for several QPUs"
    closed = [grant.resource for grant in grants if free.get(grant.resource, 0) < grant.slots]
    return f"{closed[0]} is not open" if closed else ""


def _shared(job: Waiting, inventory: Inventory, rooms: _Rooms) -> str:
    """The model has no rule that keeps the parts of a job apart: it is planned where no node can take two of them."""
    if job.shape.nodes == 1 or alone(job.shape, inventory.memory):
        return ""
    return "it takes parts of several nodes" if rooms.twice(job) else ""


class _Rooms:
    """What is free on the roomiest nodes of each mask: what fits on none of these fits nowhere in it."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._roomiest: dict[int, list[tuple[int, int, int]]] = {}

    def twice(self, job: Waiting) -> bool:
        """Whether two parts of the job fit on one node."""
        shape, found = job.shape, self._roomiest.get(job.mask)
        if found is None:
            found = self._roomiest[job.mask] = self._of(self._inventory.masks[job.mask])
        needs = 2 * shape.cpus, 2 * shape.memory_mb if self._inventory.memory else 0, 2 * shape.gpus
        return any(_covers(room, needs) for room in found)

    def _of(self, permitted: frozenset[str]) -> list[tuple[int, int, int]]:
        memory, hosts = self._inventory.memory, self._inventory.hosts
        rooms = {
            (host.free_cpus, host.free_memory_mb if memory else 0, host.free_gpus)
            for host in hosts
            if host.name in permitted
        }
        found: list[tuple[int, int, int]] = []
        for room in sorted(rooms, reverse=True):
            if not any(_covers(other, room) for other in found):
                found.append(room)
        return found


def _covers(room: tuple[int, int, int], needs: tuple[int, int, int]) -> bool:
    return room[0] >= needs[0] and room[1] >= needs[1] and room[2] >= needs[2]


def _steps(planned: list[Waiting]) -> dict[int, int]:
    """pi_i by the manager's own priority, in proportion to the highest."""
    values = {job.priority for job in planned}
    return {value: max(1, round(STEPS * value / max(values))) for value in values}


class _Masks:
    """The manager's masks, cut to the nodes that reach the job's QPU."""

    def __init__(self, inventory: Inventory, reach: Mapping[str, tuple[str, ...]]) -> None:
        self._given, self._reach = inventory.masks, {name: frozenset(nodes) for name, nodes in reach.items()}
        self._numbers: dict[frozenset[str], int] = {}
        self._known: dict[tuple[int, tuple[str, ...]], int] = {}

    def of(self, job: Waiting) -> int:
        key = job.mask, tuple(grant.resource for grant in job.grants if grant.resource in self._reach)
        if key not in self._known:
            permitted = self._given[job.mask]
            for resource in key[1]:
                permitted &= self._reach[resource]
            self._known[key] = self._numbers.setdefault(permitted, len(self._numbers))
        return self._known[key]

    @property
    def sets(self) -> tuple[frozenset[str], ...]:
        return tuple(self._numbers)

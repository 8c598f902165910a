"""A Slurm cluster as the planner sees it, as pure functions over the JSON of `scontrol show nodes` and the like.

What a job may have follows slurmctld: partitions of its account and QOS that are up, nodes that take jobs, features,
and reservations. Written for 24.11 and later; facts were measured on 24.11.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import unquote

from ClusterShell.NodeSet import NodeSet

from qtandem.core.inventory import Host, Placed, Policy, Shape, Waiting
from qtandem.core.managers import JobState
from qtandem.core.runs import JobId
from qtandem.slurm import features, jobs
from qtandem.slurm.jobs import Record
from qtandem.slurm.licences import read_request

# Flags of a node that takes no new job, or none but those of its reservation (which reservations say themselves).
_CLOSED = frozenset(
    {"DOWN", "DRAIN", "FAIL", "MAINTENANCE", "NOT_RESPONDING", "POWERING_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED",
     "INVALID", "INVALID_REG", "UNKNOWN", "FUTURE", "ERROR", "BLOCKED"}
)  # fmt: skip
# Reasons of jobs that wait for nodes or licences, as the planner sees them; others wait for something else.
_PLANNABLE = frozenset(
    {"None", "Priority", "Resources", "Licenses", "ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN"}
)
_PLACED = re.compile(r"qtandem:placed=(\S{1,12000})")
_TRES = re.compile(r"([\w/:.-]+)=(\d+)([KMGTP]?)")
_MB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
# Elements of one array beyond this number are not planned at the same moment.
MOST_ELEMENTS = 32


@dataclass(frozen=True, slots=True)
class Partition:
    """`accounts`, `qos`: those that may use it and those that may not, each empty for no rule."""

    name: str
    nodes: frozenset[str]
    up: bool
    accounts: tuple[frozenset[str], frozenset[str]]
    qos: tuple[frozenset[str], frozenset[str]]

    def takes(self, account: str, qos: str) -> bool:
        """Slurm compares account names without case."""
        rules = ((account.lower(), *self.accounts), (qos, *self.qos))
        return self.up and all((not allow or word in allow) and word not in deny for word, allow, deny in rules)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Times are Unix times."""

    name: str
    nodes: frozenset[str]
    starts: float
    ends: float


@dataclass(frozen=True, slots=True)
class Site:
    """What masks are made of. `features` and `gpu_types` are by node; `memory_mb` what nodes have."""

    partitions: Mapping[str, Partition]
    reservations: Mapping[str, Reservation]
    features: Mapping[str, frozenset[str]]
    gpu_types: Mapping[str, frozenset[str]]
    memory_mb: Mapping[str, int]

    def permitted(self, shape: Shape, now: float) -> frozenset[str] | None:
        """The nodes that such a job may have; None if its features cannot be read."""
        asked = [self.partitions[name] for name in shape.partitions if name in self.partitions]
        taking = [each.nodes for each in asked if each.takes(shape.account, shape.qos)]
        found = frozenset[str]().union(*taking) & self.features.keys()
        expression = features.parse(shape.features)
        if expression is None:
            return None
        # Few nodes differ in what they have, while a constraint may be long.
        meets = {kind: expression(kind) for kind in {self.features[node] for node in found}}
        found = frozenset(
            node
            for node in found
            if meets[self.features[node]]
            and self.memory_mb[node] >= shape.memory_mb
            and (not shape.gpu_type or shape.gpu_type in self.gpu_types[node])
        )
        found = self._reserved(shape, found, now) - frozenset(shape.excluded)
        return found & frozenset(shape.required) if shape.required else found

    def _reserved(self, shape: Shape, found: frozenset[str], now: float) -> frozenset[str]:
        """A reservation keeps its nodes for its own jobs, and from jobs that would not end before it begins."""
        mine = frozenset(shape.reservation.split(",")) if shape.reservation else frozenset[str]()
        until = now + (math.inf if shape.time_limit_s is None else shape.time_limit_s)
        for each in self.reservations.values():
            if each.nodes and each.name not in mine and each.ends > now and each.starts < until:
                found -= each.nodes
        own = [self.reservations[name] for name in mine if name in self.reservations]
        if mine:
            found &= frozenset[str]().union(*(each.nodes for each in own if each.starts <= now < each.ends))
        return found


def site(nodes: Sequence[Record], partitions: Sequence[Record], reservations: Sequence[Record]) -> Site:
    usable = [record for record in nodes if takes_jobs(record)]
    return Site(
        partitions={str(each["name"]): _partition(each) for each in partitions},
        reservations={str(each["name"]): _reservation(each) for each in reservations},
        features={str(each["name"]): frozenset(map(str, each.get("active_features") or ())) for each in usable},
        gpu_types={str(each["name"]): _gpu_types(str(each.get("gres") or "")) for each in usable},
        memory_mb={str(each["name"]): int(each.get("real_memory") or 0) for each in usable},
    )


def takes_jobs(record: Record) -> bool:
    """Whether slurmctld would give the node to a new job, now or when its jobs end."""
    return not _CLOSED & {str(word).upper() for word in _words(record.get("state"))}


def hosts(nodes: Sequence[Record], running: Mapping[str, int]) -> tuple[Host, ...]:
    return tuple(_host(record, running.get(str(record["name"]), 0)) for record in nodes if takes_jobs(record))


def running(records: Iterable[Record]) -> dict[str, int]:
    """How many running jobs each node has."""
    counts: dict[str, int] = {}
    for record in records:
        if jobs.state(record) in (JobState.RUNNING, JobState.SUSPENDED):
            for name in jobs.nodes(str(record.get("nodes") or "")):
                counts[name] = counts.get(name, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class Own:
    """What is ours in the records: the cluster's name, our licences, and the nodes that we have pinned jobs to."""

    cluster: str
    server: str
    names: Mapping[str, str]
    pins: Mapping[str, Sequence[str]]


def waiting(
    records: Iterable[Record], place: Site, own: Own, now: float
) -> tuple[tuple[Waiting, ...], tuple[frozenset[str], ...]]:
    """The pending jobs, an array's as so many as may run at once; and the masks that they number."""
    masks: dict[frozenset[str], int] = {}
    found: list[Waiting] = []
    for record in records:
        if jobs.state(record) is not JobState.PENDING:
            continue
        one = _waiting(record, own)
        permitted = place.permitted(_owners(one, own), now)
        if permitted is None and not one.skipped:
            one = replace(one, skipped=f"its features {one.shape.features} cannot be planned")
        mask = masks.setdefault(permitted or frozenset(), len(masks))
        found += _elements(record, replace(one, mask=mask))
    return tuple(found), tuple(masks)


def shape(record: Record) -> Shape:
    """What a job's record asks of nodes."""
    count = max(1, jobs.number(record.get("node_count")) or 1)
    tres = _tres(str(record.get("tres_req_str") or ""))
    limit = jobs.number(record.get("time_limit"))
    gpus = sum(amount for name, amount in tres.items() if name == "gres/gpu")
    return Shape(
        cpus=math.ceil(tres.get("cpu", jobs.number(record.get("cpus")) or 1) / count),
        memory_mb=_memory(record, tres, count),
        gpus=math.ceil(gpus / count),
        gpu_type=_gpu_type(record),
        nodes=count,
        exclusive="none" in {str(word).lower() for word in _words(record.get("shared"))},
        partitions=_split(record.get("partition")),
        account=str(record.get("account") or ""),
        qos=str(record.get("qos") or ""),
        features=str(record.get("features") or ""),
        reservation=str(record.get("resv_name") or ""),
        time_limit_s=None if limit is None else limit * 60,
        required=jobs.nodes(str(record.get("required_nodes") or "")),
        excluded=jobs.nodes(str(record.get("excluded_nodes") or "")),
    )


def placed(text: str) -> Placed | None:
    """What the submit hook noted in AdminComment, where no user can write."""
    match = _PLACED.search(text)
    policy, _, nodes = unquote(match[1]).partition(":") if match else ("", "", "")
    if policy not in ("advise", "exclude", "pin") or not nodes:
        return None
    return Placed(cast(Policy, policy), jobs.nodes(nodes))


def gpus(text: str) -> tuple[int, str]:
    """How many GPUs `gres/gpu:a100:2,gres:qpu:1` asks for, and of which type (empty: any)."""
    found = re.findall(r"(?:^|,)(?:gres[/:])?gpu(?:[:=]([A-Za-z][\w.-]*))?(?:[:=](\d+))?(?=,|$)", text)
    return sum(int(count or 1) for _, count in found), next((kind for kind, _ in found if kind), "")


def fold(nodes: Iterable[str]) -> str:
    """Node names as Slurm writes them: n[1-3]."""
    return str(NodeSet.fromlist(list(nodes)))


def _waiting(record: Record, own: Own) -> Waiting:
    asked, identity = shape(record), jobs.job_id(record, own.cluster)
    noted = placed(str(record.get("admin_comment") or ""))
    one = Waiting(
        id=identity,
        uid=int(record.get("user_id") or 0),
        user=str(record.get("user_name") or ""),
        shape=asked,
        mask=0,
        priority=jobs.number(record.get("priority")) or 0,
        nice=int(record.get("nice") or 0),
        submitted_at=float(jobs.number(record.get("submit_time")) or 0),
        eligible_at=float(jobs.number(record.get("eligible_time")) or 0),
        grants=read_request(str(record.get("licenses") or ""), own.server, own.names),
        skipped=_skipped(record, asked),
        placed=noted,
    )
    several = asked.nodes > 1 or bool(record.get("array_task_string"))
    return replace(one, fixed=several or bool(_owners(one, own).required))


def _owners(one: Waiting, own: Own) -> Shape:
    """What the job's owner asks for: without the nodes that it is pinned to or kept from by us."""
    asked, noted = one.shape, one.placed
    ours = [tuple(own.pins.get(str(one.id), ()))]
    if noted is not None and noted.policy == "pin":
        ours.append(noted.nodes)
    barred = noted.nodes if noted is not None and noted.policy == "exclude" else ()
    return replace(
        asked,
        required=() if asked.required in ours else asked.required,
        excluded=tuple(node for node in asked.excluded if node not in barred),
    )


def _skipped(record: Record, asked: Shape) -> str:
    reason = str(record.get("state_reason") or "None")
    if record.get("hold") or jobs.number(record.get("priority")) == 0:
        return "it is held"
    if reason not in _PLANNABLE:
        return f"it waits for {reason}"
    if jobs.number(record.get("het_job_id")):
        return "it is part of a heterogeneous job"
    if asked.nodes > 1 and asked.required:
        return "it names nodes for a part of it"
    return ""


def _elements(record: Record, one: Waiting) -> list[Waiting]:
    """One for each element of a pending array that may run now."""
    indices = jobs.pending_indices(record)
    if indices is None or one.skipped:
        return [one]
    at_once = jobs.number(record.get("array_max_tasks")) or len(indices)
    chosen = list(indices.striter())[: min(at_once, MOST_ELEMENTS)]
    return [replace(one, id=JobId("slurm", one.id.cluster, one.id.job, int(index))) for index in chosen]


def _host(record: Record, count: int) -> Host:
    tres, used = _tres(str(record.get("tres") or "")), _tres(str(record.get("tres_used") or ""))
    cpus = jobs.number(record.get("effective_cpus")) or int(record.get("cpus") or 0)
    memory = int(record.get("real_memory") or 0) - int(record.get("specialized_memory") or 0)
    gpus = tres.get("gres/gpu") or _gres_count(str(record.get("gres") or ""))
    taken = used.get("gres/gpu") or _gres_count(str(record.get("gres_used") or ""))
    watts = jobs.number((record.get("energy") or {}).get("current_watts"))
    return Host(
        name=str(record["name"]),
        cpus=cpus,
        memory_mb=memory,
        gpus=gpus,
        free_cpus=max(0, cpus - int(record.get("alloc_cpus") or 0)),
        free_memory_mb=max(0, memory - int(record.get("alloc_memory") or 0)),
        free_gpus=max(0, gpus - taken),
        running=count or int(bool(record.get("alloc_cpus"))),
        watts=float(watts) if watts else None,
    )


def _partition(record: Record) -> Partition:
    accounts, qos = record.get("accounts") or {}, record.get("qos") or {}
    state = {str(word).upper() for word in _words((record.get("partition") or {}).get("state"))}
    return Partition(
        name=str(record["name"]),
        nodes=frozenset(jobs.nodes(str((record.get("nodes") or {}).get("configured") or ""))),
        up="UP" in state,
        accounts=(_lower(accounts.get("allowed")), _lower(accounts.get("deny"))),
        qos=(frozenset(_split(qos.get("allowed"))), frozenset(_split(qos.get("deny")))),
    )


def _reservation(record: Record) -> Reservation:
    return Reservation(
        name=str(record["name"]),
        nodes=frozenset(jobs.nodes(str(record.get("node_list") or ""))),
        starts=float(jobs.number(record.get("start_time")) or 0),
        ends=float(jobs.number(record.get("end_time")) or math.inf),
    )


def _memory(record: Record, tres: Mapping[str, int], count: int) -> int:
    """Of each node, in MB; 0 where the job asks for a node's whole memory only since it asks for none."""
    if not jobs.number(record.get("memory_per_node")) and not jobs.number(record.get("memory_per_cpu")):
        return 0
    return math.ceil(tres.get("mem", 0) / count)


def _tres(text: str) -> dict[str, int]:
    """`cpu=4,mem=100M,gres/gpu=2` in numbers, memory in MB."""
    return {name: math.ceil(int(amount) * _MB[unit]) for name, amount, unit in _TRES.findall(text)}


def _gres_count(text: str) -> int:
    """The GPUs in `gpu:a100:2(S:0-1),gpu:2`."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[\w.-]+)??:(\d+)", text))


def _gpu_types(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"(?:^|,)gpu:([A-Za-z][\w.-]*)", text))


def _gpu_type(record: Record) -> str:
    for field in ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"):
        match = re.search(r"gres[/:]gpu[:=]([A-Za-z][\w.-]*)", str(record.get(field) or ""))
        if match:
            return match[1]
    return ""


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else re.split(r"[,+]", str(value or ""))


def _split(value: object) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(value or "").split(",") if word.strip())


def _lower(value: object) -> frozenset[str]:
    return frozenset(word.lower() for word in _split(value))

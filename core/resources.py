"""Resources and classes: what the admin configured, and how a request finds them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from ClusterShell.NodeSet import NodeSet, NodeSetException

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.providers.base import SESSIONLESS, ProviderSpec
from qtandem.core.requests import ANY, SPELLING, Item, Request, Value
from qtandem.core.sources import Source

NATIVE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,38}")

Effect = Literal["open", "closed"]
Owner = Literal["site", "user", "either"]
# What makes up one user's credential at a vendor, all of it, so that nobody mixes theirs with the site's.
USER_KEYS: Mapping[str, tuple[str, ...]] = {
    "ibm-quantum-compute-service": ("QRMI_IBM_QCS_IAM_APIKEY", "QRMI_IBM_QCS_SERVICE_CRN"),
    "qiskit-runtime-service": ("QRMI_IBM_QRS_IAM_APIKEY", "QRMI_IBM_QRS_SERVICE_CRN"),
    "ibm-quantum-system": ("QRMI_IBM_QS_IAM_APIKEY", "QRMI_IBM_QS_SERVICE_CRN"),
    "iqm-server": ("QRMI_IQM_ISA_TOKEN",),
    "alice-bob-felis": ("QRMI_AB_FELIS_API_KEY",),
    "oqtopus": ("QRMI_OQTOPUS_API_TOKEN",),
    "braket": ("aws_access_key_id", "aws_secret_access_key", "s3_bucket"),
}
CLOSED: Mapping[Availability, Effect] = MappingProxyType(
    {kind: "open" if kind is Availability.ONLINE else "closed" for kind in Availability}
)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a resource; an empty set of all three means everybody."""

    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()

    def permits(self, user: str, account: str | None) -> bool:
        if not self.users and not self.accounts:
            return True
        return user in self.users or (account is not None and account in self.accounts)


@dataclass(frozen=True, slots=True)
class Reach:
    """From where a resource can be used; empty means from everywhere. `nodes` are host names."""

    partitions: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, partitions: Iterable[str], nodes: str) -> Reach:
        """`nodes` is a node set such as `c[1-4],gpu7`; raises ValueError if it is none."""
        try:
            return cls(frozenset(partitions), frozenset(NodeSet(nodes)))
        except NodeSetException as error:
            raise ValueError(str(error)) from None

    def blocks(self, partitions: Iterable[str], nodes: Iterable[str]) -> str | None:
        """Why the places cannot reach it, or None. Places that are not known yet block nothing."""
        outside = [name for name in partitions if self.partitions and name not in self.partitions]
        if outside:
            return f"partition {', '.join(outside)}"
        outside = [name for name in nodes if self.nodes and name not in self.nodes]
        return f"node {', '.join(outside)}" if outside else None


@dataclass(frozen=True, slots=True)
class Resource:
    """A named QPU or simulator.

    `native` is its name towards shells and managers. `slots` tasks can be under way at once. `price` is per
    task in `currency`. `settings` are the provider's keys without prefix and may hold secrets; `observing` are
    those that differ for observing. `sources` and `observe_sources` tell where the secrets among them come from.
    `max_tasks`, `max_tasks_lease`, `task_order` and `priority` are the rules of `daemons.turns`.
    `template` is the dynamic resource that one was made from, `filter` what a dynamic one takes.
    `owner` is whose key executes; `user_keys` are what a user registers for that.
    """

    name: str
    type: str
    native: str
    slots: int = 1
    reach: Reach = Reach()
    access: Access = Access()
    credentials: Literal["brokered", "direct"] = "brokered"
    max_queue: int | None = None
    max_wait_s: float | None = None
    price: float | None = None
    currency: str = ""
    vendor: str = ""
    qubits: int | None = None
    max_shots: int | None = None
    simulator: bool = False
    poll_s: float = 60.0
    max_tasks: int | None = None
    max_tasks_lease: int | None = None
    task_order: Literal["fair", "priority", "arrival"] = "fair"
    priority: Mapping[str, int] = field(default_factory=dict)
    effects: Mapping[Availability, Effect] = field(default_factory=lambda: CLOSED)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    observing: Mapping[str, str] = field(default_factory=dict, repr=False)
    sources: Mapping[str, Source] = field(default_factory=dict)
    observe_sources: Mapping[str, Source] = field(default_factory=dict)
    owner: Owner = "site"
    user_keys: tuple[str, ...] = ()
    filter: str = ""
    template: str = ""
    has_provider: bool = True

    def spec(self) -> ProviderSpec:
        return ProviderSpec(self.name, self.type, self.settings, self.slots)

    def observe_spec(self) -> ProviderSpec:
        """With the credential that observes, where the site has one of its own for that."""
        return ProviderSpec(self.name, self.type, {**self.settings, **self.observing}, self.slots)

    def registered_keys(self) -> tuple[str, ...]:
        """The keys that a user registers; none where only the site's credential is used."""
        return () if self.owner == "site" else self.user_keys or USER_KEYS.get(self.type, ())

    @property
    def sessionless(self) -> bool:
        """Whether others' work can come between two tasks at the vendor, as far as is known."""
        return self.type in SESSIONLESS

    def fixed(self, key: str) -> Value | None:
        """The value that can never change for a constraint's key, or None where it is not fixed or known."""
        known: dict[str, Value | None] = {
            "qubits": self.qubits,
            "shots": self.max_shots,
            "cost": self.price,
            "vendor": self.vendor or None,
            "name": self.name,
            "simulator": self.simulator,
        }
        return known.get(key)


def native_name(name: str) -> str:
    """A name that shells and managers accept, made from any configured name; the same for the same input."""
    if NATIVE.fullmatch(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not re.match(r"[A-Za-z_]", plain):
        plain = "q" + plain
    return plain[:39]


class UnknownName(QtandemError):
    """`unknown-resource`; `near`: names like it; `spelling`: what the user types for one, with {} in its place."""

    def __init__(self, name: str, near: Sequence[str], spelling: str = SPELLING) -> None:
        self.name, self.near = name, near
        hint = f"Did you mean {' or '.join(near)}? Write {spelling.format(near[0])}." if near else None
        super().__init__("unknown-resource", f"There is no QPU or class named {name!r}", remedy=hint)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All resources and classes of a site, in the order of configuration.

    `templates` are the dynamic resources: no job can have one, but its devices become resources once they are known.
    """

    resources: Mapping[str, Resource] = field(default_factory=dict)
    classes: Mapping[str, Request] = field(default_factory=dict)
    templates: Mapping[str, Resource] = field(default_factory=dict)

    @property
    def natives(self) -> dict[str, str]:
        """Configured name to native name."""
        return {resource.name: resource.native for resource in self.resources.values()}

    def find(self, name: str) -> Resource | None:
        """By configured or native name."""
        if name in self.resources:
            return self.resources[name]
        return next((resource for resource in self.resources.values() if resource.native == name), None)

    def get(self, name: str) -> Resource:
        """By configured or native name; raises `unknown-resource` with near misses."""
        found = self.find(name)
        if found is None:
            raise self._unknown(name)
        return found

    def expanded(self, request: Request) -> Request:
        """The request with each class replaced by what it stands for."""
        items: list[Item] = []
        for item in request.items:
            meaning = self.classes.get(item.choices[0]) if len(item.choices) == 1 else None
            items.extend(_merge(item, inner) for inner in meaning.items) if meaning else items.append(item)
        return Request(tuple(items))

    def candidates(self, item: Item) -> tuple[Resource, ...]:
        """The resources that an (expanded) item names; raises `unknown-resource`."""
        if item.choices == (ANY,):
            return tuple(self.resources.values())
        return tuple(self.get(name) for name in item.choices)

    def _unknown(self, name: str) -> QtandemError:
        known = [*self.resources, *self.classes]
        return UnknownName(name, difflib.get_close_matches(name, known, n=3, cutoff=0.6))


def _merge(outer: Item, inner: Item) -> Item:
    """An item of a class with the user's own additions; what the user wrote stands beside the class's words."""
    slots = outer.slots if outer.slots != 1 else inner.slots
    return Item(inner.choices, slots, (*inner.constraints, *outer.constraints), outer.by or inner.by)

"""Who may say what: one table, asked before anything is done.

The table is `TABLE`; `render()` writes it for ARCHITECTURE.md.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among

ROOT = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end: the uid that the kernel (or a relay, for its host) vouches for, and the host.

    `local` is True on the daemon's own socket, False for a call that a relay passed on.
    """

    uid: int
    host: str
    local: bool = True


class Event(StrEnum):
    """What a call does, as far as the right to do it goes."""

    SUBMIT = "submit"
    START = "start"
    END = "end"
    ENVIRONMENT = "environment"
    TASK = "task"
    CLAIM = "claim"
    CREDENTIAL = "register, list, remove a key"
    PLAN = "plan the cluster, apply a plan"
    READ_OWN = "read runs, leases, tasks, usage"
    EXPLAIN = "explain"
    READ = "read resources, facts, names, health"


class Right(StrEnum):
    """Each column of the table: a relation of the caller to the event."""

    SERVICE = "root or the manager's service user, on a control host"
    NODE = "root on a node of the run"
    OWNER = "the uid it is about"
    ANYONE = "any other uid"


ALL, NONE = "yes", "no"
# Where a manager's hooks run on the nodes; what they say of a job is then asked of the manager itself.
BY_HOOKS = "where hooks run on nodes"
BY_OWNER = "where hooks run as the job's user"
TABLE: Mapping[Event, Mapping[Right, str]] = {
    Event.SUBMIT: {Right.SERVICE: "any user", Right.NODE: NONE, Right.OWNER: "advisory", Right.ANYONE: NONE},
    Event.START: {Right.SERVICE: ALL, Right.NODE: BY_HOOKS, Right.OWNER: BY_OWNER, Right.ANYONE: NONE},
    Event.END: {Right.SERVICE: ALL, Right.NODE: BY_HOOKS, Right.OWNER: BY_OWNER, Right.ANYONE: NONE},
    Event.ENVIRONMENT: {Right.SERVICE: ALL, Right.NODE: ALL, Right.OWNER: ALL, Right.ANYONE: NONE},
    Event.TASK: {Right.SERVICE: "root", Right.NODE: NONE, Right.OWNER: ALL, Right.ANYONE: NONE},
    Event.CLAIM: {Right.SERVICE: ALL, Right.NODE: NONE, Right.OWNER: ALL, Right.ANYONE: NONE},
    Event.CREDENTIAL: {Right.SERVICE: NONE, Right.NODE: NONE, Right.OWNER: ALL, Right.ANYONE: NONE},
    Event.PLAN: {Right.SERVICE: ALL, Right.NODE: NONE, Right.OWNER: NONE, Right.ANYONE: NONE},
    Event.READ_OWN: {Right.SERVICE: ALL, Right.NODE: NONE, Right.OWNER: ALL, Right.ANYONE: NONE},
    Event.EXPLAIN: {Right.SERVICE: ALL, Right.NODE: NONE, Right.OWNER: ALL, Right.ANYONE: NONE},
    Event.READ: {Right.SERVICE: ALL, Right.NODE: ALL, Right.OWNER: ALL, Right.ANYONE: ALL},
}


@dataclass(frozen=True, slots=True)
class Service:
    """Whom one manager's events may come from: uids on control hosts (empty: the daemon's host only)."""

    uids: frozenset[int]
    hosts: frozenset[str]


class Authority:
    """Answers `may this caller do that` from the table and the configured service users.

    The daemon's own uid counts as a service user on the daemon's host: it owns the store anyway, and
    without root it is the one uid there is.
    """

    def __init__(
        self, services: Mapping[str, Service], admins: Iterable[str] = (), login_hosts: Iterable[str] = ()
    ) -> None:
        self._services = services
        self._trusted_hosts = frozenset(login_hosts).union(*(each.hosts for each in services.values()))
        self._admins = service(admins, ()).uids
        self._own = os.geteuid()

    def is_service(self, caller: Caller, manager: str | None = None) -> bool:
        """Whether the caller is root or a service user of the manager (of any, for None) on a control host."""
        if manager is not None and manager not in self._services:
            return self._trusted_here(caller)
        chosen = [self._services[manager]] if manager is not None else list(self._services.values())
        return self._trusted_here(caller) or any(self._from(service, caller) for service in chosen)

    def sees_all(self, caller: Caller) -> bool:
        """Whether the caller may read everybody's runs, leases, tasks and usage: service users and admins."""
        return self.is_service(caller) or caller.uid in self._admins

    def require(
        self,
        event: Event,
        caller: Caller,
        *,
        manager: str | None = None,
        owner: int | None = None,
        nodes: Iterable[str] | None = None,
        on_nodes: bool = False,
    ) -> Right:
        """The right by which the caller may do `event` to what `owner` owns; raises `not-authorised`/`not-yours`.

        `nodes` are those of the run that it is about; None for what is about no run. `on_nodes`: the manager's
        hooks run there. `owner` is None where what a user says of its own counts for nothing.
        """
        rights = TABLE[event]
        trusted = caller.uid == ROOT if rights[Right.SERVICE] == "root" else rights[Right.SERVICE] != NONE
        if trusted and self.is_service(caller, manager):
            return Right.SERVICE
        if event in (Event.READ_OWN, Event.EXPLAIN) and caller.uid in self._admins:
            return Right.SERVICE
        node = rights[Right.NODE] == ALL or (on_nodes and rights[Right.NODE] == BY_HOOKS)
        if node and caller.uid == ROOT and among(caller.host, nodes or ()):
            return Right.NODE
        if rights[Right.OWNER] != NONE and owner is not None and caller.uid == owner:
            self._believe(caller, nodes)
            return Right.OWNER
        if rights[Right.ANYONE] != NONE:
            return Right.ANYONE
        if rights[Right.OWNER] != NONE and (owner is not None or rights[Right.OWNER] != BY_OWNER):
            raise QtandemError("not-yours", f"uid {caller.uid} may not do this for uid {owner} ({event})")
        if event is Event.PLAN:
            remedy = "It takes root or the manager's service user, on the daemon's host or one of control_hosts."
            raise QtandemError("not-authorised", f"uid {caller.uid} on {caller.host} may not {event}", remedy=remedy)
        raise QtandemError("not-authorised", f"uid {caller.uid} on {caller.host} may not report {event}")

    def _believe(self, caller: Caller, nodes: Iterable[str] | None) -> None:
        """A relay could make its callers' uids up: it is believed about runs that its node has a part in."""
        if caller.local or nodes is None or among(caller.host, nodes) or among(caller.host, self._trusted_hosts):
            return
        raise QtandemError(
            "not-yours",
            f"The run is not on {caller.host}",
            remedy="Do it on a node of the run. Admins: daemon.login_hosts lists hosts that may act for any run.",
        )

    def _trusted_here(self, caller: Caller) -> bool:
        return caller.local and caller.uid in (ROOT, self._own)

    def _from(self, service: Service, caller: Caller) -> bool:
        if caller.uid != ROOT and caller.uid not in service.uids:
            return False
        return caller.local if not service.hosts else caller.local or among(caller.host, service.hosts)


def service(users: Iterable[str], hosts: Iterable[str]) -> Service:
    """Service users by name or number; a name that this host does not know can report nothing."""
    return Service(frozenset(uid for uid in map(_uid, users) if uid is not None), frozenset(hosts))


def render() -> str:
    """The table as Markdown."""
    head = "| event | " + " | ".join(Right) + " |"
    rows = [f"| {event} | " + " | ".join(TABLE[event][right] for right in Right) + " |" for event in Event]
    return "\n".join([head, "| --- " * (len(Right) + 1) + "|", *rows]) + "\n"


def _uid(user: str) -> int | None:
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None

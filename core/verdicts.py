"""The verdict: may this job have what it asks for, and is a resource open. Pure; facts and time come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Fact
from qtandem.core.managers import Grant
from qtandem.core.requests import SPELLING, Constraint, Item, Request, Value
from qtandem.core.resources import Catalog, Resource, UnknownName


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and from where. Empty `partitions` or `nodes` means that the manager chooses.

    `registered` are the resources for which the user has a key of their own; `spelling` is what the user types for a
    request, with {} in its place.
    """

    uid: int
    user: str
    account: str | None = None
    partitions: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    registered: frozenset[str] = frozenset()
    spelling: str = SPELLING

    def types(self, request: object) -> str:
        return self.spelling.format(request)


@dataclass(frozen=True, slots=True)
class Admit:
    """The grants to write into the job; `canonical` is the request as it was understood.

    `movable`: other resources would do as well, should one of them open earlier. `warning` is for the user, in
    sentences.
    """

    grants: tuple[Grant, ...]
    canonical: str
    movable: bool = False
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Openness:
    """Whether a job could lease a slot now: `free` slots, and the reason in a sentence if there is none."""

    open: bool
    free: int
    reason: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What the daemon knows at one time: newest facts and leased slots by resource name."""

    facts: Mapping[str, Fact]
    leased: Mapping[str, int]
    now: float

    def openness(self, resource: Resource) -> Openness:
        return openness(resource, self.facts.get(resource.name), self.leased.get(resource.name, 0), self.now)


def submit(
    request: Request | None, native: Sequence[Grant], asker: Asker, catalog: Catalog, situation: Situation
) -> Admit | None:
    """The verdict on a submission: None where the job asks for no QPU.

    `native` are the grants that the job names in the manager's own field; together with a request they must
    mean the same. Raises a `QtandemError` of the user's fault that says what to type instead.
    """
    if request is None:
        if not native:
            return None
        request = Request(tuple(Item((grant.resource,), grant.slots) for grant in native))
        native = ()
    items = catalog.expanded(request).items
    try:
        grants = tuple(_grant(item, asker, catalog, situation) for item in items)
    except UnknownName as error:
        raise UnknownName(error.name, error.near, asker.spelling) from None
    names = [grant.resource for grant in grants]
    if len(set(names)) < len(names):
        raise QtandemError("bad-request", f"{request} comes to the same QPU twice", remedy="Ask for slots: name:2.")
    if native and set(native) != set(grants):
        asked = ", ".join(f"{grant.resource}:{grant.slots}" for grant in native)
        message = f"{asker.types(request)} and {asked}, which the job asks for too, do not mean the same"
        raise QtandemError("ambiguous", message, remedy=f"Write {asker.types(request)} alone.")
    movable = not native and any(len(catalog.candidates(item)) > 1 for item in items)
    warnings = (
        _warning(item, catalog.get(grant.resource), asker, catalog) for item, grant in zip(items, grants, strict=True)
    )
    return Admit(grants, str(request), movable, " ".join(filter(None, warnings)))


def start(grants: Sequence[Grant], asker: Asker, catalog: Catalog) -> None:
    """The verdict on a run whose nodes are known: raises if it may not lease what its job record names."""
    for grant in grants:
        resource = catalog.get(grant.resource)
        refusal = _never(resource, Item((resource.name,), grant.slots), asker)
        if refusal:
            raise refusal


def openness(resource: Resource, fact: Fact | None, leased: int, now: float) -> Openness:
    """Whether a slot of the resource is free, from its newest fact (None: not seen yet) and our own leases."""
    total, closed = closed_slots(resource, fact, now)
    free = max(0, total - closed - leased)
    if closed >= total:
        return Openness(False, 0, _closed_because(resource, fact, now))
    if free == 0:
        return Openness(False, 0, f"all {total} slots are leased" if total > 1 else "its slot is leased")
    return Openness(True, free, f"open, {free} of {total} slots free")


def closed_slots(resource: Resource, fact: Fact | None, now: float) -> tuple[int, int]:
    """Total slots, and how many of them are kept from jobs by the fact (all of them: closed)."""
    total = resource.slots
    seen = fact.seen_as(now) if fact else Availability.UNKNOWN
    if resource.effects[seen] == "closed":
        return total, total
    if fact is None or seen is not Availability.ONLINE:
        return total, 0
    if resource.max_queue is not None and fact.queue is not None and fact.queue > resource.max_queue:
        return total, total
    if resource.max_wait_s is not None and fact.wait_s is not None and fact.wait_s > resource.max_wait_s:
        return total, total
    if fact.free_slots is not None:
        return total, max(0, total - fact.free_slots)
    return total, 0


def _closed_because(resource: Resource, fact: Fact | None, now: float) -> str:
    if fact is None:
        return "not seen yet"
    said = f" ({fact.reason})" if fact.reason else ""
    if fact.stale(now):
        return f"stale: last seen {duration(fact.age_s(now))} ago as {fact.availability}{said}"
    if fact.availability is not Availability.ONLINE:
        back = f", expected back in {duration(fact.opens_at - now)}" if fact.opens_at and fact.opens_at > now else ""
        return f"{fact.availability}{said}{back}"
    if resource.max_queue is not None and fact.queue is not None and fact.queue > resource.max_queue:
        return f"queue of {fact.queue}, closed above {resource.max_queue}"
    if resource.max_wait_s is not None and fact.wait_s is not None and fact.wait_s > resource.max_wait_s:
        return f"wait of about {duration(fact.wait_s)}, closed above {duration(resource.max_wait_s)}"
    return f"others hold all {resource.slots} slots{said}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`: rounded for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _grant(item: Item, asker: Asker, catalog: Catalog, situation: Situation) -> Grant:
    if item.by == "score":
        raise QtandemError("needs-selection", f"by=score in {item} cannot be used yet")
    candidates = catalog.candidates(item)
    refusals: list[QtandemError] = []
    fitting: list[Resource] = []
    for resource in candidates:
        refusal = _never(resource, item, asker) or _unfit(resource, item, asker, situation)
        if refusal:
            refusals.append(refusal)
        else:
            fitting.append(resource)
    if not fitting:
        raise _best_refusal(item, refusals, asker, catalog, situation)
    return Grant(_choose(fitting, item, situation).name, item.slots)


def _choose(fitting: Sequence[Resource], item: Item, situation: Situation) -> Resource:
    def rank(resource: Resource) -> tuple[bool, bool, float]:
        unsuited = item.loop and resource.sessionless
        fact = situation.facts.get(resource.name)
        openness = situation.openness(resource)
        if item.by == "cost":
            return unsuited, False, resource.price if resource.price is not None else float("inf")
        if item.by == "queue":
            return unsuited, False, _or_inf(fact.queue if fact else None)
        return unsuited, openness.free < item.slots, _or_inf(fact.wait_s if fact else None)

    return min(fitting, key=rank)


def _warning(item: Item, resource: Resource, asker: Asker, catalog: Catalog) -> str:
    """What a user whose loop goes to a vendor without sessions must expect, and what to write instead."""
    if not (item.loop and resource.sessionless):
        return ""
    with_sessions = (each for each in catalog.resources.values() if not each.sessionless and not each.simulator)
    fitting = (each.name for each in with_sessions if not _never(each, Item((each.name,), item.slots), asker))
    better = next(fitting, "")
    instead = f"Write {asker.types(f'{better}:loop=true')}, which has them, or send" if better else "Send"
    return (
        f"{resource.name} has no sessions at its vendor: other people's work may come between the tasks of a loop. "
        f"{instead} many circuits in one task."
    )


def _or_inf(number: float | None) -> float:
    return float("inf") if number is None else float(number)


def _never(resource: Resource, item: Item, asker: Asker) -> QtandemError | None:
    """Why this resource can never serve this asker, whatever its facts."""
    if not resource.has_provider:
        return QtandemError("no-provider", f"{resource.name} has the type {resource.type}, which has no provider")
    if not resource.access.permits(asker.user, asker.account):
        who = f"user {asker.user}" + (f", account {asker.account}" if asker.account else "")
        return QtandemError("not-allowed", f"{who} may not use {resource.name}")
    if resource.owner == "user" and resource.name not in asker.registered:
        message = f"{resource.name} executes with your own key, and you have registered none"
        return QtandemError("no-credential", message, remedy=f"qtandem credentials add {resource.name}")
    if item.slots > resource.slots:
        message = f"{item.slots} slots of {resource.name} are asked for; it has {resource.slots}"
        most = asker.types(f"{resource.name}:{resource.slots}")
        return QtandemError("too-many-slots", message, remedy=f"Write {most} at most.")
    place = resource.reach.blocks(asker.partitions, asker.nodes)
    if place:
        allowed = ", ".join(sorted(resource.reach.partitions)) or ", ".join(sorted(resource.reach.nodes))
        message = f"{resource.name} cannot be reached from {place}"
        return QtandemError("unreachable", message, remedy=f"It is reached from: {allowed}.")
    return None


def _unfit(resource: Resource, item: Item, asker: Asker, situation: Situation) -> QtandemError | None:
    for constraint in item.constraints:
        if constraint.met_by(_value(resource, constraint, situation)) is False and not _passing(constraint):
            have = _value(resource, constraint, situation)
            most = asker.types(f"{resource.name}:{constraint.key}={have}")
            remedy = f"Write {most} or less." if constraint.op == ">=" else None
            message = f"{resource.name} has {constraint.key} {have}, not {constraint}"
            return QtandemError("impossible", message, remedy=remedy)
    return None


def _passing(constraint: Constraint) -> bool:
    """A constraint whose value changes with time is waited for, not refused."""
    return constraint.key in ("queue", "wait")


def _value(resource: Resource, constraint: Constraint, situation: Situation) -> Value | None:
    fact = situation.facts.get(resource.name)
    calibration = fact.calibration if fact else None
    if constraint.key == "queue":
        return fact.queue if fact else None
    if constraint.key == "wait":
        return fact.wait_s if fact else None
    if constraint.key == "error":
        return calibration.two_qubit_error if calibration else None
    value = resource.fixed(constraint.key)
    if value is None and calibration is not None:
        return {"qubits": calibration.qubits, "shots": calibration.max_shots}.get(constraint.key)
    return value


def _best_refusal(
    item: Item, refusals: Sequence[QtandemError], asker: Asker, catalog: Catalog, situation: Situation
) -> QtandemError:
    """One refusal for a single candidate; for several, all reasons in one message."""
    if len(refusals) == 1:
        only = refusals[0]
        if only.code == "not-allowed":
            return QtandemError(only.code, only.message, remedy=_others(item, asker, catalog, situation))
        return only
    if not refusals:
        return QtandemError("unknown-resource", f"No QPU is configured that {item} could mean")
    codes = {refusal.code for refusal in refusals}
    reasons = "; ".join(refusal.message for refusal in refusals[:6])
    more = f"; and {len(refusals) - 6} more" if len(refusals) > 6 else ""
    code = codes.pop() if len(codes) == 1 else "impossible"
    remedy = _others(item, asker, catalog, situation)
    return QtandemError(code, f"None of the choices for {item} will do: {reasons}{more}", remedy=remedy)


def _others(item: Item, asker: Asker, catalog: Catalog, situation: Situation) -> str | None:
    """What this asker could write instead: what would take as many slots from the same place, open ones first."""
    fit = [each for each in catalog.resources.values() if _never(each, Item((each.name,), item.slots), asker) is None]
    if not fit:
        return None
    fit.sort(key=lambda resource: not situation.openness(resource).open)
    names = [each.name for each in fit]
    slots = "" if item.slots == 1 else f":{item.slots}"
    more = ", …" if len(names) > 4 else ""
    return f"Write for example {asker.types(names[0] + slots)}; you may use {', '.join(names[:4])}{more}."

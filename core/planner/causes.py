"""Why a workload is not admitted: the constraint that stops it, with the smallest set of causes that was found."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.fixed import fixed_packing
from qtandem.core.planner.instance import DIMENSIONS, Workload
from qtandem.core.planner.plan import Cause
from qtandem.core.planner.problem import Problem
from qtandem.core.planner.state import Search

MOST_EXPLAINED = 50
RULES = ("mask", "zone", "posture", *DIMENSIONS)


def find_causes(search: Search, deadline: Deadline) -> list[Cause]:
    """One cause for each of the first rejected workloads, as far as the time goes."""
    p = search.problem
    rejected = np.flatnonzero(search.assign < 0)[:MOST_EXPLAINED]
    allowed = p.allowed()
    found = []
    for i in rejected:
        limit = deadline.part(max(0.02, deadline.left() / 5))
        found.append(_alone(p, int(i)) or _backend(search, int(i)) or _together(search, allowed, int(i), limit))
    return found


def _alone(p: Problem, i: int) -> Cause | None:
    """A constraint that stops the workload even in an empty cluster: the smallest set of rules that does."""
    w = p.instance.workloads[i]
    rules = {rule: _permitted(p, w, rule) for rule in RULES}
    for size in range(1, len(rules) + 1):
        for names in combinations(rules, size):
            if not np.all([rules[name] for name in names], axis=0).any():
                text = " and ".join(_words(w, name) for name in names)
                return Cause(w.name, "+".join(names), (w.name,), f"no node has {text}")
    if p.quantum[i] >= 0 and not (p.backend_costs[p.quantum[i]] >= 0).any():
        return Cause(w.name, "backend", (w.name,), "no backend is eligible")
    return None


def _permitted(p: Problem, w: Workload, rule: str) -> list[bool]:
    """Which nodes this one rule leaves for the workload."""
    nodes = p.instance.nodes
    if rule == "mask":
        return [w.mask is None or n.name in p.instance.masks[w.mask] for n in nodes]
    if rule == "zone":
        return [w.zone is None or n.zone == w.zone for n in nodes]
    if rule == "posture":
        return [n.posture >= w.posture for n in nodes]
    k = DIMENSIONS.index(rule)
    return [n.capacity[k] >= w.demand[k] for n in nodes]


def _words(w: Workload, rule: str) -> str:
    if rule == "mask":
        return "the manager's permission"
    if rule in ("zone", "posture"):
        return f"{rule} {getattr(w, rule)}"
    return f"{rule} {w.demand[DIMENSIONS.index(rule)]}"


def _backend(search: Search, i: int) -> Cause | None:
    """Too few slots: the eligible backends and the workloads that hold them."""
    p = search.problem
    if p.quantum[i] < 0:
        return None
    eligible = np.flatnonzero((p.backend_costs[p.quantum[i]] >= 0).any(axis=0))
    holders = [int(h) for h in p.quantum_jobs if search.backend[h] in eligible]
    used = sum(int(p.quantum_slots[p.quantum[h]]) for h in holders)
    if used + int(p.quantum_slots[p.quantum[i]]) <= int(p.slots[eligible].sum()):
        return None
    names = [p.instance.backends[b].name for b in eligible]
    involved = tuple(p.instance.workloads[h].name for h in holders)
    return Cause(p.instance.workloads[i].name, "slots", involved, f"all slots of {', '.join(names)} are taken")


def _together(search: Search, allowed: NDArray[np.bool_], i: int, limit: Deadline) -> Cause:
    """Capacity: with whom it competes. The admitted workloads that can only use its nodes, cut down while it holds."""
    p = search.problem
    w = p.instance.workloads[i]
    gang = np.flatnonzero(p.unit == p.unit[i])
    mine = allowed[gang].any(axis=0)
    rivals = np.flatnonzero((search.assign >= 0) & ~(allowed & ~mine).any(axis=1))
    items = np.concatenate([gang, rivals])
    if not _impossible(p, allowed, items, limit):
        constraint = "gang" if len(gang) > 1 else "capacity"
        return Cause(w.name, constraint, (), "what is free lies scattered, or goes to work of higher priority")
    step = max(1, len(rivals) // 2)
    while step >= 1 and not limit.expired():
        position = len(gang)
        while position < len(items) and not limit.expired():
            fewer = np.delete(items, np.arange(position, min(position + step, len(items))))
            if _impossible(p, allowed, fewer, limit):
                items = fewer
            else:
                position += step
        step = step // 2 if step > 1 else 0
    names = tuple(p.instance.workloads[r].name for r in items if r != i)
    tight = _tightest(p, allowed, items)
    return Cause(w.name, "capacity", names, f"its nodes cannot hold it beside {len(names)} others ({tight})")


def _impossible(p: Problem, allowed: NDArray[np.bool_], items: NDArray[np.int64], limit: Deadline) -> bool:
    nodes = np.flatnonzero(allowed[items].any(axis=0))
    if (p.demand[items].sum(axis=0) > p.capacity[nodes].sum(axis=0)).any():
        return True
    if len(items) * len(nodes) > 4000:
        return False
    same = np.arange(len(nodes))
    rows = allowed[items][:, nodes]
    _, none = fixed_packing(p.demand[items], p.capacity[nodes], rows, np.arange(len(items)), same, limit, 0.05)
    return none


def _tightest(p: Problem, allowed: NDArray[np.bool_], items: NDArray[np.int64]) -> str:
    usable = np.flatnonzero(allowed[items].any(axis=0))
    room = p.capacity[usable].sum(axis=0)
    share = p.demand[items].sum(axis=0) / np.maximum(1, room)
    k = int(np.argmax(share))
    return f"{DIMENSIONS[k]} {p.demand[items, k].sum()} of {room[k]} on {len(usable)} of {len(p.capacity)} nodes"

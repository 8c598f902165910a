"""Tiny planner instances for hypothesis, and the optimum of one by looking at every plan."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from qtandem.core.planner.checker import check, cost_of
from qtandem.core.planner.instance import Backend, Instance, Node, Quantum, Workload
from qtandem.core.planner.objective import Objective
from qtandem.core.planner.plan import Plan


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    zones = ["a", "b"]
    nodes = tuple(
        Node(
            f"n{j}",
            (draw(st.integers(2, 8)), draw(st.integers(2, 8)), 9, 9, draw(st.sampled_from([0, 0, 2]))),
            cost=draw(st.sampled_from([0.27, 0.54, 1.07])),
            power=draw(st.sampled_from([380.0, 470.0, 640.0])),
            zone=draw(st.sampled_from(zones)),
            posture=draw(st.integers(0, 2)),
            active=draw(st.booleans()),
        )
        for j in range(draw(st.integers(1, 3)))
    )
    backends = tuple(
        Backend(f"q{b}", draw(st.integers(1, 2)), {"a": draw(st.integers(0, 3))})
        for b in range(draw(st.integers(0, 2)))
    )
    count = draw(st.integers(1, 4))
    risk = (
        tuple(tuple(draw(st.integers(0, 100)) / 100 for _ in nodes) for _ in range(count))
        if draw(st.booleans())
        else ()
    )
    masks = (frozenset(n.name for n in nodes if draw(st.booleans())),)
    workloads = tuple(_workload(draw, i, backends, bool(risk)) for i in range(count))
    return Instance(nodes=nodes, workloads=workloads, backends=backends, masks=masks, risk=risk)


def _workload(draw: st.DrawFn, i: int, backends: tuple[Backend, ...], risky: bool) -> Workload:
    quantum = None
    if backends and draw(st.booleans()):
        names = [b.name for b in backends if draw(st.booleans())]
        quantum = Quantum({name: draw(st.integers(0, 100)) for name in names})
    return Workload(
        f"w{i}",
        (draw(st.integers(1, 6)), draw(st.integers(1, 6)), 1, 1, draw(st.sampled_from([0, 0, 0, 1]))),
        priority=draw(st.integers(1, 3)),
        deadline=draw(st.sampled_from([None, 60.0, 7200.0])),
        gang=draw(st.sampled_from([None, None, "g"])),
        zone=draw(st.sampled_from([None, None, "a"])),
        posture=draw(st.sampled_from([0, 0, 1])),
        mask=draw(st.sampled_from([None, None, 0])),
        risk=i if risky else None,
        quantum=quantum,
    )


def optimum(instance: Instance, goal: Objective) -> tuple[int, int]:
    """(admitted, cost) of the best plan among all."""
    best = (-1, 0)
    node_options = [None, *(n.name for n in instance.nodes)]
    quantum = [w.name for w in instance.workloads if w.quantum is not None]
    backend_options = [None, *(b.name for b in instance.backends)]
    for where in product(node_options, repeat=len(instance.workloads)):
        placement = {w.name: n for w, n in zip(instance.workloads, where, strict=True) if n is not None}
        for which in product(backend_options, repeat=len(quantum)):
            backends = {w: b for w, b in zip(quantum, which, strict=True) if b is not None}
            plan = stated(instance, goal, placement, backends)
            value = (plan.admitted, -plan.cost)
            if value > best and not check(instance, goal, plan):
                best = value
    return best[0], -best[1]


def stated(instance: Instance, goal: Objective, placement: dict[str, str], backends: dict[str, str]) -> Plan:
    """A plan that states itself rightly, good or not."""
    admitted = sum(instance.weight(w) for w in instance.workloads if w.name in placement)
    moved = sum(1 for w in instance.workloads if w.node is not None and placement.get(w.name) != w.node)
    draft = Plan("brute", goal.name, placement, backends, admitted, admitted, 0, 0, 0.0, moved=moved)
    cost = cost_of(instance, goal, draft)
    return Plan("brute", goal.name, placement, backends, admitted, admitted, cost, cost, 0.0, moved=moved)

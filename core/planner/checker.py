"""An independent check of a plan, written from the descriptors alone and sharing no code with the engines."""

from __future__ import annotations

from collections import defaultdict

from qtandem.core.planner.instance import DIMENSIONS, Instance, Node, Workload
from qtandem.core.planner.objective import SCALE, Objective
from qtandem.core.planner.plan import Plan


def check(instance: Instance, goal: Objective, plan: Plan) -> list[str]:
    """Every way in which the plan breaks the model or misstates itself; empty for a good plan."""
    nodes = {n.name: n for n in instance.nodes}
    faults: list[str] = []
    load: dict[str, list[int]] = defaultdict(lambda: [0] * len(DIMENSIONS))
    for w in instance.workloads:
        where = plan.placement.get(w.name)
        if where is None:
            continue
        if where not in nodes:
            faults.append(f"{w.name} is placed on {where}, which is not there")
            continue
        faults += _mask_faults(instance, w, nodes[where])
        for k, amount in enumerate(w.demand):
            load[where][k] += amount
    for name, used in load.items():
        for k, amount in enumerate(used):
            if amount > nodes[name].capacity[k]:
                faults.append(f"{name} is over its {DIMENSIONS[k]}: {amount} > {nodes[name].capacity[k]}")
    faults += _gang_faults(instance, plan) + _backend_faults(instance, plan) + _move_faults(instance, plan)
    return faults + _statement_faults(instance, goal, plan)


def _mask_faults(instance: Instance, w: Workload, node: Node) -> list[str]:
    faults = []
    if w.mask is not None and node.name not in instance.masks[w.mask]:
        faults.append(f"{w.name}: the manager does not permit {node.name}")
    if w.zone is not None and node.zone != w.zone:
        faults.append(f"{w.name} is pinned to zone {w.zone}, {node.name} is in {node.zone}")
    if node.posture < w.posture:
        faults.append(f"{w.name} needs posture {w.posture}, {node.name} has {node.posture}")
    return faults


def _gang_faults(instance: Instance, plan: Plan) -> list[str]:
    gangs: dict[str, set[bool]] = defaultdict(set)
    for w in instance.workloads:
        if w.gang is not None:
            gangs[w.gang].add(w.name in plan.placement)
    return [f"gang {name} is admitted in part" for name, states in gangs.items() if len(states) > 1]


def _backend_faults(instance: Instance, plan: Plan) -> list[str]:
    faults, used = [], dict.fromkeys((b.name for b in instance.backends), 0)
    for w in instance.workloads:
        backend, placed = plan.backends.get(w.name), w.name in plan.placement
        if w.quantum is None:
            if backend is not None:
                faults.append(f"{w.name} needs no backend, and has {backend}")
        elif placed != (backend is not None):
            faults.append(f"{w.name} has a node or a backend, not both")
        elif backend is not None:
            if backend not in w.quantum.scores:
                faults.append(f"{w.name} is not eligible for {backend}")
            else:
                used[backend] += w.quantum.slots
    for b in instance.backends:
        if used[b.name] > b.slots:
            faults.append(f"{b.name} is over its slots: {used[b.name]} > {b.slots}")
    return faults


def _moved(instance: Instance, plan: Plan) -> int:
    return sum(1 for w in instance.workloads if w.node is not None and plan.placement.get(w.name) != w.node)


def _move_faults(instance: Instance, plan: Plan) -> list[str]:
    faults = []
    moved = _moved(instance, plan)
    if instance.move_budget is not None and moved > instance.move_budget:
        faults.append(f"{moved} running workloads are moved, the budget is {instance.move_budget}")
    for w in instance.workloads:
        if w.node is not None and not w.movable and plan.placement.get(w.name) != w.node:
            faults.append(f"{w.name} may not be moved")
    return faults


def cost_of(instance: Instance, goal: Objective, plan: Plan) -> int:
    """The objective without admission, from the formulas of objective.py and nothing else of it."""
    count = len(instance.nodes)
    mean_cost = sum(n.cost for n in instance.nodes) / count or 1.0
    mean_power = sum(n.power for n in instance.nodes) / count or 1.0
    total = 0
    used = set(plan.placement.values())
    for n in instance.nodes:
        if n.name in used and not n.active:
            total += round(SCALE * (goal.alpha * n.cost / mean_cost + goal.beta * n.power / mean_power))
    index = {n.name: j for j, n in enumerate(instance.nodes)}
    nodes = {n.name: n for n in instance.nodes}
    backends = {b.name: b for b in instance.backends}
    for w in instance.workloads:
        where = plan.placement.get(w.name)
        if w.node is not None and w.node != where:
            total += round(goal.delta * goal.move)
        if where is None or where not in nodes:
            continue
        node = nodes[where]
        if w.risk is not None:
            total += round(100 * goal.lam * instance.risk[w.risk][index[where]])
        if node.capacity[-1] > 0 and w.demand[-1] == 0:
            share = max(d / c for d, c in zip(w.demand, node.capacity, strict=True) if c > 0)
            total += round(goal.delta * goal.fragmentation * share)
        if w.quantum is not None and w.name in plan.backends:
            backend = backends[plan.backends[w.name]]
            regret = goal.theta * (100 - w.quantum.scores.get(backend.name, 0))
            total += round(regret + goal.delta * goal.locality * backend.distance.get(node.zone, 0))
    return total


def _statement_faults(instance: Instance, goal: Objective, plan: Plan) -> list[str]:
    faults = []
    cost = cost_of(instance, goal, plan)
    if cost != plan.cost:
        faults.append(f"the plan says it costs {plan.cost}, it costs {cost}")
    admitted = sum(instance.weight(w) for w in instance.workloads if w.name in plan.placement)
    if admitted != plan.admitted:
        faults.append(f"the plan says it admits {plan.admitted}, it admits {admitted}")
    if plan.cost_bound > plan.cost:
        faults.append(f"the bound {plan.cost_bound} is over the cost {plan.cost}")
    if plan.admission_bound < plan.admitted:
        faults.append(f"the admission bound {plan.admission_bound} is under {plan.admitted}")
    if plan.moved != _moved(instance, plan):
        faults.append(f"the plan says it moves {plan.moved}, it moves {_moved(instance, plan)}")
    return faults

"""Equation 13 with all its terms, in integers.

    min  alpha C(y) + beta E(y) + lambda R(x) + delta M(x,u) + theta Q(u) - gamma A(z)

C, E   cost and energy of the open nodes: w_j = round(1000 (alpha k_j/mean k + beta p_j/mean p)); an active node: 0.
R      residual risk, lambda a risk point (r = 0.01): round(100 lambda r_ij).
M      = L + F + V:
         L  locality:       sum over quantum workloads of locality * distance(zone of its node, its backend)
         F  fragmentation:  sum over i, j of fragmentation * f_ij x_ij, where f_ij = max_k d_ik/cap_jk if the node has
                            GPUs and the workload needs none, else 0 (the share of a GPU node it keeps from GPU work)
         V  disruption:     sum over running workloads that end elsewhere or nowhere of `move`; their number is
                            bounded by the move budget, which is a hard constraint
Q      regret of the backend: theta (100 - sigma_qb).
A      sum of pi_i z_i; gamma exceeds everything else that one plan can cost, so that admission comes first, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qtandem.core.errors import QtandemError
from qtandem.core.planner.instance import GPU, Instance

SCALE = 1000


@dataclass(frozen=True, slots=True)
class Objective:
    """Policy weights; one row of the table in docs/planner.md."""

    name: str
    alpha: float
    beta: float
    lam: float = 0.0
    delta: float = 1.0
    theta: float = 1.0
    locality: float = 10.0
    fragmentation: float = 0.0
    move: float = 50.0


OBJECTIVES = {
    "performance": Objective("performance", 0.0, 0.0, theta=0.0, delta=0.0),
    "green": Objective("green", 0.1, 0.9),
    "regulated": Objective("regulated", 0.5, 0.5, lam=1.5),
    "balanced": Objective("balanced", 0.5, 0.5),
}


def objective(name: str, **changes: float) -> Objective:
    """The objective of this name with some weights changed; raises `bad-plan` for an unknown name."""
    if name not in OBJECTIVES:
        raise QtandemError("bad-plan", f"no objective {name}; there are: {', '.join(OBJECTIVES)}")
    return replace(OBJECTIVES[name], **changes)  # type: ignore[arg-type]


def node_weights(instance: Instance, goal: Objective) -> NDArray[np.int64]:
    """w_j of every node; 0 for one that is active anyway."""
    count = len(instance.nodes)
    cost = sum(n.cost for n in instance.nodes) / count or 1.0
    power = sum(n.power for n in instance.nodes) / count or 1.0
    weights = (
        0 if n.active else round(SCALE * (goal.alpha * n.cost / cost + goal.beta * n.power / power))
        for n in instance.nodes
    )
    return np.fromiter(weights, dtype=np.int64, count=count)


def pair_costs(instance: Instance, goal: Objective) -> NDArray[np.int32] | None:
    """R and F of every pair (workload, node); None where both are zero everywhere."""
    count, nodes = len(instance.workloads), len(instance.nodes)
    total: NDArray[np.float64] | None = None
    if goal.lam and instance.risk:
        rows = np.array([-1 if w.risk is None else w.risk for w in instance.workloads], dtype=np.int64)
        total = np.rint(100 * goal.lam * instance.risk_matrix)[rows]
        total[rows < 0] = 0
    if goal.delta * goal.fragmentation:
        share = stranding(instance)
        term = np.rint(goal.delta * goal.fragmentation * share)
        total = term if total is None else total + term
    if total is None or not total.any():
        return None
    assert total.shape == (count, nodes)
    return total.astype(np.int32)


def stranding(instance: Instance) -> NDArray[np.float64]:
    """f_ij of the fragmentation term."""
    cap, dem = instance.capacity.astype(float), instance.demand.astype(float)
    share = np.zeros((len(dem), len(cap)))
    needless, gpu_nodes = dem[:, GPU] == 0, np.flatnonzero(cap[:, GPU] > 0)
    for j in gpu_nodes:
        usable = cap[j] > 0
        share[needless, j] = (dem[needless][:, usable] / cap[j, usable]).max(axis=1)
    return share


def move_cost(goal: Objective) -> int:
    return round(goal.delta * goal.move)


def backend_cost(goal: Objective, score: int, distance: int) -> int:
    """theta (100 - sigma) + delta locality distance."""
    return round(goal.theta * (100 - score) + goal.delta * goal.locality * distance)

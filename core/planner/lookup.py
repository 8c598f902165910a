"""The one-job look-up: the best node, with its backend, for one workload given everything else. No solver.

This is what a submit hook may wait for. The cost of a node is what the objective would grow by: its weight if it is not
in use yet, the risk and the stranding of the pair, and the cheapest backend with free slots from its zone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner import kernels
from qtandem.core.planner.instance import GPU, Instance, Workload
from qtandem.core.planner.objective import Objective, backend_cost, node_weights

_NOTHING = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the workload would go and what that adds to the objective."""

    node: str
    backend: str | None
    cost: int


class Lookup:
    """The state of a cluster for look-ups; `take` and `leave` keep it current. Not thread-safe."""

    def __init__(
        self, instance: Instance, goal: Objective, placement: dict[str, str], backends: dict[str, str]
    ) -> None:
        self.instance, self.goal = instance, goal
        self._free = instance.capacity.copy()
        self._count = np.zeros(len(instance.nodes), dtype=np.int64)
        self._weight = node_weights(instance, goal)
        self._posture = np.array([n.posture for n in instance.nodes])
        zones = sorted({n.zone for n in instance.nodes})
        self._zones = {zone: z for z, zone in enumerate(zones)}
        self._zone = np.array([self._zones[n.zone] for n in instance.nodes], dtype=np.int64)
        self._slots = np.array([b.slots for b in instance.backends], dtype=np.int64)
        distance = [[b.distance.get(zone, 0) for b in instance.backends] for zone in zones]
        self._distance = np.array(distance, dtype=np.int64).reshape(len(zones), len(instance.backends))
        self._masks = [np.array([n.name in m for n in instance.nodes]) for m in instance.masks]
        self._everywhere = np.ones(len(instance.nodes), dtype=bool)
        self._risk = instance.risk_matrix
        self._no_risk = np.zeros(len(instance.nodes))
        for workload in instance.workloads:
            if workload.name in placement:
                self.take(workload, placement[workload.name], backends.get(workload.name))
        self.ask(instance.workloads[0] if instance.workloads else Workload("none", (0, 0, 0, 0, 0)))

    def ask(
        self,
        workload: Workload,
        permitted: NDArray[np.bool_] | None = None,
        costs: NDArray[np.float64] = _NOTHING,
    ) -> Choice | None:
        """The node and backend that add least to the objective; None if nothing fits now.

        `permitted` stands for the workload's mask where it is in no instance. `costs` (one a node) gets what each node
        adds that fits.
        """
        mask = permitted
        if mask is None:
            mask = self._everywhere if workload.mask is None else self._masks[workload.mask]
        zone = -1 if workload.zone is None else self._zones.get(workload.zone, -2)
        risk = self._no_risk if workload.risk is None else self._risk[workload.risk]
        backend, regret = self._backends(workload)
        demand = np.array(workload.demand, dtype=np.int64)
        node, cost = kernels.cheapest_node(
            demand, self._free, self.instance.capacity, mask, self._posture, float(workload.posture), self._zone, zone,
            self._count, self._weight, risk, 100 * self.goal.lam, regret,
            self.goal.delta * self.goal.fragmentation if demand[GPU] == 0 else 0.0, GPU, costs,
        )  # fmt: skip
        if node < 0:
            return None
        chosen = int(backend[self._zone[node]])
        name = None if workload.quantum is None else self.instance.backends[chosen].name
        return Choice(self.instance.nodes[node].name, name, round(cost))

    def names(self, nodes: frozenset[str] | set[str]) -> NDArray[np.bool_]:
        """A mask of these nodes."""
        return np.array([node.name in nodes for node in self.instance.nodes])

    def dearer(self, workload: Workload, permitted: NDArray[np.bool_], choice: Choice) -> list[str]:
        """The permitted nodes on which it fits now as well, but that add more than the choice."""
        costs = np.full(len(self.instance.nodes), -1.0)
        self.ask(workload, permitted, costs)
        return [self.instance.nodes[j].name for j in np.flatnonzero(costs > choice.cost)]

    def _backends(self, workload: Workload) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The cheapest free backend from each zone, and its cost (negative where there is none)."""
        zones = len(self._zones)
        best, cost = np.full(zones, -1, dtype=np.int64), np.zeros(zones)
        if workload.quantum is None:
            return best, cost
        cost[:] = -1.0
        for name, score in workload.quantum.scores.items():
            b = self.instance.backend_index[name]
            if self._slots[b] < workload.quantum.slots:
                continue
            for z in range(zones):
                here = backend_cost(self.goal, score, int(self._distance[z, b]))
                if cost[z] < 0 or here < cost[z]:
                    best[z], cost[z] = b, here
        return best, cost

    def take(self, workload: Workload, node: str, backend: str | None) -> None:
        """The workload runs there from now on."""
        self._change(workload, node, backend, 1)

    def leave(self, workload: Workload, node: str, backend: str | None) -> None:
        """The workload has ended there."""
        self._change(workload, node, backend, -1)

    def _change(self, workload: Workload, node: str, backend: str | None, sign: int) -> None:
        j = self.instance.node_index[node]
        self._free[j] -= sign * np.array(workload.demand, dtype=np.int64)
        self._count[j] += sign
        if backend is not None and workload.quantum is not None:
            self._slots[self.instance.backend_index[backend]] -= sign * workload.quantum.slots

"""Nodes that are interchangeable, and workloads that fit the same of them: what the master works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qtandem.core.planner.problem import Ints, Problem


@dataclass(frozen=True)
class Classes:
    """C node classes and S signatures.

    `of_node[j]` is the class of node j; `size[c]` how many nodes it has. `signature_of[i]` is the signature of
    item i: `signatures[s, c]` says that items of s are permitted in class c, and fit an empty node of it.
    """

    of_node: Ints
    size: Ints
    capacity: Ints
    weight: Ints
    signatures: NDArray[np.bool_]
    signature_of: Ints
    demand: Ints
    items: Ints

    def nodes_of(self, c: int) -> Ints:
        return np.flatnonzero(self.of_node == c)


def classify(problem: Problem, allowed: NDArray[np.bool_], items: Ints) -> Classes:
    """Classes and signatures for these items only (indices of workloads)."""
    demand = problem.demand[items]
    columns = np.unique(problem.row_of[items])
    parts = [problem.capacity, problem.weight[:, None], problem.rows[columns].T.astype(np.int64)]
    pinned = allowed[items] != (problem.rows[problem.row_of[items]] & _fits(demand, problem.capacity))
    special = np.flatnonzero(pinned.any(axis=1))
    if len(special):
        parts.append(np.unique(allowed[items[special]], axis=0).T.astype(np.int64))
    _, first, of_node = np.unique(np.hstack(parts), axis=0, return_index=True, return_inverse=True)
    of_node = of_node.reshape(-1).astype(np.int64)
    signatures, signature_of = np.unique(allowed[items][:, first], axis=0, return_inverse=True)
    return Classes(
        of_node=of_node,
        size=np.bincount(of_node),
        capacity=problem.capacity[first],
        weight=problem.weight[first],
        signatures=signatures,
        signature_of=signature_of.reshape(-1).astype(np.int64),
        demand=demand,
        items=items,
    )


def _fits(demand: Ints, capacity: Ints) -> NDArray[np.bool_]:
    fits = np.ones((len(demand), len(capacity)), dtype=bool)
    for k in range(demand.shape[1]):
        fits &= demand[:, k, None] <= capacity[None, :, k]
    return fits

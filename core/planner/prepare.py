"""Compiling what numba compiles at first use (seconds, then cached on disk), before any deadline runs."""

from __future__ import annotations

from functools import cache

import numpy as np

from qtandem.core.planner import greedy, kernels
from qtandem.core.planner.anneal import Annealer
from qtandem.core.planner.classes import classify
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.fillings import Fillings
from qtandem.core.planner.generate import generate, preset
from qtandem.core.planner.lookup import Lookup
from qtandem.core.planner.objective import objective
from qtandem.core.planner.packing import Packer
from qtandem.core.planner.problem import compile_problem
from qtandem.core.planner.state import Search


@cache
def prepare() -> None:
    """Call every compiled function once, on a tiny instance."""
    instance = generate(preset("unique", 6, 12), 0)
    problem = compile_problem(instance, objective("balanced"))
    allowed, items = problem.allowed(), np.flatnonzero(problem.allowed().any(axis=1))
    assign, _ = greedy.place(problem, kernels.BEST_FIT, greedy.queue_order(problem))
    classes, deadline = classify(problem, allowed, items), Deadline(60)
    packer, nodes = Packer(classes, problem.capacity, 1), np.arange(len(problem.capacity))
    packer.anneal(nodes, np.full(len(items), -1, dtype=np.int64), packer.layout(nodes), deadline, 100)
    nothing = np.zeros(allowed.shape, dtype=np.float32)
    reject = np.ones(len(allowed), dtype=np.float32)
    Annealer(problem.demand, problem.capacity, problem.weight, allowed, nothing, reject, 1.0).run(assign, deadline, 100)
    search = Search(problem, deadline, "prepare")
    search.offer(assign, np.full(len(assign), -1, dtype=np.int64))
    Fillings(search, allowed, priced=False).patterns.start(1.0)
    Lookup(instance, problem.goal, {}, {})
    free, target = problem.capacity.copy(), np.zeros(1, dtype=np.int64)
    kernels.evacuate(0, items[:1], problem.demand, free, allowed, np.ones(len(free), dtype=bool), target)

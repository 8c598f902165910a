"""The planner's front door: one instance, one objective, one engine, one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from qtandem.core.errors import QtandemError
from qtandem.core.planner import rolling
from qtandem.core.planner.causes import find_causes
from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.exact import exact
from qtandem.core.planner.greedy import RULES, greedy
from qtandem.core.planner.ilp import ilp
from qtandem.core.planner.instance import Instance
from qtandem.core.planner.monolith import paper
from qtandem.core.planner.objective import Objective
from qtandem.core.planner.plan import Plan
from qtandem.core.planner.prepare import prepare
from qtandem.core.planner.problem import compile_problem
from qtandem.core.planner.state import Search

ENGINES = (*RULES, "exact", "ilp", "paper")


def solve(
    instance: Instance,
    goal: Objective,
    *,
    engine: str = "exact",
    limit_s: float = 30.0,
    seed: int = 1,
    workers: int = 1,
    deterministic: bool = False,
    explain: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Plan the instance within `limit_s` seconds (of counted work, if deterministic).

    Engines: the greedy rules, `exact`, `ilp` (HiGHS) and `paper` (SQUIRO's formulation as printed). Raises `bad-plan`
    for an unknown one. The time to compile the instance counts; that of
    numba, at the first call of a process, does not. `explain` keeps a tenth of the time to find causes for
    what is rejected.
    """
    prepare()
    if engine not in ENGINES:
        raise QtandemError("bad-plan", f"no engine {engine}; there are: {', '.join(ENGINES)}")
    whole = Deadline(limit_s, clock=clock, deterministic=deterministic)
    deadline = whole.part(0.9 * limit_s) if explain else whole
    problem = compile_problem(instance, goal)
    search: Search
    if engine in RULES:
        search = greedy(problem, engine, deadline)
    elif engine == "exact":
        search = exact(problem, deadline, seed=seed, workers=workers)
    elif engine == "ilp":
        search = ilp(problem, deadline, threads=workers)
    else:
        search = paper(problem, deadline, seed=seed, workers=workers)
    if explain and not search.complete:
        search.causes = find_causes(search, whole)
    return search.plan()


def replan(instance: Instance, goal: Objective, limit_s: float, *, deterministic: bool = False, seed: int = 1) -> Plan:
    """Plan a cluster that runs already; workloads with `node` are running, the others are new."""
    prepare()
    deadline = Deadline(limit_s, deterministic=deterministic)
    search = Search(compile_problem(instance, goal), deadline, "rolling")
    rolling.roll(search, seed)
    return search.plan()

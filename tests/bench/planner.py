"""The planner on generated instances, seeds 0 to 9, the paper's formulation beside it in the same run.

Two solver threads. PLANNER_SEEDS shortens the run; PLANNER_FAMILIES picks some of it. numba's compilation at first use
is not counted.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from importlib.util import find_spec

from tests.bench.rows import Row

SEEDS = int(os.environ.get("PLANNER_SEEDS", "10"))
WANTED = set(filter(None, os.environ.get("PLANNER_FAMILIES", "").split(",")))
PEER_SEEDS = 3


def skip() -> str:
    missing = [name for name in ("ortools", "highspy", "numba") if find_spec(name) is None]
    return f"the extra planner is not installed ({', '.join(missing)})" if missing else ""


def rows() -> Iterator[Row]:
    from qtandem.core.planner.prepare import prepare

    prepare()
    results: list = []
    for group in (proofs, medium, large, quick, targets):
        if not WANTED or group.__name__ in WANTED:
            yield from group(results)
    if results:
        yield _count("faults that the checker found", sum(len(r.faults) for r in results), 0)
        yield _count("plans worse than greedy", sum(r.worse_than_greedy for r in results), 0)
        overrun = max(r.seconds / r.limit for r in results)
        yield Row("longest run over its limit", overrun, "ratio", 1.1, kind="required")


class Run:
    """One instance solved by us, with what the rows need."""

    def __init__(self, family: str, nodes: int, workloads: int, seed: int, limit: float) -> None:
        from qtandem.core.planner import bench

        self.limit = limit
        ours = bench.measure(family, nodes, workloads, seed, limit)
        rules = ("least-allocated", "first-fit")
        greedy = [bench.measure(family, nodes, workloads, seed, limit, engine=rule) for rule in rules]
        self.result, self.seconds, self.gap = ours, ours.seconds, ours.gap
        self.faults = (*ours.faults, *(f for g in greedy for f in g.faults))
        self.worse_than_greedy = any((g.admitted, -g.cost) > (ours.admitted, -ours.cost) for g in greedy)

    def proven_s(self) -> float:
        """When it was proven; without proof, no time is short enough."""
        return self.result.proven_s if self.result.proven and self.result.proven_s is not None else float("inf")

    def gap_at(self, seconds: int) -> float:
        return self.result.gaps[str(seconds)]


def proofs(results: list) -> Iterator[Row]:
    """10, 25 and 50 nodes: how fast the optimum is proven."""
    runs = _runs(results, "unique", 10, 53, 10)
    yield _peer("10/53: proven, slowest seed", max(r.proven_s() for r in runs), 1.0, "unique", 10, 53, 30)
    runs = _runs(results, "unique", 25, 133, 10)
    yield _peer("25/133: proven, median", statistics.median(r.proven_s() for r in runs), 2.0, "unique", 25, 133, 30)
    yield _share("25/133: proven", [r.result.proven for r in runs], 0.8)
    runs = _runs(results, "unique", 50, 267, 10)
    yield _peer("50/267: proven, median", statistics.median(r.proven_s() for r in runs), 3.0, "unique", 50, 267, 30)
    yield _share("50/267: proven within 10 s", [r.proven_s() <= 10 for r in runs], 0.8)


def medium(results: list) -> Iterator[Row]:
    """75 nodes: gaps at 5 s and at 30 s."""
    runs = _runs(results, "unique", 75, 400, 30)
    peer = _paper("unique", 75, 400, 30)
    at_five = statistics.median(r.gap_at(5) for r in runs)
    yield _gap("75/400: gap at 5 s, median", at_five, 0.01, "required", peer)
    yield _gap("75/400: gap at 30 s, worst", max(r.gap for r in runs), 0.02, "required", peer)
    yield _share("75/400: proven within 30 s", [r.result.proven for r in runs], None)


def large(results: list) -> Iterator[Row]:
    """300 and 1000 nodes."""
    runs = _runs(results, "unique", 1000, 10000, 15)
    first = max(r.result.first_s if r.result.first_s is not None else float("inf") for r in runs)
    yield Row("1000/10000: first plan, slowest seed", first, "s", 6.0, kind="required")
    yield _gap("1000/10000: gap at 15 s, worst", max(r.gap for r in runs), 0.01, "required")
    runs = _runs(results, "unique", 1000, 10000, 30, most=3)
    yield _gap("1000/10000: gap at 30 s, worst", max(r.gap for r in runs), 0.005, "target")
    runs = _runs(results, "unique", 300, 2500, 10, most=5)
    yield _gap("300/2500: gap at 10 s, worst", max(r.gap for r in runs), 0.01, "target")


def quick(_: list) -> Iterator[Row]:
    """The look-up, and the re-plan after churn."""
    from qtandem.core.planner import bench

    middle, late = bench.lookup_times(1000)
    yield Row("one job on 1000 nodes with backend, p50", 1000 * middle, "ms", 0.2, kind="required")
    yield Row("one job on 1000 nodes with backend, p99", 1000 * late, "ms", 2.0, kind="required")
    runs = [bench.churn(300, 2500, seed, 0.5) for seed in range(SEEDS)]
    yield Row("3 % churn on 300 nodes, slowest seed", max(r.seconds for r in runs), "s", 0.5, kind="required")
    yield Row("running work moved by it, most", 100 * max(r.moved for r in runs), "%", 5.0, kind="required")
    yield Row("gap after it, median", 100 * statistics.median(r.gap for r in runs), "%")
    yield _count("faults after churn", sum(len(r.faults) for r in runs), 0)


def targets(results: list) -> Iterator[Row]:
    """Half-full clusters, templates, distinct risks, backends."""
    for family, nodes, workloads, limit, bound in (
        ("live", 150, 500, 30, 0.02),
        ("live", 300, 1250, 30, 0.02),
        ("templates", 25, 133, 15, 0.02),
        ("templates", 50, 267, 15, 0.02),
        ("templates", 75, 400, 15, 0.02),
        ("risk", 50, 150, 10, 0.01),
        ("quantum", 75, 400, 5, 0.01),
    ):
        runs = _runs(results, family, nodes, workloads, limit, most=5)
        name = f"{family} {nodes}/{workloads}: gap at {limit} s"
        yield _gap(f"{name}, median", statistics.median(r.gap for r in runs), bound, "target")
        yield _gap(f"{name}, worst", max(r.gap for r in runs), None, "info")


def _runs(results: list, family: str, nodes: int, workloads: int, limit: float, most: int = 10) -> list[Run]:
    runs = [Run(family, nodes, workloads, seed, limit) for seed in range(min(SEEDS, most))]
    results += runs
    return runs


def _paper(family: str, nodes: int, workloads: int, limit: float) -> list:
    from qtandem.core.planner import bench

    return [
        bench.measure(family, nodes, workloads, seed, limit, engine="paper") for seed in range(min(SEEDS, PEER_SEEDS))
    ]


def _peer(name: str, seconds: float, bound: float, family: str, nodes: int, workloads: int, limit: float) -> Row:
    runs = _paper(family, nodes, workloads, limit)
    times = [r.proven_s if r.proven and r.proven_s is not None else r.seconds for r in runs]
    unproven = sum(not r.proven for r in runs)
    label = f"the paper's formulation, {len(runs)} seeds, {unproven} unproven at {limit:g} s"
    middle = statistics.median(times)
    return Row(name, seconds, "s", bound, kind="required", peer=label, peer_value=middle, ratio=seconds / middle)


def _gap(name: str, value: float, bound: float | None, kind: str, peer: list | None = None) -> Row:
    label, other = "", None
    if peer:
        label, other = (
            f"the paper's formulation at 30 s, {len(peer)} seeds",
            100 * statistics.median(r.gap for r in peer),
        )
    limit = None if bound is None else 100 * bound
    ratio = 100 * value / other if other else None
    return Row(name, 100 * value, "%", limit, kind=kind, peer=label, peer_value=other, ratio=ratio)  # type: ignore[arg-type]


def _share(name: str, held: list[bool], bound: float | None) -> Row:
    value = 100 * sum(held) / len(held)
    if bound is None:
        return Row(name, value, "% of seeds")
    return Row(name, value, "% of seeds", 100 * bound, sense="least", kind="required")


def _count(name: str, value: float, bound: float) -> Row:
    return Row(name, value, "", bound, kind="required")

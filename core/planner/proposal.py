"""What a plan comes to on a live cluster: which jobs start where, and what that saves over the manager's own order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from qtandem.core.inventory import Waiting
from qtandem.core.planner.checker import check
from qtandem.core.planner.instance import Instance
from qtandem.core.planner.live import Live, Situation, build
from qtandem.core.planner.objective import Objective, objective
from qtandem.core.planner.plan import Cause, Plan
from qtandem.core.planner.solve import replan, solve

# What stands for the manager: one job after another by its own priority, on the first node where it fits.
MANAGERS_OWN = "first-fit"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the plan has for one job.

    `nodes` empty: it does not start now, `why` says which constraint stops it. `pin`: have it on these nodes. `nice`:
    what to take off its priority so that it comes before those that do not start; None: nothing. `release`: take our
    earlier pin back.
    """

    job: str
    user: str
    nodes: tuple[str, ...] = ()
    backend: str | None = None
    pin: bool = False
    nice: int | None = None
    release: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """What would run: jobs that start, their weight, nodes that are put to use, their $ an hour and W."""

    jobs: int
    weight: int
    nodes: int
    cost_h: float
    watts: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan for the cluster as it was `at` that time, beside what the manager's own order comes to.

    `worth`: it is better, so that there is something to apply. `moved` counts changes of earlier pins. `placement` is
    the whole plan, for look-ups after it.
    """

    at: float
    objective: str
    engine: str
    seconds: float
    gap: float
    proven: bool
    worth: bool
    moved: int
    planned: Totals
    unplanned: Totals
    decisions: tuple[Decision, ...]
    skipped: tuple[tuple[str, str], ...]
    placement: dict[str, str]


def propose(
    situation: Situation, goal_name: str, limit_s: float, *, rolling: bool = False, workers: int = 1
) -> Proposal:
    """Plan within `limit_s`; `rolling` keeps earlier pins as far as they pay and does not look for causes.

    Raises `bad-plan` for an unknown objective, or if the plan does not pass the independent checker.
    """
    live, goal = build(situation), objective(goal_name)
    own = solve(live.instance, goal, engine=MANAGERS_OWN)
    if rolling:
        plan = replan(live.instance, goal, limit_s)
    else:
        plan = solve(live.instance, goal, limit_s=limit_s, workers=workers, explain=True)
    _checked(live.instance, goal, plan)
    better = (plan.admitted, -plan.cost) > (own.admitted, -own.cost)
    return Proposal(
        at=situation.inventory.at,
        objective=goal.name,
        engine="rolling" if rolling else plan.engine,
        seconds=plan.seconds,
        gap=plan.gap,
        proven=plan.proven,
        worth=better,
        moved=plan.moved,
        planned=_totals(live, plan),
        unplanned=_totals(live, own),
        decisions=_decisions(live, plan, situation, better=better),
        skipped=tuple((str(job.id), why) for job, why in live.skipped),
        placement=plan.placement,
    )


def _checked(instance: Instance, goal: Objective, plan: Plan) -> None:
    faults = check(instance, goal, plan)
    if faults:
        raise AssertionError(f"{plan.engine}: {faults[0]}")


def _decisions(live: Live, plan: Plan, situation: Situation, *, better: bool) -> tuple[Decision, ...]:
    nodes, backends = _by_job(live, plan)
    causes = {live.members[cause.workload]: why(cause, live) for cause in plan.causes}
    left_out = [job.priority for name, job in live.jobs.items() if name not in nodes]
    first = max(left_out, default=None)
    out = []
    for name, job in live.jobs.items():
        where, pinned = nodes.get(name, ()), situation.pins.get(name)
        single = len(where) == 1 and not job.fixed
        pin = bool(better and single and pinned != where[0])
        behind = better and where and first is not None and job.priority <= first and job.id.index is None
        out.append(
            Decision(
                job=name,
                user=job.user,
                nodes=where,
                backend=backends.get(name),
                pin=pin,
                nice=_in_front(job, first) if behind and first is not None else None,
                release=pinned is not None and not pin and pinned not in where,
                why="" if where else causes.get(name, "no room is left for it"),
            )
        )
    return tuple(out)


def _in_front(job: Waiting, first: int) -> int:
    """The niceness that puts the job before one of priority `first`.

    Slurm shows no priority below 1, so that what is behind a 1 may be as little as 0 before the niceness is taken off.
    """
    base = job.priority + job.nice if job.priority > 1 else 0
    return base - (first + 1)


def why(cause: Cause, live: Live) -> str:
    """A cause in the words of a cluster."""
    shape = live.jobs[live.members[cause.workload]].shape
    if cause.constraint in ("capacity", "slots", "gang"):
        others = sorted({live.members[name] for name in cause.involved} - {live.members[cause.workload]})
        shown = ", ".join(name.rpartition(":")[2] for name in others[:5]) + (" and others" if len(others) > 5 else "")
        taken = "the QPU's slots go to" if cause.constraint == "slots" else "the room goes to"
        alone = f"there are no {shape.nodes} nodes for it at once" if shape.nodes > 1 else cause.text
        return f"{taken} {shown}" if others else alone
    rules = cause.constraint.split("+")
    if rules == ["mask"]:
        return "no node that the manager permits takes jobs"
    needs = {"cpu": f"{shape.cpus} CPUs", "mem": f"{shape.memory_mb} MB", "gpu": f"{shape.gpus} GPUs"}
    wants = [needs[rule] for rule in rules if rule in needs]
    free = f"has {' and '.join(wants)} free" if wants else ""
    empty = "is without other jobs" if "net" in rules else ""
    return f"no {'permitted ' if 'mask' in rules else ''}node {' and '.join(filter(None, (free, empty)))}"


def _by_job(live: Live, plan: Plan) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    nodes: dict[str, list[str]] = defaultdict(list)
    for workload, node in plan.placement.items():
        nodes[live.members[workload]].append(node)
    backends = {live.members[workload]: backend for workload, backend in plan.backends.items()}
    return {name: tuple(sorted(where)) for name, where in nodes.items()}, backends


def _totals(live: Live, plan: Plan) -> Totals:
    used = set(plan.placement.values())
    opened = [node for node in live.instance.nodes if node.name in used and not node.active]
    return Totals(
        jobs=len({live.members[workload] for workload in plan.placement}),
        weight=plan.admitted,
        nodes=len(opened),
        cost_h=round(sum(node.cost for node in opened), 4),
        watts=round(sum(node.power for node in opened), 1),
    )

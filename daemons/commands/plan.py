"""`qtandem plan`: which workloads on which nodes, jointly with which resource. Its verbs need the extra `planner`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qtandem.daemons.commands.options import Json, group

if TYPE_CHECKING:
    from qtandem.core.planner.bench import Result
    from qtandem.core.planner.plan import Plan

app = group(
    "Plan the cluster: which pending jobs start where, and what that saves (for root and the manager's service user). "
    "With a verb: solve an instance, generate one, bench the engines, reproduce the paper's experiments."
)
app.info.no_args_is_help = False

Limit = Annotated[float, typer.Option("--limit", metavar="SECONDS", min=0.01, help="Time for each plan.")]
ObjectiveName = Annotated[str, typer.Option("--objective", help="performance, green, regulated or balanced.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the generator and of the search.")]


@app.callback(invoke_without_command=True)
def live(
    context: typer.Context,
    manager: Annotated[str, typer.Option(help="The manager to plan; default: the one that can be planned.")] = "",
    objective: Annotated[
        str, typer.Option(help="performance, green, regulated or balanced; default: that of the configuration.")
    ] = "",
    limit: Annotated[
        float | None, typer.Option("--limit", metavar="SECONDS", min=0.01, max=600, help="Time for the plan.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Pin, order and release jobs as the plan has it, within the move budget.")
    ] = False,
    json: Json = False,
) -> None:
    """Plan the cluster: which pending jobs start where, and what that saves; for root and the service user."""
    if context.invoked_subcommand is None:
        from qtandem.daemons.commands.plan_live import show

        show(manager, objective, limit, apply=apply, json=json)


@app.command()
def solve(
    file: Annotated[Path, typer.Argument(help="An instance as JSON; qtandem plan generate writes one.")],
    objective: ObjectiveName = "balanced",
    engine: Annotated[
        str, typer.Option(help="exact, first-fit, least-allocated, best-fit, ilp, or paper (the paper's formulation).")
    ] = "exact",
    limit: Limit = 10.0,
    seed: Seed = 1,
    workers: Annotated[int, typer.Option(min=1, help="Threads of the solvers.")] = 1,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Count work instead of time: the same plan every time.")
    ] = False,
    json: Json = False,
) -> None:
    """Plan an instance: placement, cost, bound, gap, and why what is left out is left out."""
    _require()
    from qtandem.core.planner import objective as objectives
    from qtandem.core.planner.checker import check
    from qtandem.core.planner.instance import load
    from qtandem.core.planner.solve import solve as run

    instance = load(file)
    goal = objectives.objective(objective)
    plan = run(
        instance,
        goal,
        engine=engine,
        limit_s=limit,
        seed=seed,
        workers=workers,
        deterministic=deterministic,
        explain=True,
    )
    _show(plan, check(instance, goal, plan), json)


@app.command()
def generate(
    nodes: Annotated[int, typer.Option(min=1)] = 75,
    jobs: Annotated[int, typer.Option(min=1)] = 400,
    family: Annotated[str, typer.Option(help="unique, live, templates, risk or quantum.")] = "unique",
    seed: Seed = 0,
) -> None:
    """Print a generated instance as JSON; docs/planner.md lists the parameters."""
    _require()
    from qtandem.core.planner import generate as generator
    from qtandem.core.planner.instance import dump

    print(dump(generator.generate(_preset(family, nodes, jobs), seed)).decode())


@app.command()
def bench(
    nodes: Annotated[int, typer.Option(min=1)] = 75,
    jobs: Annotated[int, typer.Option(min=1)] = 400,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N-1.")] = 3,
    limit: Limit = 30.0,
    live: Annotated[bool, typer.Option("--live", help="Half of the nodes partly taken, each its own way.")] = False,
    templates: Annotated[bool, typer.Option("--templates", help="Few kinds of workload, in coarse sizes.")] = False,
    risk: Annotated[bool, typer.Option("--risk", help="Every pair has its own residual risk.")] = False,
    quantum: Annotated[bool, typer.Option("--quantum", help="15 % of the workloads need a backend too.")] = False,
    peer: Annotated[bool, typer.Option("--peer/--no-peer", help="Run the paper's formulation beside ours.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Threads of the solvers.")] = 2,
    json: Json = False,
) -> None:
    """Generated instances: our engine, greedy, and the paper's formulation, in one run."""
    _require()
    from dataclasses import asdict

    from qtandem.core.planner import bench as benches
    from qtandem.daemons.commands.output import print_json

    chosen = [name for name, on in _families(live, templates, risk, quantum) if on]
    if len(chosen) > 1:
        raise typer.BadParameter(f"one family at a time, not {' and '.join(chosen)}")
    family = chosen[0] if chosen else "unique"
    results = list(benches.run(family, nodes, jobs, seeds, limit, peer=peer, workers=workers))
    if json:
        parameters = asdict(_preset(family, nodes, jobs))
        engines = {engine: benches.summary(results, engine) for engine in ("exact", "paper", "least-allocated")}
        print_json({"parameters": parameters, "results": [asdict(r) for r in results], "summary": engines})
    else:
        _table(results)
    if any(result.faults for result in results):
        raise typer.Exit(1)


@app.command()
def reproduce(
    seeds: Annotated[int, typer.Option(min=2, help="Instances of each setting; the paper has 30.")] = 30,
    limit: Limit = 10.0,
    output: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("docs/reproduction.md"),
    workers: Annotated[int, typer.Option(min=1, help="Threads of the solvers in E3.")] = 2,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep figures there as they come, and go on from them.")
    ] = None,
    again: Annotated[str, typer.Option(help="Of what is kept, measure this anew: E1, E2 or E3.")] = "",
) -> None:
    """Run the paper's experiments E1 to E3 and write the report: minutes to hours."""
    _require()
    from qtandem.core.planner.kept import Kept
    from qtandem.core.planner.reproduction import report
    from qtandem.daemons.commands.output import progress

    with progress("experiments") as shown:
        text = report(seeds, limit, workers=workers, say=shown.say, kept=Kept(keep, again))
    output.write_text(text)
    print(output)


def _require() -> None:
    """The solvers, or the error that names the extra."""
    from importlib.util import find_spec

    from qtandem.core.errors import QtandemError

    missing = [name for name in ("ortools", "highspy", "numba", "numpy", "scipy") if find_spec(name) is None]
    if missing:
        raise QtandemError(
            "bad-plan",
            f"The planner needs {', '.join(missing)}, not installed here",
            remedy="Install the extra: pip install 'qtandem[planner]'",
        )


def _families(live: bool, templates: bool, risk: bool, quantum: bool) -> list[tuple[str, bool]]:
    return [("live", live), ("templates", templates), ("risk", risk), ("quantum", quantum)]


def _preset(family: str, nodes: int, jobs: int) -> Any:
    from qtandem.core.errors import QtandemError
    from qtandem.core.planner.generate import PRESETS, preset

    if family not in PRESETS:
        raise QtandemError("bad-plan", f"No family {family}; there are: {', '.join(PRESETS)}")
    return preset(family, nodes, jobs)


def _show(plan: Plan, faults: list[str], json: bool) -> None:
    from dataclasses import asdict

    from qtandem.daemons.commands.output import print_json, print_table

    if json:
        print_json({**asdict(plan), "gap": plan.gap, "proven": plan.proven, "faults": faults})
    else:
        print_table(
            ["WORKLOAD", "NODE", "BACKEND"],
            ([name, node, plan.backends.get(name)] for name, node in sorted(plan.placement.items())),
            empty="nothing is placed",
        )
        for cause in plan.causes:
            print(f"{cause.workload}: left out by {cause.constraint}: {cause.text}")
        word = "proven best" if plan.proven else f"at most {100 * plan.gap:.2f} % from the best"
        print(
            f"{plan.engine}, {plan.objective}: admitted {plan.admitted} of at most {plan.admission_bound}, "
            f"cost {plan.cost}, bound {plan.cost_bound}, {word}, {plan.moved} moved, {plan.seconds:.2f} s"
        )
    if faults:
        for fault in faults:
            typer.echo(f"fault: {fault}", err=True)
        raise typer.Exit(1)


def _table(results: list[Result]) -> None:
    from qtandem.daemons.commands.output import print_table

    print_table(
        ["SEED", "ENGINE", "ADMITTED", "COST", "BOUND", "GAP %", "FIRST s", "PROVEN s", "SECONDS", "FAULTS"],
        (
            [
                r.seed,
                r.engine,
                f"{r.admitted}/{r.admission_bound}",
                r.cost,
                r.cost_bound,
                f"{100 * r.gap:.2f}",
                None if r.first_s is None else f"{r.first_s:.2f}",
                None if r.proven_s is None else f"{r.proven_s:.2f}",
                f"{r.seconds:.2f}",
                len(r.faults),
            ]
            for r in results
        ),
    )

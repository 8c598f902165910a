"""`qtandem plan`: the plan of the live cluster, asked of the daemon, as a table."""

from __future__ import annotations

from typing import Any

# The first plan of a daemon may wait for the planner's compilation.
ANSWER_S = 900.0


def show(manager: str, objective: str, limit: float | None, *, apply: bool, json: bool) -> None:
    """Have the daemon plan, and say what the plan would do and save; or what was done."""
    from qtandem.core.client.calls import as_object
    from qtandem.daemons.commands.output import api, print_json, progress

    body: dict[str, object] = {"manager": manager, "objective": objective, "apply": apply}
    if limit is not None:
        body["limit_s"] = limit
    with progress("planning"):
        answer = as_object(api(ANSWER_S).post("plan", body=body))
    if json:
        print_json(answer)
        return
    _table(answer)
    for line in lines(answer):
        print(line)


def lines(plan: dict[str, Any]) -> list[str]:
    """What the plan saves, how good it is, and what it leaves to the manager."""
    from qtandem.daemons.commands.output import harmless

    ours, own = plan["planned"], plan["unplanned"]
    out = [
        f"{ours['jobs']} jobs start on {ours['nodes']} idle nodes ({ours['cost_h']:.2f} $/h, {ours['watts']:.0f} W); "
        f"by the manager's own order {own['jobs']} on {own['nodes']} ({own['cost_h']:.2f} $/h, {own['watts']:.0f} W)"
    ]
    if not plan["worth"]:
        out.append("Nothing to gain: the manager's own order does as well.")
    word = "proven best" if plan["proven"] else f"at most {100 * plan['gap']:.2f} % from the best"
    out.append(f"{plan['engine']}, {plan['objective']}: {word}, {plan['moved']} pins moved, {plan['seconds']:.2f} s")
    for row in plan["skipped"]:
        out.append(f"{_short(row['job'])}: not planned, {harmless(row['why'])}")
    if not plan["applied"] and any(_orders(row) for row in plan["decisions"]):
        out.append("Have it done: qtandem plan --apply")
    return out


def _table(plan: dict[str, Any]) -> None:
    from qtandem.daemons.commands.output import print_table

    print_table(
        ["JOB", "USER", "NODES", "QPU", "DO" if not plan["applied"] else "DONE", "WHY NOT NOW"],
        (
            [
                _short(row["job"]),
                row["user"],
                ",".join(row["nodes"]),
                row["backend"],
                row["did"] if plan["applied"] else _orders(row),
                row["why"],
            ]
            for row in plan["decisions"]
        ),
        empty="no job waits that could be planned",
    )


def _orders(row: dict[str, Any]) -> str:
    words = [
        word
        for word, on in (("pin", row["pin"]), ("order", row["nice"] is not None), ("release", row["release"]))
        if on
    ]
    return " and ".join(words)


def _short(job: str) -> str:
    return job.rpartition(":")[2]

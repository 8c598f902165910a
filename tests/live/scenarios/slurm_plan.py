"""The planner on a live cluster: plans shown and applied, pins honoured and taken back, masks and budgets kept.

A large job that waits for both nodes keeps small ones behind it from starting, so that there is something to plan.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.cluster import Cluster
from tests.live.conftest import bring_up, tidy
from tests.live.hosts import ROOT

MANAGERS = ("slurm",)
SLEEP = "sleep 600"
PIN_S = 8
ASKED = "all" in os.environ.get("QTANDEM_LIVE", "").split(",") or "QTANDEM_SLURM_PLANNER_IMAGE" in os.environ
pytestmark = [
    pytest.mark.skipif(not ASKED, reason="run it by make live, or with QTANDEM_LIVE=all"),
    # Compiling the planner at its first use takes long on a busy machine.
    pytest.mark.timeout(600),
]
TRIALS = """
import asyncio, json
from qtandem.core.config import load
from qtandem.core.runs import JobId
from qtandem.slurm.manager import SlurmManager
from pathlib import Path
settings = load(Path("/etc/qtandem/qtandem.toml")).settings.managers["slurm"]
manager = SlurmManager(settings, {})
wanted = {JobId("slurm", "lab", job): nodes.split(",") for job, nodes in json.loads('WANTED').items()}
found = asyncio.run(manager.trials(wanted))
print(json.dumps({job.job: [trial.refused, trial.starts_at] for job, trial in found.items()}))
"""


@pytest.fixture(scope="module")
def module_cluster(manager: str, image: str) -> Iterator[Cluster]:
    """A cluster whose daemon has the planner."""
    given = os.environ.get("QTANDEM_SLURM_PLANNER_IMAGE", "")
    if not given:
        build = [ROOT / "containers/build", "slurm-planner"]
        built = subprocess.run(build, capture_output=True, text=True, check=False)
        if built.returncode:
            pytest.fail(f"containers/build slurm-planner: {built.stderr[-3000:]}", pytrace=False)
    yield from bring_up(manager, given or "qtandem-slurm-planner")


@pytest.fixture
def cluster(module_cluster: Cluster) -> Iterator[Cluster]:
    tidy(module_cluster)
    configure(module_cluster)
    yield module_cluster
    again = "scontrol update nodename=c1,c2 state=resume; scontrol delete reservation=kept"
    module_cluster.shell(module_cluster.control, again)
    for job, view in module_cluster.jobs().items():
        if view.state != "ended":
            module_cluster.cancel(job)


def configure(cluster: Cluster, **planner: Any) -> None:
    """Put the section [planner] in force."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in planner.items()]
    text = "\n".join(["[planner]", *lines, ""])
    path = "/etc/qtandem/qtandem.toml"
    before = reloads(cluster)
    cluster.shell(cluster.control, f"sed -i '/^\\[planner\\]/,$d' {path}; cat >>{path} <<'X'\n{text}\nX").check()
    cluster.qtandem("daemon", "reload", "--quiet").check()
    cluster.until(lambda: reloads(cluster), lambda count: count > before, 30, "the configuration is in force")


def reloads(cluster: Cluster) -> float:
    text = cluster.shell(cluster.control, "curl -s http://127.0.0.1:9447/metrics").check().stdout
    found = re.search(r'^qtandem_reloads_total\{outcome="done"\} (\S+)', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def occupied(cluster: Cluster, node: str, cpus: int) -> str:
    """A running job that leaves part of the node; it runs as long as the partition permits."""
    job = cluster.submit(SLEEP, minutes=60, nodes=node, args=[f"--ntasks={cpus}"])
    cluster.wait_state(job, "running")
    return job


def blocker(cluster: Cluster) -> str:
    """A job in front of all others that waits for both nodes."""
    job = cluster.submit(SLEEP, minutes=60, args=["--nodes=2", "--exclusive", "--hold"])
    cluster.shell(cluster.control, f"scontrol update jobid={job} nice=-100; scontrol release {job}").check()
    cluster.until(lambda: reason(cluster, job), lambda word: word == "Resources", 15, "it waits for the nodes")
    return job


def small(cluster: Cluster, cpus: int = 4, qpu: str = "", **options: Any) -> str:
    options.setdefault("args", [])
    options["args"] = [*options["args"], f"--ntasks={cpus}"]
    return cluster.submit(options.pop("script", SLEEP), qpu, minutes=60, **options)


def placed(cluster: Cluster, qpu: str, **options: Any) -> str:
    """A small job that was looked up: on a busy machine the hook may not wait for it, and takes the job without."""
    for _ in range(10):
        job = small(cluster, qpu=qpu, **options)
        if "qtandem:placed=" in record(cluster, job).get("AdminComment", ""):
            return job
        cluster.cancel(job)
    pytest.fail("no submission was looked up in time")


def reason(cluster: Cluster, job: str) -> str:
    return cluster.shell(cluster.control, f"squeue -h -j {job} -o %r").stdout.strip()


def record(cluster: Cluster, job: str) -> dict[str, str]:
    text = cluster.shell(cluster.control, f"scontrol -o show job {job}").stdout
    return {key: value for key, _, value in (part.partition("=") for part in text.split())}


def plan(cluster: Cluster, *options: str, limit: str = "5") -> dict[str, Any]:
    done = cluster.qtandem("plan", "--json", "--limit", limit, *options, timeout=400)
    return json.loads(done.check().stdout)


def decisions(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["job"].rpartition(":")[2]: row for row in found["decisions"]}


def test_a_plan_is_shown_and_only_to_who_may_apply_it(cluster: Cluster) -> None:
    occupied(cluster, "c2", 20)
    front, jobs = blocker(cluster), [small(cluster) for _ in range(2)]
    found = plan(cluster)
    assert found["worth"]
    assert (found["planned"]["nodes"], found["unplanned"]["nodes"]) == (0, 1), "it saves the node c1"
    rows = decisions(found)
    assert {job: rows[job]["nodes"] for job in jobs} == {job: ["c2"] for job in jobs}
    assert rows[front]["nodes"] == []
    assert rows[front]["why"] == "there are no 2 nodes for it at once"
    table = cluster.qtandem("plan", timeout=60).check().stdout
    assert "Have it done: qtandem plan --apply" in table
    assert all(cluster.job(job).state == "pending" for job in jobs), "showing it changes nothing"
    refused = cluster.qtandem("plan", user="alice")
    assert refused.status != 0
    assert "not-authorised" in refused.text
    assert cluster.api("/v1/plan", user="alice")[0] == 403


def test_an_applied_plan_starts_its_jobs_where_it_says(cluster: Cluster) -> None:
    occupied(cluster, "c2", 20)
    blocker(cluster)
    jobs = [small(cluster) for _ in range(2)]
    rows = decisions(plan(cluster, "--apply"))
    assert {rows[job]["did"] for job in jobs} == {"pinned to c2 and put in front"}
    for job in jobs:
        cluster.wait_state(job, "running", within=45)
        assert cluster.job(job).nodes == "c2"


def test_masks_are_kept(cluster: Cluster) -> None:
    occupied(cluster, "c2", 8)
    blocker(cluster)
    barred, free = small(cluster, args=["--exclude=c2"]), small(cluster)
    rows = decisions(plan(cluster))
    assert (rows[barred]["nodes"], rows[free]["nodes"]) in ((["c1"], ["c2"]), (["c1"], ["c1"]))
    cluster.shell(
        cluster.control,
        "scontrol create reservation=kept starttime=now+1800 duration=60 nodes=c1 users=root flags=ignore_jobs",
    ).check()
    rows = decisions(plan(cluster))
    assert rows[barred]["nodes"] == [], "it would not end before the reservation"
    assert rows[barred]["why"] == "no node that the manager permits takes jobs"
    assert rows[free]["nodes"] == ["c2"]
    cluster.shell(cluster.control, "scontrol update nodename=c2 state=drain reason=test").check()
    rows = decisions(plan(cluster))
    assert rows[free]["nodes"] == []


def test_a_tested_submission_says_what_cannot_run(cluster: Cluster) -> None:
    occupied(cluster, "c2", 8)
    # Held, so that none of them starts meanwhile.
    job, large = small(cluster, args=["--hold"]), small(cluster, 28, args=["--hold"])
    cluster.shell(cluster.control, "scontrol update nodename=c1 state=drain reason=test").check()

    def tested(wanted: dict[str, str]) -> dict[str, Any]:
        text = TRIALS.replace("WANTED", json.dumps(wanted))
        return json.loads(cluster.python(text, timeout=60).check().stdout)

    found = tested({job: "c2", large: "c2"})
    assert found[job][0] == found[large][0] == ""
    assert found[job][1] < found[large][1], "the large one has to wait for what runs there"
    assert tested({job: "c1"})[job] == ["Requested node configuration is not available", None]


@pytest.mark.parametrize("policy", ["advise", "exclude", "pin"])
def test_a_submission_is_placed_by_policy(cluster: Cluster, policy: str) -> None:
    occupied(cluster, "c2", 8)
    configure(cluster, enabled=True, at_submit=policy, refresh_s=1, lookup_ms=30, pin_s=600)
    ready(cluster)
    job = placed(cluster, "east", script="hostname")
    fields = record(cluster, job)
    wanted = {"advise": ("(null)", "(null)"), "exclude": ("(null)", "c1"), "pin": ("c2", "(null)")}[policy]
    assert (fields["ReqNodeList"], fields["ExcNodeList"]) == wanted
    assert fields["AdminComment"] == f"qtandem:placed={policy}%3A{'c1' if policy == 'exclude' else 'c2'}"
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    if policy != "advise":
        assert cluster.output(job).strip() == "c2"


def test_a_pin_is_taken_back_in_time_and_the_job_runs_elsewhere(cluster: Cluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    running = occupied(cluster, "c2", 8)
    configure(cluster, enabled=True, at_submit="pin", refresh_s=1, lookup_ms=30, pin_s=PIN_S)
    ready(cluster)
    job = placed(cluster, "east", script="hostname")
    assert record(cluster, job)["ReqNodeList"] == "c2"
    own = small(cluster, qpu="east", script="hostname", nodes="c2")
    cluster.until(lambda: record(cluster, job)["ReqNodeList"], lambda text: text == "(null)", 4 * PIN_S, "taken back")
    assert record(cluster, own)["ReqNodeList"] == "c2", "what its owner chose stays"
    cluster.cancel(own)
    cluster.cancel(running)
    cluster.shell(cluster.control, "scontrol update nodename=c2 state=drain reason=test").check()
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    assert cluster.output(job).strip() == "c1"


def test_applied_moves_stay_within_the_budget(cluster: Cluster) -> None:
    cluster.close("north")
    cluster.wait_sensors({"north": 0})
    cluster.shell(cluster.control, "scontrol update nodename=c2 state=drain reason=test").check()
    configure(cluster, enabled=True, at_submit="pin", refresh_s=1, lookup_ms=30, pin_s=600, moves=1)
    ready(cluster)
    jobs = [placed(cluster, "north") for _ in range(2)]
    assert {record(cluster, job)["ReqNodeList"] for job in jobs} == {"c1"}
    cluster.shell(cluster.control, "scontrol update nodename=c2 state=resume").check()
    occupied(cluster, "c2", 8)
    blocker(cluster)
    cluster.open("north")
    cluster.wait_sensors({"north": 2})
    found = plan(cluster, "--apply")
    assert found["moved"] <= 1
    assert {record(cluster, job)["ReqNodeList"] for job in jobs} == {"c1"}, "one move alone saves nothing"
    assert all(cluster.job(job).state == "pending" for job in jobs)
    configure(cluster, enabled=True, at_submit="pin", refresh_s=1, lookup_ms=30, pin_s=600, moves=2)
    found = plan(cluster, "--apply")
    assert found["moved"] == 2
    for job in jobs:
        cluster.wait_state(job, "running", within=60)
        assert cluster.job(job).nodes == "c2"


def test_the_horizon_applies_by_itself(cluster: Cluster) -> None:
    occupied(cluster, "c2", 20)
    blocker(cluster)
    job = small(cluster)
    assert cluster.api("/v1/plan")[1] is not None
    configure(cluster, horizon_s=2, horizon_apply=True, limit_s=2)
    cluster.wait_state(job, "running", within=120)
    assert cluster.job(job).nodes == "c2"
    [last] = cluster.api("/v1/plan")[1]["plans"]
    assert last["engine"] == "rolling"


def ready(cluster: Cluster) -> None:
    """Wait until submissions are looked up: the planner's process has taken up the cluster as it is now."""

    def advised() -> bool:
        probe = {"manager": "slurm", "uid": 2001, "user": "alice", "account": "physics", "partition": "main",
                 "request": "south", "tasks": 1}  # fmt: skip
        status, body = cluster.api("/v1/submit", method="POST", body=probe)
        assert status == 200, body
        return bool(body["placed"])

    cluster.until(advised, bool, 240, "submissions are looked up")
    # Once more after what was submitted last is known.
    cluster.until(advised, bool, 10, "submissions are looked up")

"""Every form in which Slurm's users name a QPU, on the command line and in the script: one meaning, or a refusal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live.cluster import Cluster
from tests.live.hosts import PYTHON, Result
from tests.live.scenarios.crowd import agreed

MANAGERS = ("slurm",)
SAY = "echo $QRMI_JOB_QPU_RESOURCES"
LONG = "2fast.ibm-" + "x" * 190
LONG_NATIVE = ("q2fast_ibm_" + "x" * 190)[:39]

# What is typed, and what the job gets: its resources, and the licences in its record.
GRANTED = [
    (["--qpu=north"], "north", "north@qtandem:1"),
    (["--qpu=north:2"], "north", "north@qtandem:2"),
    (["--qpu", "east+south"], "east,south", "east@qtandem:1,south@qtandem:1"),
    (["--qpu=east,south"], "east,south", "east@qtandem:1,south@qtandem:1"),
    (["--qpu=any:name=south"], "south", "south@qtandem:1"),
    (["--gres=qpu:north"], "north", "north@qtandem:1"),
    (["--gres=qpu:north:2"], "north", "north@qtandem:2"),
    (["--gres=qpu:1", "--qpu=east"], "east", "east@qtandem:1"),
    (["--gres=qpu:east", "--qpu=east"], "east", "east@qtandem:1"),
    (["--gres=qpu:2", "--qpu=north:2"], "north", "north@qtandem:2"),
    (["--gres=qpu:east,qpu:south"], "east,south", "east@qtandem:1,south@qtandem:1"),
    (["--licenses=north@qtandem"], "north", "north@qtandem:1"),
    (["-L", "north@qtandem:2"], "north", "north@qtandem:2"),
    (["--licenses=east@qtandem:1", "--qpu=east"], "east", "east@qtandem:1"),
    (["--licenses=east@qtandem:1", "--gres=qpu:east"], "east", "east@qtandem:1"),
    (["--qpu=ibm-dash.7"], "ibm_dash_7", "ibm_dash_7@qtandem:1"),
    (["--gres=qpu:ibm-dash.7"], "ibm_dash_7", "ibm_dash_7@qtandem:1"),
    (["--licenses=ibm_dash_7@qtandem"], "ibm_dash_7", "ibm_dash_7@qtandem:1"),
    ([f"--qpu={LONG}"], LONG_NATIVE, f"{LONG_NATIVE}@qtandem:1"),
    ([f"--qpu={LONG_NATIVE}"], LONG_NATIVE, f"{LONG_NATIVE}@qtandem:1"),
]
PER_TASK = (["--ntasks=1", "--tres-per-task=gres/qpu:north:2"], "north", "north@qtandem:2")

# What is typed, and what the refusal names.
REFUSED = [
    (["--qpu=east", "--gres=qpu:south"], "--qpu=east"),
    (["--qpu=east", "--licenses=south@qtandem"], "--qpu=east"),
    (["--gres=qpu:east", "--licenses=south@qtandem"], "--qpu=east"),
    (["--qpu=east", "--gres=qpu:2"], "--qpu=east:2"),
    (["--gres=qpu:1"], "--qpu=NAME"),
    (["--licenses=east@qtandem|south@qtandem"], "--qpu=a/b"),
    (["--qpu="], "--qpu"),
    (["--qpu=east; touch /tmp/owned"], "east; touch /tmp/owned"),
    (["--qpu=$(touch /tmp/owned)`id`"], "$(touch /tmp/owned)`id`"),
    (["--qpu=%s%n../../etc/passwd"], "%s%n../../etc/passwd"),
    (["--qpu=a b\tc"], "control character"),
    (["--qpu=kühl"], "kühl"),
    (["--qpu=" + "y" * 900], "y" * 200),
]


def patiently(call: Callable[[], Result]) -> Result:
    """The hook has 40 ms, which a crowd on a small machine may use up: "try again" is taken at its word."""
    for _ in range(4):
        done = call()
        if done.status == 0 or "Try again shortly" not in done.text:
            break
    return done


def _tag(row: tuple[object, ...]) -> str:
    return " ".join(map(str, row[0]))[:60]  # type: ignore[call-overload]


def _directives(options: list[str]) -> str:
    lines = "\n".join(f"#SBATCH {shlex.join([option])}" for option in _joined(options))
    return f"#!/bin/sh\n{lines}\n{SAY}\n"


def _joined(options: list[str]) -> list[str]:
    """`-L x` as one directive line needs no quoting of its own."""
    return (
        [f"{options[0]}={options[1]}" if options[0].startswith("--qpu") else "--licenses=" + options[1]]
        if (len(options) == 2 and not options[1].startswith("-"))
        else options
    )


def _submit(cluster: Cluster, options: list[str], where: str) -> Result:
    if where == "directive":
        return cluster.try_submit(_directives(options))
    return cluster.try_submit(SAY, args=options)


@pytest.mark.parametrize("where", ["command line", "directive"])
def test_every_form_is_one_meaning_for_sbatch(cluster: Cluster, where: str) -> None:
    rows = [*GRANTED, PER_TASK]
    results = [_submit(cluster, options, where).check() for options, _, _ in rows]
    jobs = [cluster.submitted(result) for result in results]
    records = {job: cluster.records(job) for job in jobs}
    cluster.wait_ended(jobs, within=150)
    got = {_tag(row): cluster.output(job).strip() for row, job in zip(rows, jobs, strict=True)}
    assert got == {_tag(row): row[1] for row in rows}
    for row, job in zip(rows, jobs, strict=True):
        assert f"Licenses={row[2]}" in records[job], _tag(row)
        assert "TresPerNode" not in records[job]
    agreed(cluster)


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_every_form_is_one_meaning_for_interactive_jobs(cluster: Cluster, command: str) -> None:
    def run(number: int) -> Result:
        inner = [] if command == "srun" else ["srun"]
        argv = [command, *GRANTED[number][0], *inner, "sh", "-c", SAY]
        return patiently(lambda: cluster.exec("c1", argv, "alice", timeout=120))

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(len(GRANTED))))
    got = {_tag(row): result.stdout.strip() for row, result in zip(GRANTED, results, strict=True)}
    assert got == {_tag(row): row[1] for row in GRANTED}, [result.stderr for result in results if result.status]
    agreed(cluster)


@pytest.mark.parametrize("command", ["sbatch", "directive", "srun", "salloc"])
def test_forms_that_disagree_and_hostile_texts_are_refused_as_they_were_typed(cluster: Cluster, command: str) -> None:
    rows = REFUSED
    if command in ("srun", "salloc"):
        rows = [*REFUSED, (["--ntasks=1", "--tres-per-task=gres/qpu:north:2"], "--qpu=north")]
    for options, word in rows:
        if command == "directive":
            done = cluster.try_submit(_directives(options))
        elif command == "sbatch":
            done = cluster.try_submit(SAY, args=options)
        else:
            done = cluster.exec(cluster.control, [command, *options, "true"], "alice", timeout=20)
        assert done.status != 0, (options, done.text)
        assert word in done.text, (options, done.text)
    assert not cluster.jobs() or all(view.state == "ended" for view in cluster.jobs().values())
    assert cluster.shell(cluster.control, "ls /tmp/owned 2>/dev/null").stdout == ""


def test_a_step_inside_any_form_of_job_asks_for_nothing_again(cluster: Cluster) -> None:
    before = len(cluster.witness("north"))
    for options in (["--gres=qpu:north"], PER_TASK[0]):
        job = cluster.submit("srun echo one; srun echo two", args=options)
        assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
        assert cluster.output(job) == "one\ntwo\n"
    acquired = [row for row in cluster.witness("north")[before:] if row["event"] == "acquire"]
    assert len(acquired) == 2


NATIVES = """
import sys
from pathlib import Path
from qtandem.core.config import load
loaded = load(Path("/tmp/names.toml"))
print([r.native for r in loaded.catalog.resources.values() if r.name == sys.argv[1]], loaded.errors)
"""


def test_names_that_slurm_cannot_carry_are_mapped_or_refused_at_configuration_time(cluster: Cluster) -> None:
    env = {"QTANDEM_CONFIG": "/tmp/names.toml", "PATH": "/usr/bin:/bin"}
    for name in ("with space", "colon:ed", "sl/ash", "kühl", "-dash", "7up", "x" * 200, "x" * 300, "any"):
        text = f'version = 1\n[resources."{name}"]\ntype = "simulator"\n'
        cluster.exec(cluster.control, ["tee", "/tmp/names.toml"], stdin=text).check()
        done = cluster.qtandem("config", "check", env=env)
        if done.status:
            assert "/tmp/names.toml" in done.text, name
            continue
        argv = [PYTHON, "-c", NATIVES, name]
        natives = cluster.exec(cluster.control, argv, env=env).check().stdout
        assert re.fullmatch(r"\['[A-Za-z_][A-Za-z0-9_]{0,38}'\] [\[(][\])]", natives.strip()), (name, natives)

"""A refusal reaches the user's own terminal: what, why, and what to type instead; whichever command asked."""

from __future__ import annotations

import pytest

from tests.live.cluster import Cluster
from tests.live.hosts import Result
from tests.live.scenarios.slurm_forms import patiently

MANAGERS = ("slurm",)

# What is typed, by whom, and the words that the refusal must hold: what, why, the corrected command.
REFUSALS = {
    "unknown": (["--qpu=nort"], "alice", ("'nort'", "no QPU or class", "--qpu=north")),
    "unknown gres": (["--gres=qpu:nort"], "alice", ("'nort'", "no QPU or class", "--qpu=north")),
    "unknown licence": (["--licenses=nort@qtandem"], "alice", ("'nort'", "no QPU or class", "--qpu=north")),
    "too many qubits": (["--qpu=north:qubits=4000"], "alice", ("qubits", "5", "--qpu=north:qubits=5")),
    "too many qubits of any": (["--qpu=any:qubits=4000"], "alice", ("qubits>=4000", "has qubits 5", "--qpu=")),
    "too many slots": (["--qpu=east:3"], "alice", ("3 slots", "it has 1", "--qpu=east:1")),
    "not allowed": (["--qpu=physics_only"], "bob", ("physics_only", "bob", "you may use")),
    "bad grammar": (["--qpu=north:qubits"], "alice", ("'qubits'", "not key=value", "qubits")),
    "bad value": (["--qpu=north:by=luck"], "alice", ("by=luck", "queue, cost, score")),
    "two forms": (["--qpu=east", "--licenses=south@qtandem"], "alice", ("east", "south", "--qpu=east alone")),
    "unreachable": (["--qpu=main_only", "--partition=classical"], "alice", ("main_only", "classical", "main")),
    "one of several partitions": (["--qpu=main_only", "--partition=main,classical"], "alice", ("classical", "main")),
}


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_says_what_why_and_what_to_type(cluster: Cluster, command: str, kind: str) -> None:
    options, user, words = REFUSALS[kind]
    script = ["--wrap=true"] if command == "sbatch" else ["true"]

    def ask() -> Result:
        return cluster.exec("c2", [command, *options, *script], user, timeout=20)

    done = patiently(ask)
    assert done.status != 0
    for word in words:
        assert word in done.stderr, f"{word!r} is missing in: {done.stderr}"
    assert f"{command}: error: " in done.stderr

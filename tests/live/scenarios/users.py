"""The users of the daemon's host: each part runs as its own, and has no more than its own rights."""

from __future__ import annotations

import pytest

from tests.live.cluster import Cluster
from tests.live.hosts import Result

MANAGERS = ("slurm", "gridengine", "pbs")


def as_user(cluster: Cluster, user: str, *argv: str) -> Result:
    line = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--", *argv]
    return cluster.exec(cluster.control, line, timeout=20)


def owners(cluster: Cluster, words: str) -> list[str]:
    """The users of the processes whose command line has these words."""
    rows = cluster.exec(cluster.control, ["ps", "-eo", "user:32=,args="]).stdout.splitlines()
    return [row.split()[0] for row in rows if words in row and " ps " not in row]


def test_each_part_has_a_user_of_its_own(cluster: Cluster) -> None:
    job = cluster.submit("sleep 3", qpu="east")
    cluster.wait_state(job, "running", "ended")
    assert owners(cluster, "/usr/bin/qtandemd") == ["qtandem"]
    assert set(owners(cluster, "qtandem.core.providers.child")) == {"qtandem-worker"}
    assert set(owners(cluster, "/usr/bin/qtandem-launcher")) == {"root"}
    assert owners(cluster, "qtandem-deadman --manager") == ["qtandem-publisher"]
    cluster.wait_state(job, "ended")


@pytest.mark.parametrize("user", ["qtandem-worker", "qtandem-publisher", "alice"])
def test_key_database_and_secrets_are_the_daemons_alone(cluster: Cluster, user: str) -> None:
    for path in ("/etc/qtandem/master.key", "/var/lib/qtandem/qtandem.db", "/etc/qtandem/secrets/direct"):
        assert as_user(cluster, "qtandem", "cat", path).status == 0
        assert "Permission denied" in as_user(cluster, user, "cat", path).stderr


def test_the_daemon_has_no_rights_in_slurm_but_through_the_launcher(cluster: Cluster) -> None:
    cluster.needs("scontrol")
    change = ["sacctmgr", "-i", "modify", "resource", "where", "name=east", "server=qtandem", "set", "lastconsumed=0"]
    assert as_user(cluster, "qtandem", *change).status != 0
    assert as_user(cluster, "qtandem-worker", *change).status != 0
    steal = (
        "import asyncio; from qtandem.core import commands; from qtandem.core.launching import Launcher; "
        "start = Launcher('/run/qtandem-launcher/launcher.sock').commands('slurm'); "
        "print(asyncio.run(commands.run(ARGV, timeout_s=10, start=start)).stdout)"
    )

    def ask(user: str, *argv: str) -> Result:
        return as_user(cluster, user, "/opt/qtandem/bin/python", "-c", steal.replace("ARGV", repr(list(argv))))

    assert "east" in ask("qtandem", "scontrol", "-o", "show", "lic").check().stdout
    for argv in (["scontrol", "shutdown"], ["sacctmgr", "-i", "add", "user", "alice", "adminlevel=admin"], ["sh"]):
        assert "the launcher refuses" in ask("qtandem", *argv).stderr
    for user in ("alice", "qtandem-worker", "qtandem-publisher"):
        assert "cannot be reached" in ask(user, "scontrol", "-o", "show", "lic").stderr


def test_a_launcher_that_dies_costs_no_job_and_is_taken_up_when_it_is_back(cluster: Cluster) -> None:
    running = cluster.submit("sleep 4; echo done", qpu="east")
    cluster.wait_state(running, "running")
    cluster.kill("launcher")
    assert cluster.wait_state(running, "ended").outcome == "completed"
    assert cluster.output(running) == "done\n"
    cluster.wait_no_leases()
    if "launcher's death shows" not in cluster.cannot:
        cluster.until(lambda: cluster.api("/v1/healthz")[1], lambda body: not body["healthy"], 20, "it shows")
    cluster.start("launcher")
    cluster.until(cluster.daemon_answers, bool, 30, "the daemon is healthy again")
    later = cluster.submit("echo later", qpu="east")
    assert cluster.wait_state(later, "ended").outcome == "completed"


def test_the_doctor_is_content_and_names_what_was_changed(cluster: Cluster) -> None:
    names = ("users", "launcher's file", "launcher", "secrets", "simulators")

    def faults() -> list[str]:
        body = cluster.shell(
            cluster.control,
            f"qtandem doctor {cluster.manager} --json | jq -r '.checks[] | select(.ok == false) | .name'",
        )
        return [name for name in body.stdout.splitlines() if name in names]

    assert faults() == []
    cluster.shell(cluster.control, "chmod 666 /etc/qtandem/launcher.toml /etc/qtandem/master.key").check()
    try:
        assert faults() == ["launcher's file", "secrets"]
    finally:
        cluster.shell(
            cluster.control, "chmod 644 /etc/qtandem/launcher.toml; chmod 600 /etc/qtandem/master.key"
        ).check()

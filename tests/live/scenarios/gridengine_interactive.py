"""Interactive jobs: qrsh and qlogin, with a QPU and without, on a terminal of their own, and what becomes of queues.

Son of Grid Engine 8.1.9 sends prolog and epilog of such a job a SIGTERM where admin_user is not root, as it is here;
one that comes too early puts the queue in error state (see gridengine/README.md).
"""

from __future__ import annotations

import re
import time

import pytest

from tests.live.cluster import all_at_once
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.hosts import Result
from tests.live.scenarios.crowd import agreed
from tests.live.scenarios.gridengine_forms import HOOKS, unharmed

MANAGERS = ("gridengine",)
# Runs a command on a terminal, and types a line at each prompt.
TYPE = r"""
import os, pty, select, sys, time
lines, said, end = sys.argv[2:], b"", time.monotonic() + 80
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("/bin/sh", ["sh", "-c", "exec " + sys.argv[1]])
while time.monotonic() < end:
    if not select.select([terminal], [], [], 0.5)[0]:
        continue
    try:
        more = os.read(terminal, 65536)
    except OSError:
        break
    said += more
    if lines and said.rstrip().endswith(b"$"):
        os.write(terminal, lines.pop(0).encode() + b"\n")
        said += b"\n"
os.kill(pid, 9)
sys.stdout.write(said.decode(errors="replace"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def typed(cluster: GridEngineCluster, command: str, *lines: str) -> str:
    """What a user sees who types this."""
    return cluster.sge(["python3", "-c", TYPE, command, *lines], user="alice", timeout=100).stdout


def qrsh(cluster: GridEngineCluster, command: str, *options: str, qpu: str = "east", timeout: float = 90) -> Result:
    asked = ["-l", f"qpu={qpu}"] if qpu else []
    argv = ["qrsh", "-now", "no", *options, *asked, command]
    return cluster.sge(argv, user="alice", timeout=timeout)


def test_a_command_has_the_environment_of_its_run(cluster: GridEngineCluster) -> None:
    done = qrsh(cluster, "env; qtandem env | grep -c east_QRMI_JOB_ACQUISITION_TOKEN")
    assert done.status == 0, done.text
    assert re.search(r"^QTANDEM_RUN=gridengine:lab:\d+\.0\r?$", done.stdout, re.MULTILINE), done.text
    assert done.stdout.strip().splitlines()[-1].strip() == "1"
    agreed(cluster)
    unharmed(cluster)


@pytest.mark.parametrize("command", ["qlogin -now no -l qpu=east", "qrsh -now no -l qpu=east", "qrsh -now no"])
def test_a_login_shell_on_a_terminal(cluster: GridEngineCluster, command: str) -> None:
    """Grid Engine tells such a shell nothing of its job; qtandem knows the one run that its user has."""
    ask = 'eval "$(qtandem env 2>/dev/null)"; echo "<$QRMI_JOB_QPU_RESOURCES>" on $(tty)'
    said = typed(cluster, command, ask, "exit")
    assert ("<east> on /dev/pts/" if "qpu" in command else "<> on /dev/pts/") in said, said
    agreed(cluster)
    unharmed(cluster)


def test_a_command_on_a_terminal(cluster: GridEngineCluster) -> None:
    said = typed(cluster, "qrsh -now no -pty yes -l qpu=east tty")
    assert "/dev/pts/" in said, said
    agreed(cluster)
    unharmed(cluster)


@pytest.mark.timeout(300)
def test_many_in_a_row_and_at_once_harm_no_queue(cluster: GridEngineCluster) -> None:
    """Those without a QPU have our prolog too."""
    requests = ["", "north", "", "east", "", "north", "", "south"] * 2
    done = all_at_once(len(requests), lambda number: qrsh(cluster, "echo done", qpu=requests[number], timeout=200))
    assert [one.stdout.strip() for one in done] == ["done"] * len(requests), [one.text for one in done]
    unharmed(cluster)
    agreed(cluster)


def test_hooks_of_interactive_jobs_are_sent_no_signal(cluster: GridEngineCluster) -> None:
    """By the shepherd's own record, which execd keeps for once."""
    kept = "KEEP_ACTIVE=true,DEMAND_LS=false"
    cluster.configure(execd_params=kept)
    traces = "cat /var/spool/gridengine/execd/*/active_jobs/*/trace 2>/dev/null"
    try:
        assert qrsh(cluster, "true", "-l", "h=c1").status == 0
        cluster.until(lambda: cluster.shell("c1", traces).stdout, lambda text: "epilog" in text, 20, "a trace is kept")
        said = cluster.shell("c1", traces).stdout
    finally:
        cluster.configure(execd_params="DEMAND_LS=false")
        cluster.shell("c1", "rm -rf /var/spool/gridengine/execd/*/active_jobs/*")
    assert "calling fork_pty()" in said
    assert "Cannot reset euid" not in said
    assert "sending signal TERM" not in said
    assert 'reaped "epilog"' in said


def test_it_waits_for_a_closed_qpu_or_says_at_once_that_it_would(cluster: GridEngineCluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    at_once = cluster.sge(["qrsh", "-now", "yes", "-l", "qpu=east", "true"], user="alice", timeout=60)
    assert at_once.status != 0
    assert "could not be scheduled" in at_once.text

    def later(number: int) -> Result | None:
        if number == 0:
            return qrsh(cluster, "echo ran")
        cluster.until(cluster.jobs, lambda jobs: any(view.state == "pending" for view in jobs.values()), 20, "it waits")
        time.sleep(3)
        cluster.open("east")
        return None

    waited = all_at_once(2, later)[0]
    assert waited is not None
    assert waited.stdout == "ran\n", waited.text
    agreed(cluster)


def test_a_request_that_is_refused_is_told_on_the_terminal(cluster: GridEngineCluster) -> None:
    for request, word in (("nort", "north"), ("east:7", "slots"), ("any:qubits=4000", "qubits")):
        done = qrsh(cluster, "true", qpu=request, timeout=30)
        assert done.status != 0
        assert word in done.text


def test_a_start_that_is_refused_is_told_and_ends_the_job(cluster: GridEngineCluster) -> None:
    """Grid Engine would put it back for ever, with nobody at the other end."""
    cluster.set("east", fault="401", fault_on="acquire")
    done = qrsh(cluster, "echo ran", timeout=60)
    assert done.status == 1, done.text
    assert done.stdout == ""
    assert "qtandem: " in done.stderr
    assert "[bad-credentials]" in done.stderr

    cluster.sge(["sh", "-c", "timeout -s KILL 20 qlogin -now no -l qpu=east </dev/null"], user="alice", timeout=60)
    cluster.until(cluster.jobs, lambda jobs: all(view.state == "ended" for view in jobs.values()), 60, "no job is left")
    unharmed(cluster)
    assert not cluster.leases()
    cluster.open("east")
    cluster.wait_sensors({"east": 1})
    assert qrsh(cluster, "echo ran").stdout == "ran\n"
    agreed(cluster)


def test_a_user_who_goes_gives_the_qpu_back(cluster: GridEngineCluster) -> None:
    """The client is killed, as by a terminal that is closed."""
    command = "qrsh -now no -l qpu=east sleep 300"
    cluster.sge(["sh", "-c", f"timeout -s KILL 12 {command}"], user="alice", timeout=60)
    [lease] = cluster.leases() or [None]
    if lease is not None:
        job = lease["owner"].split(":")[2].partition(".")[0]
        cluster.cancel(job)
    cluster.wait_no_leases(60)
    unharmed(cluster)
    agreed(cluster)


def test_a_site_that_has_a_shepherd_command_of_its_own_is_told(cluster: GridEngineCluster) -> None:
    cluster.configure(shepherd_cmd="/usr/sbin/sge_shepherd")
    try:
        said = cluster.sge(["qtandem", "doctor", "gridengine"])
    finally:
        cluster.configure(shepherd_cmd=f"{HOOKS}/shepherd")
    assert said.status != 0
    assert f"start ours where it starts sge_shepherd: {HOOKS}/shepherd" in said.stdout

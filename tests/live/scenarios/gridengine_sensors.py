"""A load sensor that fails in any way closes nothing for good, keeps nothing open, and leaves execd alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.live.cluster import QPUS, Measured
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.scenarios.crowd import agreed
from tests.live.scenarios.gridengine_forms import HOOKS, REPORT_S, unharmed

MANAGERS = ("gridengine",)
SENSOR = f"pgrep -f '^/bin/sh {HOOKS}/load_sensor'"
# `timing.deadman_s` of the cluster: a heartbeat that is older closes.
LIMIT_S = 8.0
# A shared machine stalls; what is measured is printed.
SLACK_S = 4.0


class Execd:
    """Whether execd of a host is as it should be: idle, and heard by qmaster."""

    def __init__(self, cluster: GridEngineCluster, host: str) -> None:
        self._cluster, self._host = cluster, host
        self._since, self._cpu, self._pid = time.monotonic(), self._used(), self._process()

    def check(self, measured: Measured, what: str) -> None:
        """Its own part of one core since the beginning, at most a tenth; it is the same process, and reports."""
        seconds = time.monotonic() - self._since
        used = self._used() - self._cpu
        measured(f"gridengine: execd used {used:.2f} s of CPU in {seconds:.0f} s, {what}")
        assert used < seconds / 10, f"execd is busy, {what}"
        assert self._process() == self._pid
        assert "-NA-" not in self._cluster.sge(["qstat", "-f"]).stdout

    def _process(self) -> str:
        return self._cluster.shell(self._host, "pgrep -o -x sge_execd").check().stdout.strip()

    def _used(self) -> float:
        text = self._cluster.shell(self._host, "cat /proc/$(pgrep -o -x sge_execd)/stat").check().stdout
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture
def execd(cluster: GridEngineCluster) -> Execd:
    return Execd(cluster, "c1")


@pytest.fixture(autouse=True)
def mended(cluster: GridEngineCluster) -> Iterator[None]:
    """Whatever a test has broken on c1 is whole again."""
    yield
    cluster.shell("c1", f"pkill -CONT -f {HOOKS}; kill -CONT $({SENSOR}) $(cluster pid relay)")
    cluster.shell("c1", "qtandem install gridengine --apply").check()


def closed(cluster: GridEngineCluster, host: str, qpu: str = "east") -> bool:
    """Whether the host's own sensor keeps jobs with the QPU away from it."""
    values = cluster.hosts_xml(f"qpu_{qpu}").iterfind(f"host[@name='{host}']/resourcevalue")
    return any(value.get("dominance") == "hl" and float(value.text or 0) == 0 for value in values)


def serves(cluster: GridEngineCluster) -> None:
    """A job with a QPU runs on c1."""
    job = cluster.submit("true", "east", nodes="c1")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    unharmed(cluster)
    agreed(cluster)


@pytest.mark.parametrize("signal", ["KILL", "SEGV", "STOP"])
def test_a_sensor_that_crashes_or_hangs(
    cluster: GridEngineCluster, execd: Execd, signal: str, measured: Measured
) -> None:
    """What closes a QPU is its capacity, whatever a dead sensor left behind."""
    cluster.shell("c1", f"kill -{signal} $({SENSOR})").check()
    began = time.monotonic()
    cluster.close("east")
    cluster.wait_sensors({"east": 0}, 2 * REPORT_S + SLACK_S)
    measured(f"gridengine: closed {time.monotonic() - began:.1f} s after the vendor, SIG{signal} to a sensor")
    held_back = cluster.submit("true", "east", nodes="c1")
    time.sleep(3 * REPORT_S)
    assert cluster.job(held_back).state == "pending"
    execd.check(measured, f"with SIG{signal} to its sensor")
    if signal == "STOP":
        cluster.shell("c1", f"kill -CONT $({SENSOR})").check()
    cluster.until(lambda: cluster.shell("c1", SENSOR).stdout.split(), bool, 30, "there is a sensor again")
    cluster.open("east")
    assert cluster.wait_state(held_back, "ended", within=60).outcome == "completed"
    serves(cluster)


# Kills a sensor as soon as execd has asked it: execd then waits for its answer for a second.
ASKED_AND_KILLED = """
import array, fcntl, os, signal, sys, termios
pid, waiting = int(sys.argv[1]), array.array("i", [0])
os.kill(pid, signal.SIGSTOP)
with open(f"/proc/{pid}/fd/0") as asked:
    while not waiting[0]:
        fcntl.ioctl(asked, termios.FIONREAD, waiting)
os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.parametrize("params", ["DEMAND_LS=false", "none"])
def test_a_sensor_that_is_killed_while_execd_waits_for_it(
    cluster: GridEngineCluster, params: str, measured: Measured
) -> None:
    """Also where execd reads until its sensor has said all, as it does by default."""
    cluster.configure(execd_params=params)
    try:
        # Execd hears of it with a report.
        time.sleep(4 * REPORT_S)
        execd = Execd(cluster, "c1")
        for _ in range(3):
            sensor = cluster.until(lambda: cluster.shell("c1", SENSOR).stdout.split(), bool, 30, "there is a sensor")
            cluster.exec("c1", ["python3", "-c", ASKED_AND_KILLED, sensor[0]]).check()
        cluster.until(lambda: cluster.shell("c1", SENSOR).stdout.split(), bool, 30, "there is a sensor again")
        execd.check(measured, f"its sensor killed three times while it waited, execd_params {params}")
        serves(cluster)
    finally:
        cluster.configure(execd_params="DEMAND_LS=false")


def test_a_sensor_that_hangs_while_the_daemon_dies(cluster: GridEngineCluster, measured: Measured) -> None:
    """Nobody is left to lower the host's value; the dead-man closes the capacity."""
    cluster.shell("c1", f"kill -STOP $({SENSOR})").check()
    cluster.kill("qtandemd")
    began = time.monotonic()
    cluster.wait_sensors(dict.fromkeys(QPUS, 0), LIMIT_S + 2 * REPORT_S + SLACK_S)
    measured(f"gridengine: closed {time.monotonic() - began:.1f} s after the daemon, a sensor hanging")
    job = cluster.submit("true", "east", nodes="c1")
    time.sleep(2 * REPORT_S)
    assert cluster.job(job).state == "pending"
    cluster.shell("c1", f"kill -CONT $({SENSOR})").check()
    cluster.start("qtandemd")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    serves(cluster)


@pytest.mark.parametrize("how", ["kill -KILL", "kill -STOP"])
def test_a_relay_that_is_gone_or_hangs(cluster: GridEngineCluster, execd: Execd, how: str, measured: Measured) -> None:
    """The host loses the daemon: it takes no job with a QPU, and all others."""
    cluster.shell("c1", f"{how} $(cluster pid relay)").check()
    began = time.monotonic()
    limit = LIMIT_S + 2 * REPORT_S + SLACK_S
    cluster.until(lambda: closed(cluster, "c1"), bool, limit, "c1 is closed")
    measured(f"gridengine: a host closed {time.monotonic() - began:.1f} s after {how} to its relay")
    assert not closed(cluster, "c2")
    here = cluster.submit("true", "east", nodes="c1")
    plain = cluster.submit("true", nodes="c1")
    there = cluster.submit("hostname", "east")
    assert cluster.wait_state(plain, "ended").outcome == "completed"
    assert cluster.wait_state(there, "ended").outcome == "completed"
    assert cluster.output(there) == "c2\n"
    assert cluster.job(here).state == "pending"
    execd.check(measured, "its relay gone")
    if "STOP" in how:
        cluster.shell("c1", "kill -CONT $(cluster pid relay)").check()
    else:
        cluster.start("relay", "c1")
    assert cluster.wait_state(here, "ended", within=60).outcome == "completed"
    serves(cluster)


def test_a_sensor_that_starves(cluster: GridEngineCluster, execd: Execd, measured: Measured) -> None:
    """It gets a fifth of a second in each two: reports are late, and nothing else."""
    starving = f"for i in $(seq 10); do kill -STOP $({SENSOR}); sleep 1.8; kill -CONT $({SENSOR}); sleep 0.2; done"
    cluster.shell("c1", starving, timeout=60).check()
    execd.check(measured, "its sensor starving")
    serves(cluster)


# File, whose it is, text.
GARBAGE = {
    "a file of names that is none": (
        "names", "qtandem", "\\000\\377east\\teast\\t9x9\\nbegin\\nend\\nglobal:qpu_east:9\\n",
    ),
    "news of another form": (
        "gridengine.news", "root", "qpu_queue_east banana\\nend\\nglobal:qpu_east:9\\n$(id) 1\\n",
    ),
    "a heartbeat that is none": ("heartbeat.gridengine", "qtandem", "{{{ healthy"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(GARBAGE))
def test_what_a_sensor_reads_is_garbage(
    cluster: GridEngineCluster, execd: Execd, what: str, measured: Measured
) -> None:
    name, owner, text = GARBAGE[what]
    path, messages = f"/run/qtandem/{name}", "/var/spool/gridengine/execd/c1/messages"
    before = cluster.exec("c1", ["cat", messages]).stdout
    # The relay would write a good one over it.
    write = f"rm -f {path}; printf '{text}' >{path}; chown {owner} {path}"
    cluster.shell("c1", f"kill -STOP $(cluster pid relay); {write}").check()
    time.sleep(3 * REPORT_S)
    assert cluster.sensors()["east"] <= 1
    execd.check(measured, what)
    said = cluster.exec("c1", ["cat", messages]).stdout.removeprefix(before)
    assert "load" not in said.lower(), said
    cluster.shell("c1", "kill -CONT $(cluster pid relay)").check()
    cluster.until(lambda: closed(cluster, "c1"), lambda is_closed: not is_closed, 30, "c1 is open again")
    serves(cluster)


@pytest.mark.parametrize(
    ("what", "script"),
    [
        ("garbage", "while read x; do printf 'begin\\n\\377\\000:::\\nc1:qpu_east:banana\\nnope\\nend\\n'; done"),
        ("half a report", "while read x; do printf 'begin\\nc1:qpu_east:1\\n'; done"),
    ],
    ids=["garbage", "half"],
)
def test_another_program_in_the_place_of_the_sensor(
    cluster: GridEngineCluster, what: str, script: str, measured: Measured
) -> None:
    """As a mistake or a broken disk would have it: jobs start where the capacity lets them, and nowhere else."""
    execd = Execd(cluster, "c1")
    cluster.exec("c1", ["tee", f"{HOOKS}/load_sensor"], stdin=f"#!/bin/sh\n{script}\n").check()
    cluster.close("east")
    cluster.wait_sensors({"east": 0}, 2 * REPORT_S + SLACK_S)
    job = cluster.submit("true", "east", nodes="c1")
    time.sleep(4 * REPORT_S)
    assert cluster.job(job).state == "pending"
    execd.check(measured, f"a sensor that prints {what}")
    cluster.shell("c1", "qtandem install gridengine --apply").check()
    cluster.until(lambda: closed(cluster, "c1", "south"), lambda is_closed: not is_closed, 60, "c1 is open")
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    serves(cluster)

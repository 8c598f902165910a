"""An elim that fails in any way keeps no QPU open, leaves LIM alone, and is there again by itself."""

from __future__ import annotations

import time

import pytest

from tests.live.cluster import QPUS, Measured
from tests.live.lsf_cluster import LAG_S, LsfCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("lsf",)
OWN_CLUSTER = True
# The elim's period, which two of must be enough; LIM and mbatchd then take their time to look (LAG_S).
PERIOD_S = 15.0
TWO_REPORTS_S = 2 * PERIOD_S + LAG_S
# LIM starts an elim again so long after its last start.
AGAIN_S = 90.0


def elims(cluster: LsfCluster, host: str = "ctl") -> list[str]:
    """Processes of the elim that LIM itself started."""
    text = cluster.shell(host, "ps -eo pid=,ppid=,comm=,args= | grep -E '/elim(.qpu)?$' | grep -v grep").stdout
    rows = [line.split() for line in text.splitlines()]
    mine = {row[0] for row in rows}
    return [row[0] for row in rows if row[1] not in mine]


def lims_cpu(cluster: LsfCluster) -> float:
    """Seconds of CPU that the master's LIM has used."""
    text = cluster.shell(cluster.control, "cat /proc/$(pgrep -o -x lim)/stat").check().stdout
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def runs(cluster: LsfCluster, qpu: str = "east", **options: object) -> None:
    job = cluster.submit("echo ran", qpu, **options)
    assert cluster.wait_state(job, "ended", within=90).outcome == "completed"
    assert cluster.output(job) == "ran\n"


@pytest.mark.timeout(360)
@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM"])
def test_an_elim_that_dies_or_hangs(cluster: LsfCluster, signal: str, measured: Measured) -> None:
    [pid] = elims(cluster)
    cluster.shell(cluster.control, f"kill -{signal} {pid}").check()
    began = time.monotonic()
    if signal == "STOP":
        cluster.close("east")
    cluster.wait_sensors(dict.fromkeys(QPUS, 0), TWO_REPORTS_S - LAG_S)
    shut = time.monotonic() - began
    before = lims_cpu(cluster)
    time.sleep(2 * PERIOD_S)
    used = lims_cpu(cluster) - before
    assert used < 1.0, "LIM is busy"
    assert " ok " in cluster.lsf(["lsload", cluster.control]).stdout
    cluster.open("east")
    plain = cluster.submit("true")
    assert cluster.wait_state(plain, "ended").outcome == "completed", "jobs without a QPU do not notice"
    cluster.wait_sensors(QPUS, AGAIN_S + LAG_S)
    back = time.monotonic() - began
    measured(
        f"lsf: SIG{signal} to the elim: closed after {shut:.1f} s, open again after {back:.0f} s, "
        f"LIM used {used:.2f} s of CPU in {2 * PERIOD_S:.0f} s"
    )
    assert len(elims(cluster)) == 1
    runs(cluster)


@pytest.mark.parametrize("text", ["garbage \\0 \\n", "", "east 99999999999\\n"])
def test_values_of_another_form_close_and_are_mended(cluster: LsfCluster, text: str) -> None:
    """`reassert_s` of the cluster is 10 s; the QPU may be closed for that long."""
    cluster.shell(cluster.control, f"printf '{text}' >/run/qtandem/sensors.lsf").check()
    want = "east 1\n"
    cluster.until(
        lambda: cluster.shell(cluster.control, "cat /run/qtandem/sensors.lsf").stdout, lambda now: want in now, 30, want
    )
    cluster.wait_sensors(QPUS, 30)
    assert len(elims(cluster)) == 1
    runs(cluster)


def test_a_host_that_lost_its_daemon_closes_and_opens_by_itself(cluster: LsfCluster, measured: Measured) -> None:
    cluster.kill("qtandemd")
    began = time.monotonic()
    # `deadman_s` of the cluster.
    cluster.wait_sensors(dict.fromkeys(QPUS, 0), 8 + PERIOD_S)
    measured(f"lsf: the elim closed {time.monotonic() - began:.1f} s after the daemon's death (deadman_s is 8)")
    plain = cluster.try_submit("true")
    assert plain.seconds < 1.0
    assert cluster.wait_state(cluster.submitted(plain), "ended").outcome == "completed"
    cluster.start("qtandemd")
    cluster.wait_sensors(QPUS, 30)
    runs(cluster)


@pytest.mark.timeout(240)
def test_an_elim_that_starves(cluster: LsfCluster, measured: Measured) -> None:
    """It gets a fifth of a second in each two: records are late, and nothing else."""
    [pid] = elims(cluster)
    before = lims_cpu(cluster)
    starving = f"for i in $(seq 10); do kill -STOP {pid}; sleep 1.8; kill -CONT {pid}; sleep 0.2; done"
    cluster.shell(cluster.control, starving, timeout=60).check()
    used = lims_cpu(cluster) - before
    measured(f"lsf: LIM used {used:.2f} s of CPU in 20 s, its elim starving")
    assert used < 1.0
    assert elims(cluster) == [pid]
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    cluster.open("east")
    runs(cluster)


@pytest.mark.timeout(300)
def test_a_lim_that_stands_still_gives_no_qpu_away(cluster: LsfCluster) -> None:
    """What LSF last knew is that the QPU is open. A job that it starts waits in its hook, and has no lease."""
    first = cluster.submit("sleep 10; echo ran", "east")
    cluster.wait_begun(first)
    job = cluster.submit("echo ran", "east")
    pid = cluster.shell(cluster.control, "cluster pid lim").check().stdout.strip()
    cluster.shell(cluster.control, f"kill -STOP {pid}").check()
    try:
        # LSF's own commands find no LIM meanwhile.
        cluster.close("east")
        time.sleep(2 * PERIOD_S)
        assert [row for row in cluster.leases() if f"lab:{first}." not in row["owner"]] == []
    finally:
        cluster.shell(cluster.control, f"kill -CONT {pid}").check()
    cluster.wait_sensors({"east": 0})
    time.sleep(PERIOD_S)
    assert cluster.sensors()["east"] == 0, "no old record comes up"
    assert not cluster.leases()
    assert cluster.job(job).state in cluster.waits_in
    assert len(elims(cluster)) == 1
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=120).outcome == "completed"
    assert [cluster.output(each) for each in (first, job)] == ["ran\n"] * 2
    agreed(cluster)


PROGRAMS = {
    "garbage": "while :; do printf 'banana \\377\\000 qpu_east 1\\n'; sleep 5; done",
    "its end": "exit 1",
    "others alone": "while :; do printf '1 qpu_queue 3\\n'; sleep 6; done",
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", list(PROGRAMS))
def test_another_program_in_the_place_of_the_elim(cluster: LsfCluster, what: str, measured: Measured) -> None:
    """As a mistake or a broken disk would have it: every QPU is closed, and LSF runs all other jobs."""
    place = cluster.shell(cluster.control, ". $LSF_ENVDIR/lsf.conf; echo $LSF_SERVERDIR/elim").check().stdout.strip()
    [pid] = elims(cluster)
    began = "/run/another-elim"
    text = f"#!/bin/sh\n: >{began}\n{PROGRAMS[what]}\n"
    cluster.exec(cluster.control, ["tee", f"{place}.other"], stdin=text).check()
    swap = f"rm -f {began}; chmod 755 {place}.other; mv {place} /root/elim; mv {place}.other {place}; kill -KILL {pid}"
    cluster.shell(cluster.control, swap).check()
    try:
        cluster.wait_sensors(dict.fromkeys(QPUS, 0), TWO_REPORTS_S - LAG_S)
        there = ["test", "-e", began]
        cluster.until(
            lambda: cluster.exec(cluster.control, there).status, lambda no: not no, 2 * AGAIN_S, "LIM starts it"
        )
        before = lims_cpu(cluster)
        job = cluster.submit("true", "east")
        plain = cluster.submit("true")
        assert cluster.wait_state(plain, "ended").outcome == "completed"
        time.sleep(2 * PERIOD_S)
        used = lims_cpu(cluster) - before
        measured(f"lsf: LIM used {used:.2f} s of CPU in {2 * PERIOD_S:.0f} s, its elim printing {what}")
        assert used < 1.0, "LIM is busy"
        assert " ok " in cluster.lsf(["lsload", cluster.control]).stdout
        assert cluster.sensors() == dict.fromkeys(QPUS, 0)
        assert cluster.job(job).state == "pending"
        assert not cluster.leases()
    finally:
        cluster.shell(cluster.control, f"mv /root/elim {place}").check()
        cluster.shell(cluster.control, f"pkill -KILL -f '^/bin/sh {place}'; pkill -KILL -x -f 'sleep 600'")
    assert cluster.wait_state(job, "ended", within=AGAIN_S + 4 * LAG_S).outcome == "completed"
    assert len(elims(cluster)) == 1
    agreed(cluster)

"""Jobs of every shape on Grid Engine: parallel, arrays, put back, suspended, of a lost host, refused for good."""

from __future__ import annotations

import re
import time

import pytest

from tests.live.cluster import Measured, all_at_once
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.scenarios.crowd import agreed
from tests.live.scenarios.gridengine_forms import unharmed

MANAGERS = ("gridengine",)


def acquired(cluster: GridEngineCluster, qpu: str, since: int) -> list[dict[str, object]]:
    return [row for row in cluster.witness(qpu)[since:] if row["event"] == "acquire" and not row.get("again")]


def context(cluster: GridEngineCluster, job: str) -> dict[str, str]:
    said = re.search(r"^context: +(.*)$", cluster.sge(["qstat", "-j", job]).stdout, re.MULTILINE)
    return dict(part.partition("=")[::2] for part in said[1].split(",")) if said else {}


def test_a_parallel_job_has_one_lease_whatever_its_slots(cluster: GridEngineCluster) -> None:
    before = len(cluster.witness("east"))
    script = "sort -u $PE_HOSTFILE | wc -l; echo $NSLOTS $QRMI_JOB_QPU_RESOURCES; sleep 2"
    job = cluster.submit(script, "east", args=["-pe", "spread", "4"])
    cluster.wait_begun(job)
    assert cluster.in_use()["east"] == 1
    assert cluster.sensors()["east"] == 0
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job).split() == ["2", "4", "east"]
    assert len(acquired(cluster, "east", before)) == 1
    agreed(cluster)


def test_tasks_of_a_parallel_job_on_other_hosts_have_the_runs_environment_and_never_lease(
    cluster: GridEngineCluster,
) -> None:
    """`qrsh -inherit` starts them by the starter, without a prolog."""
    before = len(cluster.witness("east"))
    ask = "'echo $(hostname) $QTANDEM_RUN $QRMI_JOB_QPU_RESOURCES'"
    script = f"for h in $(cut -d' ' -f1 $PE_HOSTFILE | grep -v $(hostname)); do qrsh -inherit $h {ask}; done"
    job = cluster.submit(script, "east", args=["-pe", "spread", "2"])
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
    text = cluster.output(job)
    assert len(text.split()) == 3, text
    host, run, qpu = text.split()
    assert (run, qpu) == (f"gridengine:lab:{job}.0", "east")
    assert host in cluster.workers
    assert len(acquired(cluster, "east", before)) == 1
    unharmed(cluster)
    agreed(cluster)


def test_the_record_of_a_running_job_tells_its_lease(cluster: GridEngineCluster) -> None:
    job = cluster.submit("sleep 60", "east")
    cluster.wait_begun(job)
    [lease] = cluster.leases()
    wanted = {"qtandem_lease": lease["id"]}
    cluster.until(lambda: context(cluster, job), lambda found: found == wanted, 10, "the lease is in the context")
    cluster.cancel(job)
    agreed(cluster)


def test_a_job_that_puts_itself_back_gets_a_lease_of_its_own_each_time(cluster: GridEngineCluster) -> None:
    """Status 99 of a job means: again."""
    before = len(cluster.witness("east"))
    script = "echo run $RESTARTED $QTANDEM_RUN; [ $RESTARTED = 1 ] || exit 99"
    job = cluster.submit(script, "east")
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    runs = [f"run {number} gridengine:lab:{job}.{number}" for number in (0, 1)]
    assert cluster.output(job).splitlines() == runs
    assert len(acquired(cluster, "east", before)) == 2
    unharmed(cluster)
    agreed(cluster)


def test_one_task_of_an_array_is_put_back_alone(cluster: GridEngineCluster) -> None:
    script = "echo $SGE_TASK_ID $QTANDEM_RUN >>$HOME/back-$JOB_ID; [ $RESTARTED = 1 ] || sleep 300"
    job = cluster.submit(script, "north", args=["-t", "1-2"])
    said = ["cat", f"/home/alice/back-{job}"]
    cluster.until(lambda: cluster.exec("c1", said).stdout.splitlines(), lambda lines: len(lines) == 2, 30, "both run")
    cluster.requeue(f"{job}.2")
    again = f"2 gridengine:lab:{job}_2.1"
    cluster.until(
        lambda: cluster.exec("c1", said).stdout.splitlines(), lambda lines: again in lines, 40, "2 runs again"
    )
    cluster.until(cluster.leases, lambda rows: len(rows) == 1, 30, "task 2 has ended")
    [left] = cluster.leases()
    assert left["owner"].endswith(f":{job}_1.0")
    cluster.cancel(job)
    agreed(cluster)


def test_a_deleted_task_leaves_the_others_alone(cluster: GridEngineCluster) -> None:
    job = cluster.submit("sleep 60", "north", args=["-t", "1-3", "-tc", "2"])
    cluster.until(cluster.leases, lambda rows: len(rows) == 2, 30, "two run")
    cluster.cancel(f"{job}.1")
    owners = [f"run gridengine:lab:{job}_{task}.0" for task in (2, 3)]
    cluster.until(
        lambda: sorted(row["owner"] for row in cluster.leases()), lambda seen: seen == owners, 40, "the third runs"
    )
    cluster.cancel(job)
    agreed(cluster)


def test_a_suspended_job_keeps_its_qpu(cluster: GridEngineCluster) -> None:
    job = cluster.submit("sleep 8; echo done", "east")
    cluster.wait_begun(job)
    [lease] = cluster.leases()
    cluster.sge(["qmod", "-sj", job]).check()
    other = cluster.submit("true", "east")
    # Three looks of the reaper.
    time.sleep(7)
    assert [row["id"] for row in cluster.leases()] == [lease["id"]]
    assert cluster.job(other).state == "pending"
    cluster.sge(["qmod", "-usj", job]).check()
    ended = cluster.wait_ended([job, other], within=60)
    assert {view.outcome for view in ended.values()} == {"completed"}
    agreed(cluster)


@pytest.mark.parametrize(
    ("script", "args", "taken"),
    [("exit 100", [], 1), ("true", ["-wd", "/nowhere"], 0)],
    ids=["its own status", "no folder"],
)
def test_a_job_that_puts_itself_in_error_keeps_no_qpu(
    cluster: GridEngineCluster, script: str, args: list[str], taken: int
) -> None:
    """Status 100 asks for it; a folder that is not there is found before the prolog runs."""
    before = len(cluster.witness("east"))
    job = cluster.submit(script, "east", args=args)
    pending = ["qstat", "-u", "alice", "-s", "p"]
    cluster.until(lambda: cluster.sge(pending).stdout, lambda text: "Eqw" in text, 60, "it is in error")
    cluster.wait_no_leases(60)
    assert len(acquired(cluster, "east", before)) == taken
    other = cluster.submit("echo fine", "east")
    assert cluster.wait_state(other, "ended").outcome == "completed"
    cluster.cancel(job)
    unharmed(cluster)
    agreed(cluster)


@pytest.mark.timeout(420)
def test_a_job_whose_host_is_lost_runs_again_elsewhere(cluster: GridEngineCluster, measured: Measured) -> None:
    """`reschedule_unknown`; the first run's lease is given back before the second has its own."""
    script = "hostname; [ $RESTARTED = 1 ] || sleep 300; echo $QTANDEM_RUN"
    job = cluster.submit(script, "east", requeue=True)
    cluster.wait_begun(job)
    first, host = cluster.leases()[0], cluster.job(job).nodes
    began = time.monotonic()
    cluster.lose_node(host)
    cluster.until(lambda: cluster.output(job), lambda text: ".1" in text, 180, "it ran again")
    measured(f"gridengine: a job of a lost host ran elsewhere after {time.monotonic() - began:.0f} s")
    other = "c2" if host == "c1" else "c1"
    assert cluster.output(job).splitlines()[-2:] == [other, f"gridengine:lab:{job}.1"]
    assert first["id"] not in [row["id"] for row in cluster.leases()]
    cluster.return_node(host)
    cluster.revive()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    agreed(cluster)


def test_names_that_grid_engine_would_not_take_have_one_that_it_takes(cluster: GridEngineCluster) -> None:
    rows = {row["name"]: row["native"] for row in cluster.api("/v1/resources")[1]["resources"]}
    odd = [name for name in rows if name != rows[name]]
    assert len(odd) == 2
    for name in odd:
        for asked in (f"qpu={name}", f"qpu={rows[name]}", f"qpu_{rows[name]}=1"):
            job = cluster.submit("echo $QRMI_JOB_QPU_RESOURCES", args=["-l", asked])
            assert cluster.wait_state(job, "ended").outcome == "completed", asked
            assert cluster.output(job) == f"{rows[name]}\n"


def test_one_of_several_all_of_several_a_class_and_slots(cluster: GridEngineCluster) -> None:
    for request, granted in (
        ("east/south", {"east"}), ("east+south", {"east", "south"}), ("either", {"east"}), ("north:2", {"north"}),
        ("any:qubits=5:by=queue", None),
    ):  # fmt: skip
        job = cluster.submit("echo $QRMI_JOB_QPU_RESOURCES", request)
        assert cluster.wait_state(job, "ended").outcome == "completed", request
        said = set(cluster.output(job).strip().split(","))
        assert granted in (None, said)
        assert said - {""}


def test_plain_jobs_are_not_delayed_whatever_the_daemon_does(cluster: GridEngineCluster, measured: Measured) -> None:
    """It hangs: its socket takes calls and nobody answers."""
    pid = cluster.exec(cluster.control, ["cluster", "pid", "qtandemd"]).check().stdout.strip()

    def ran(_: int) -> float:
        began = time.monotonic()
        job = cluster.submit("true")
        cluster.wait_state(job, "ended", within=40)
        return time.monotonic() - began

    usual = sorted(all_at_once(6, ran))
    cluster.exec(cluster.control, ["kill", "-STOP", pid]).check()
    try:
        hung = sorted(all_at_once(6, ran))
        submitted = [cluster.try_submit("true") for _ in range(5)]
        asking = cluster.try_submit("true", "east")
    finally:
        cluster.exec(cluster.control, ["kill", "-CONT", pid]).check()
    measured(f"gridengine: plain jobs submit to end {usual[3]:.1f} s, {hung[3]:.1f} s with a daemon that hangs")
    assert hung[3] < usual[3] + 5
    assert all(one.status == 0 and one.seconds < 1 for one in submitted)
    assert asking.status == 0, asking.text
    assert asking.seconds < 1
    unharmed(cluster)


@pytest.mark.timeout(420)
def test_a_job_refused_again_and_again_waits_longer_each_time_and_is_held_in_the_end(
    cluster: GridEngineCluster, measured: Measured
) -> None:
    """By holds that its owner cannot lift, whatever the owner writes into the record; an operator can."""
    cluster.set("east", fault="500", fault_on="acquire")
    job = cluster.submit("echo once", "east")
    seen: list[str] = []

    def held() -> str:
        view = cluster.job(job)
        assert view.state != "running", "it ran without its QPU"
        if view.reason == "BeginTime" and cluster.job(job).reason == "BeginTime":
            done = cluster.sge(["qalter", "-h", "S", "-ac", "qtandem=free", job], user="alice")
            seen.append(done.text)
        return view.reason

    began = time.monotonic()
    cluster.until(held, lambda reason: reason == "JobHeld", 200, "it is held")
    restarts = cluster.job(job).restarts
    measured(f"gridengine: held after {restarts} refused starts in {time.monotonic() - began:.0f} s")
    assert restarts == 5
    assert any("must be manager" in text for text in seen), seen
    cluster.sge(["qalter", "-ac", "qtandem_until=1", job], user="alice")
    # 2 + 4 + 8 + 16 s of the test cluster's back-off.
    assert time.monotonic() - began > 30
    assert "denied" in cluster.sge(["qalter", "-h", "O", job], user="alice").text
    time.sleep(5)
    assert cluster.job(job).reason == "JobHeld"
    assert not cluster.leases()
    unharmed(cluster)
    cluster.open("east")
    cluster.sge(["qalter", "-h", "O", job]).check()
    assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
    assert cluster.output(job) == "once\n"
    agreed(cluster)

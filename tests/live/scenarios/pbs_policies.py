"""What a site may choose for PBS: what a suspended job keeps, who asks the sensors, how PBS is spoken to, deadlines."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.cluster import Measured
from tests.live.pbs_cluster import PbsCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("pbs",)
OWN_CLUSTER = True
CONFIG, SCHED = "/etc/qtandem/qtandem.toml", "/var/spool/pbs/sched_priv/sched_config"
SCRIPT = "/usr/libexec/qtandem/pbs/server_dyn_res"
FOLDER = "/var/spool/pbs/server_logs"


@contextmanager
def replaced(cluster: PbsCluster, path: str, old: str, new: str) -> Iterator[None]:
    """The file with another text in one place."""
    before = cluster.shell(cluster.control, f"cat {path}").check().stdout
    assert before.count(old) == 1, f"{path}: {old}"
    cluster.exec(cluster.control, ["tee", path], stdin=before.replace(old, new)).check()
    try:
        yield
    finally:
        cluster.exec(cluster.control, ["tee", path], stdin=before).check()


def installed(cluster: PbsCluster) -> None:
    """What the configuration says, in PBS, on its hosts, and in the daemon."""
    cluster.qtandem("install", "pbs", "--apply", timeout=60).check()
    hook = "/var/spool/pbs/{}/hooks/qtandem_node.PY"
    wanted = cluster.shell(cluster.control, f"cksum <{hook.format('server_priv')}").check().stdout
    for host in cluster.workers:
        copied = f"cksum <{hook.format('mom_priv')}"
        cluster.until(
            lambda host=host, copied=copied: cluster.shell(host, copied).stdout,  # type: ignore[misc]
            lambda seen: seen == wanted,
            30,
            f"{host} has the hook",
        )
    # What the launcher may start has changed too.
    cluster.kill("launcher")
    cluster.start("launcher")
    cluster.reload()
    cluster.until(cluster.daemon_answers, bool, 30, "the daemon is healthy")


@contextmanager
def chosen(cluster: PbsCluster, old: str, new: str) -> Iterator[None]:
    """The site with another text in its configuration, installed and in force."""
    with replaced(cluster, CONFIG, old, new):
        installed(cluster)
        yield
    installed(cluster)


@contextmanager
def option(cluster: PbsCluster, name: str, value: str) -> Iterator[None]:
    options = 'options = { conf = "/etc/pbs.conf"'
    with chosen(cluster, options, f'{options}, {name} = "{value}"'):
        yield


# ---- suspension
def suspended(cluster: PbsCluster, job: str) -> None:
    cluster.pbs(["qsig", "-s", "suspend", job]).check()
    cluster.until(lambda: cluster.job(job).state, lambda state: state == "suspended", 20, "it is suspended")


@pytest.mark.timeout(300)
def test_a_suspended_job_may_give_its_qpu_back(cluster: PbsCluster) -> None:
    """It resumes with a lease of its own, and not while another job has the QPU."""
    with option(cluster, "suspend", "release"):
        job = cluster.submit("sleep 6; echo done", "east")
        cluster.wait_begun(job)
        first = cluster.leases()[0]["id"]
        suspended(cluster, job)
        cluster.wait_no_leases(20)
        other = cluster.submit("sleep 8", "east")
        cluster.wait_begun(other)
        cluster.pbs(["qsig", "-s", "resume", job])
        time.sleep(2)
        assert [row["owner"] for row in cluster.leases()] == [f"run {cluster.run_of(other)}"]
        assert cluster.wait_state(other, "ended", within=60).outcome == "completed"
        resumed(cluster, job)
        [lease] = cluster.until(cluster.leases, bool, 30, "it has a lease again")
        assert lease["id"] != first
        assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
        assert cluster.output(job) == "done\n"
        assert cluster.job(job).restarts == 0
        agreed(cluster)


@pytest.mark.timeout(300)
def test_a_suspended_job_stays_so_while_its_qpu_is_closed(cluster: PbsCluster) -> None:
    with option(cluster, "suspend", "release"):
        job = cluster.submit("sleep 4; echo done", "east")
        cluster.wait_begun(job)
        suspended(cluster, job)
        cluster.wait_no_leases(20)
        cluster.close("east")
        cluster.wait_sensors({"east": 0})
        cluster.pbs(["qsig", "-s", "resume", job])
        time.sleep(3)
        assert not [row for row in cluster.leases() if row["state"] == "held"]
        assert cluster.job(job).state in ("suspended", "pending")
        cluster.open("east")
        cluster.wait_sensors({"east": 1})
        resumed(cluster, job)
        assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
        agreed(cluster)


def resumed(cluster: PbsCluster, job: str) -> None:
    """PBS takes an order to resume that it could not follow at once for the past."""

    def state() -> str:
        seen = cluster.job(job).state
        if seen == "suspended":
            cluster.pbs(["qsig", "-s", "resume", job])
        return seen

    cluster.until(state, lambda seen: seen in ("running", "ended"), 60, "it goes on")


# ---- sensors
@contextmanager
def asked_by_scripts(cluster: PbsCluster, natives: list[str]) -> Iterator[None]:
    lines = "".join(f'\nserver_dyn_res: "{name} !{SCRIPT} {name.removeprefix("qpu_")}"' for name in natives)
    text = cluster.shell(cluster.control, f"cat {SCHED}").check().stdout
    config = "\n".join(line for line in text.splitlines() if not line.startswith("server_dyn_res"))
    here = next(line for line in config.splitlines() if line.startswith("resources:"))
    more = [name for name in natives if name not in here]
    config = config.replace(here, here.rstrip('"') + "".join(f", {name}" for name in more) + '"')
    cluster.exec(cluster.control, ["tee", SCHED], stdin=f"{config}{lines}\n").check()
    cluster.shell(cluster.control, "pkill -HUP -x pbs_sched").check()
    try:
        yield
    finally:
        cluster.exec(cluster.control, ["tee", SCHED], stdin=text).check()
        cluster.shell(cluster.control, "pkill -HUP -x pbs_sched").check()


@pytest.mark.timeout(300)
def test_the_scheduler_may_ask_by_scripts_instead(cluster: PbsCluster) -> None:
    """Its numbers have the holders subtracted: with one slot there is one job at a time."""
    with option(cluster, "sensor", "script"), asked_by_scripts(cluster, ["qpu_north", "qpu_east", "qpu_south"]):
        before = len(cluster.witness("east"))
        jobs = [cluster.submit("sleep 2; echo once", "east") for _ in range(3)]
        both = cluster.submit("sleep 2", "north:2")
        for _ in range(60):
            cluster.manage("set server scheduling = true")
            if all(cluster.job(job).state == "ended" for job in (*jobs, both)):
                break
            time.sleep(1)
        ended = cluster.wait_ended([*jobs, both], within=60)
        assert {view.outcome for view in ended.values()} == {"completed"}
        assert [cluster.output(job) for job in jobs] == ["once\n"] * 3
        acquired = [row for row in cluster.witness("east")[before:] if row["event"] == "acquire"]
        assert len(acquired) == 3
        cluster.close("east")
        shut = f"{SCRIPT} east"
        cluster.until(lambda: cluster.shell(cluster.control, shut).stdout, lambda text: text == "0\n", 15, "it is shut")
        waiting = cluster.submit("true", "east")
        cluster.manage("set server scheduling = true")
        time.sleep(3)
        assert cluster.job(waiting).state == "pending"
        assert not cluster.leases()
        cluster.open("east")
        cluster.wait_state(waiting, "ended", within=60)
    agreed(cluster)


@pytest.mark.timeout(300)
def test_what_a_hundred_scripts_cost(cluster: PbsCluster, measured: Measured) -> None:
    """From a submission to the first line of a job that asks for no QPU at all."""

    def started(count: int) -> float:
        waits = []
        for _ in range(count):
            began = time.time()
            job = cluster.submit("date +%s.%N")
            cluster.wait_state(job, "ended", within=60)
            waits.append(float(cluster.output(job)) - began)
        return statistics.median(waits)

    natives = [f"qpu_dyn{number}" for number in range(100)]
    cluster.manage(*(f"create resource {name} type=long,flag=q" for name in natives))
    try:
        pushed = started(5)
        with asked_by_scripts(cluster, natives):
            # Two cycles for each job, of a second and more each.
            asked = started(2)
    finally:
        cluster.manage(*(f"delete resource {name}" for name in natives))
    # As pbs_sched starts it, in a process group of its own.
    once = [cluster.exec(cluster.control, ["setsid", SCRIPT, "east"]).check() for _ in range(20)]
    assert {done.stdout for done in once} == {"1\n"}
    measured(
        f"pbs: a job's start {pushed:.2f} s with pushed numbers, {asked:.2f} s with a script for each of 100 QPUs; "
        f"one script {statistics.median(done.seconds for done in once) * 1000:.0f} ms"
    )


# ---- without libpbs
@pytest.mark.timeout(300)
def test_without_libpbs_the_commands_do_the_same(cluster: PbsCluster) -> None:
    with option(cluster, "access", "commands"):
        argv = "tr '\\0' ' ' </proc/$(pgrep -f qtandem.pbs.child | head -1)/cmdline"
        cluster.until(
            lambda: cluster.shell(cluster.control, argv).stdout, lambda text: "commands" in text, 30, "commands"
        )
        cluster.close("east")
        cluster.wait_sensors({"east": 0})
        job = cluster.submit("echo once", "east")
        elements = cluster.submit("echo once", "north", args=["-J", "1-2"])
        time.sleep(2)
        assert cluster.job(job).state == "pending"
        cluster.open("east")
        assert cluster.wait_state(job, "ended").outcome == "completed"
        cluster.wait_state(elements, "ended", within=60)
        # The daemon puts off, comments on and holds by the commands what runjob never heard of again.
        cluster.set("east", fault="500", fault_on="acquire")
        refused = cluster.submit("echo once", "east")
        view = cluster.until(lambda: cluster.job(refused), lambda view: view.reason == "JobHeld", 150, "it is held")
        assert "500" in view.comment
        cluster.wait_no_leases()
        cluster.open("east")
        cluster.pbs(["qrls", "-h", "s", refused]).check()
        assert cluster.wait_state(refused, "ended", within=60).outcome == "completed"
        # A run whose end nobody told is found by the list of what runs.
        lost = cluster.submit("sleep 60", "east")
        cluster.wait_begun(lost)
        cluster.kill("qtandemd")
        cluster.cancel(lost)
        cluster.wait_state(lost, "ended")
        cluster.start("qtandemd")
        agreed(cluster)


# ---- the deadline
def spent(cluster: PbsCluster, event: str, since: int) -> list[float]:
    """Milliseconds that pbs_server itself counts for our hook, by its log."""
    log = cluster.shell(cluster.control, f"cat {FOLDER}/* | tail -n +{since + 1}").check().stdout
    found = re.findall(rf"hook_{event}_qtandem_server\S* .*server_process_hooks.* walltime=([0-9.]+)", log)
    return [float(each) * 1000 for each in found]


def logged(cluster: PbsCluster) -> int:
    return int(cluster.shell(cluster.control, f"cat {FOLDER}/* | wc -l").check().stdout)


@pytest.mark.timeout(300)
def test_what_pbs_server_itself_counts_for_our_hook(cluster: PbsCluster, measured: Measured) -> None:
    """With the deadline that is the default, a daemon that answers and one that hangs."""
    with chosen(cluster, "submit_ms = 500", "submit_ms = 40"):
        cluster.manage("set server log_events = 65535")
        figures = {}
        try:
            for what, signal in (("answers", "CONT"), ("hangs", "STOP")):
                cluster.shell(cluster.control, f"kill -{signal} $(cluster pid qtandemd)").check()
                cluster.cancel(cluster.submitted(cluster.try_submit("true", "south", held=True).check()))
                since = logged(cluster)
                made = [cluster.try_submit("true", "south", held=True).check() for _ in range(15)]
                plain = [cluster.try_submit("true", held=True).check() for _ in range(15)]
                times = spent(cluster, "queuejob", since)
                assert len(times) == 30, f"{len(times)} of 30 calls in the log"
                figures[what] = statistics.median(times[:15]), statistics.median(times[15:])
                for done in (*made, *plain):
                    cluster.cancel(cluster.submitted(done))
        finally:
            cluster.shell(cluster.control, "kill -CONT $(cluster pid qtandemd)").check()
            cluster.pbs(["qmgr", "-c", "unset server log_events"])
        cluster.until(cluster.daemon_answers, bool, 30, "the daemon is healthy again")
        shown = "; ".join(f"it {what}: {ours:.1f}, no QPU {plain:.1f}" for what, (ours, plain) in figures.items())
        measured(f"pbs_server's own time in queuejob, median ms, a QPU and a daemon: {shown}")
        assert figures["hangs"][0] < 200
    agreed(cluster)

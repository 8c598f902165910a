"""A site's own hooks and settings beside ours, what the doctor sees, and what is left when we are taken away."""

from __future__ import annotations

import statistics

import pytest

from tests.live.cluster import Measured
from tests.live.pbs_cluster import PbsCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("pbs",)
OWN_CLUSTER = True

# Refuses a name, notes who was queued, and is first and last at once.
OWN = """import pbs
e = pbs.event()
if str(e.job.Job_Name) == "forbidden":
    e.reject("the site forbids this name")
if e.type == pbs.QUEUEJOB:
    e.job.Variable_List["SITE"] = "was here"
e.accept()
"""


def state(cluster: PbsCluster) -> str:
    """What an installer could have changed, without what counts by itself."""
    return settled(cluster.exec(cluster.control, ["cluster", "state"], timeout=60).check().stdout)


def settled(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#") and "licen" not in line)


def test_doctor_finds_all_in_order(cluster: PbsCluster) -> None:
    for host in (cluster.control, *cluster.workers):
        done = cluster.qtandem("doctor", "pbs", host=host)
        assert done.status == 0, f"{host}: {done.text}"


def test_installing_again_changes_nothing(cluster: PbsCluster) -> None:
    before = state(cluster)
    done = cluster.qtandem("install", "pbs", "--apply", timeout=60).check()
    assert "todo" not in done.stdout
    assert state(cluster) == before


def test_a_sites_own_hook_runs_beside_ours(cluster: PbsCluster) -> None:
    cluster.exec(cluster.control, ["tee", "/root/own.py"], stdin=OWN).check()
    for name, order in (("first", 1), ("last", 999)):
        cluster.manage(f"create hook {name}", f'set hook {name} event = "queuejob,runjob"')
        cluster.manage(
            f"set hook {name} order = {order}", f"import hook {name} application/x-python default /root/own.py"
        )
    try:
        refused = cluster.try_submit("true", "east", name="forbidden")
        assert "the site forbids this name" in refused.stderr
        assert not cluster.leases()
        job = cluster.submit("echo $SITE; env | grep ^QRMI_JOB_QPU_RESOURCES=", "east")
        assert cluster.wait_state(job, "ended").outcome == "completed"
        assert cluster.output(job) == "was here\nQRMI_JOB_QPU_RESOURCES=east\n"
        told = cluster.qtandem("doctor", "pbs").stdout
        assert "the site's hook last comes after ours" in told
        assert "hook first comes" not in told
    finally:
        cluster.manage("delete hook first", "delete hook last")
    agreed(cluster)


def test_the_doctor_names_what_was_changed(cluster: PbsCluster) -> None:
    cluster.manage("set hook qtandem_node enabled = false", "set resource qpu_east flag = q")
    cluster.manage('set server managers -= "qtandem-publisher@ctl"')
    cluster.shell(cluster.control, "chmod 777 /usr/libexec/qtandem/pbs/server_dyn_res").check()
    told = cluster.qtandem("doctor", "pbs")
    faults = [line.split(":")[0].removeprefix("FAULT").strip() for line in told.stdout.splitlines() if "FAULT" in line]
    try:
        assert told.status != 0
        assert {"right to set resources", "hook qtandem_node", "resource qpu_east", "file server_dyn_res"} <= set(
            faults
        )
    finally:
        cluster.qtandem("install", "pbs", "--apply", timeout=60).check()
    assert cluster.qtandem("doctor", "pbs").status == 0, cluster.qtandem("doctor", "pbs").text


def test_nobody_but_the_launchers_user_has_rights_in_pbs(cluster: PbsCluster) -> None:
    close = ["/opt/pbs/bin/qmgr", "-c", "set server resources_available.qpu_east = 1"]
    for user, allowed in (("qtandem", False), ("qtandem-worker", False), ("qtandem-publisher", True)):
        line = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--", *close]
        assert (cluster.exec(cluster.control, line, timeout=20).status == 0) is allowed, user
    assert cluster.pbs(close[1:] and ["qmgr", *close[1:]], "alice").status != 0


def test_a_new_qpu_needs_no_install(cluster: PbsCluster) -> None:
    """The daemon makes the resource; only the scheduler's own file is the admin's."""
    section = '\n[resources.late]\ntype = "simulator"\nsettings = { backend = "ideal", qubits = 5 }\n'
    config = cluster.shell(cluster.control, "cat /etc/qtandem/qtandem.toml").check().stdout
    cluster.exec(cluster.control, ["tee", "/etc/qtandem/qtandem.toml"], stdin=config + section).check()
    try:
        cluster.reload()
        cluster.until(lambda: cluster.sensors().get("late"), lambda free: free == 1, 20, "its sensor is open")
        job = cluster.submit("env | grep -c ^late_QRMI_JOB_ACQUISITION_TOKEN=", "late")
        assert cluster.wait_state(job, "ended").outcome == "completed"
        assert cluster.output(job) == "1\n"
        told = cluster.qtandem("doctor", "pbs").stdout
        assert "it does not look at qpu_late" in told
    finally:
        cluster.exec(cluster.control, ["tee", "/etc/qtandem/qtandem.toml"], stdin=config).check()
        cluster.reload()
        cluster.until(lambda: cluster.sensors().get("late"), lambda free: not free, 20, "its sensor is closed")
        cluster.manage("set server job_history_enable = false", "set server job_history_enable = true")
        gone = ["qmgr", "-c", "delete resource qpu_late"]
        cluster.until(lambda: cluster.pbs(gone).status, lambda status: status == 0, 30, "its resource is deleted")


@pytest.mark.timeout(300)
def test_what_our_hook_adds_to_a_submission(cluster: PbsCluster, measured: Measured) -> None:
    """Interleaved: with our hooks on a job with a QPU and one without, and with the hook switched off."""
    seconds: dict[str, list[float]] = {"no hook": [], "no QPU": [], "QPU": []}

    def submit(qpu: str) -> float:
        done = cluster.try_submit("true", qpu, held=True).check()
        cluster.cancel(cluster.submitted(done))
        return done.seconds

    for _ in range(5):
        for wanted, kinds in (("false", {"no hook": ""}), ("true", {"no QPU": "", "QPU": "east"})):
            cluster.manage(f"set hook qtandem_server enabled = {wanted}")
            # PBS compiles a hook when it runs it first.
            submit("")
            for _ in range(8):
                for what, qpu in kinds.items():
                    seconds[what].append(submit(qpu))
    figures = {what: statistics.median(values) * 1000 for what, values in seconds.items()}
    measured("pbs: qsub, median of 40 in ms: " + ", ".join(f"{what} {ms:.1f}" for what, ms in figures.items()))


def test_uninstalling_leaves_what_was_there(cluster: PbsCluster) -> None:
    cluster.kill("deadman")
    cluster.exec(cluster.control, ["cluster", "stop", "qtandemd"], timeout=60).check()
    # PBS keeps a resource that a job of its history has.
    cluster.manage("set server job_history_enable = false", "set server job_history_enable = true")
    done = cluster.qtandem("uninstall", "pbs", "--apply", timeout=60).check()
    assert "failed" not in done.stdout
    before = settled(cluster.exec(cluster.control, ["cat", "/var/log/cluster/before.txt"]).check().stdout)

    def left() -> set[str]:
        return set(state(cluster).splitlines()) ^ set(before.splitlines())

    # PBS takes away its own copy of the resources for its hosts a second after the last one.
    cluster.until(left, lambda lines: not lines, 15, "PBS is as it was before")
    bare = state(cluster)
    assert bare == before
    assert "qpu" not in bare
    assert "qtandem" not in bare
    job = cluster.submit("echo plain")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    cluster.qtandem("install", "pbs", "--apply", timeout=60).check()
    cluster.start("qtandemd")
    cluster.start("deadman")
    cluster.wait_sensors({"east": 1}, 30)
    job = cluster.submit("env | grep -c ^QTANDEM_RUN=", "east")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "1\n"

"""A site's own: installed twice and taken back to the letter, users apart, its own scripts asked too."""

from __future__ import annotations

import json
import time

import pytest

from tests.live.cluster import QPUS
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.hosts import Result
from tests.live.scenarios.crowd import agreed
from tests.live.scenarios.gridengine_forms import HOOKS, unharmed

MANAGERS = ("gridengine",)
OWN_CLUSTER = True
PUBLISHER = "qtandem-publisher"


def install(cluster: GridEngineCluster, host: str = "") -> Result:
    return cluster.sge(["qtandem", "install", "gridengine", "--apply"], host)


def as_user(cluster: GridEngineCluster, user: str, *argv: str) -> Result:
    line = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--", *argv]
    return cluster.sge(line, timeout=20)


def owners(cluster: GridEngineCluster, words: str) -> set[str]:
    """The users of the processes whose command line has these words."""
    rows = cluster.exec(cluster.control, ["ps", "-eo", "user:32=,args="]).stdout.splitlines()
    return {row.split()[0] for row in rows if words in row and " ps " not in row}


def test_each_part_has_a_user_of_its_own(cluster: GridEngineCluster) -> None:
    # qmaster starts its JSV with the first job.
    cluster.wait_state(cluster.submit("true", "east"), "ended")
    assert owners(cluster, "/usr/bin/qtandemd") == {"qtandem"}
    assert owners(cluster, "qtandem.core.providers.child") == {"qtandem-worker"}
    assert owners(cluster, "/usr/bin/qtandem-launcher") == {"root"}
    assert owners(cluster, "qtandem-deadman --manager") == {PUBLISHER}
    assert owners(cluster, f"{HOOKS}/jsv") == {"sgeadmin"}


def test_the_daemon_has_no_rights_in_the_cell_but_through_the_launcher(cluster: GridEngineCluster) -> None:
    managers = cluster.sge(["qconf", "-sm"]).stdout.split()
    assert PUBLISHER in managers
    assert "qtandem" not in managers
    change = ["qconf", "-mattr", "exechost", "complex_values", "qpu_east=9", "global"]
    for user in ("qtandem", "qtandem-worker"):
        assert as_user(cluster, user, *change).status != 0
    ask = (
        "import asyncio; from qtandem.core import commands; from qtandem.core.launching import Launcher; "
        "start = Launcher('/run/qtandem-launcher/launcher.sock').commands('gridengine'); "
        "print(asyncio.run(commands.run({}, timeout_s=10, start=start)).stdout)"
    )

    def through(user: str, *argv: str) -> Result:
        return as_user(cluster, user, "/opt/qtandem/bin/python", "-c", ask.format(list(argv)))

    assert "complex_values" in through("qtandem", "qconf", "-se", "global").check().stdout
    for argv in (
        ["qconf", "-kej"],
        ["qconf", "-am", "alice"],
        ["qconf", "-Mconf", "/run/qtandem/complexes.x"],
        ["qconf", "-Mc", "/run/qtandem/complexes.x"],
        ["qconf", "-mattr", "exechost", "complex_values", "slots=0", "global"],
        ["qconf", "-mattr", "exechost", "complex_values", "qpu_east=1,slots=0", "global"],
        ["qmod", "-rj", "*"],
        ["qalter", "-h", "O", "1"],
        ["qdel", "1"],
        ["sh"],
    ):
        assert "the launcher refuses" in through("qtandem", *argv).stderr, argv
    for user in ("alice", "qtandem-worker", PUBLISHER):
        assert "cannot be reached" in through(user, "qconf", "-sc").stderr


def test_a_resource_that_comes_later_gets_its_complex_by_the_daemon(cluster: GridEngineCluster) -> None:
    """By a program of the launcher's that adds complexes and can do nothing else."""
    added = '\n[resources.latecomer]\ntype = "simulator"\nsettings = { backend = "ideal", qubits = 5 }\n'
    toml = "/etc/qtandem/qtandem.toml"
    before = cluster.exec(cluster.control, ["cat", toml]).stdout
    try:
        cluster.exec(cluster.control, ["tee", "-a", toml], stdin=added).check()
        cluster.qtandem("daemon", "reload").check()
        job = ""

        def runs() -> bool:
            nonlocal job
            done = cluster.try_submit("echo $QRMI_JOB_QPU_RESOURCES", "latecomer")
            job = cluster.submitted(done) if done.status == 0 else ""
            return bool(job)

        cluster.until(runs, bool, 30, "the new QPU is known")
        assert cluster.wait_state(job, "ended", within=60).outcome == "completed"
        assert cluster.output(job) == "latecomer\n"
    finally:
        cluster.exec(cluster.control, ["tee", toml], stdin=before).check()
        cluster.qtandem("daemon", "reload").check()


SITE_JSV = r"""#!/bin/bash
# A site's own JSV, by the library that Grid Engine ships.
jsv_on_start() { jsv_send_env; return; }
jsv_on_verify() {
  case "$(jsv_get_param N)" in
    forbidden*) jsv_reject "the site wants no such name"; return ;;
    moved*) jsv_set_param q_hard classical; jsv_correct "moved"; return ;;
    later*) jsv_reject_wait "come back"; return ;;
    slow*) sleep 30 ;;
    dies*) exit 1 ;;
  esac
  jsv_accept "fine"
}
. /var/lib/gridengine/util/resources/jsv/jsv_include.sh
jsv_main
"""


@pytest.mark.timeout(240)
def test_the_sites_own_jsv_is_asked_first(cluster: GridEngineCluster) -> None:
    path, toml = "/usr/local/lib/site-jsv", "/etc/qtandem/qtandem.toml"
    before = cluster.exec(cluster.control, ["cat", toml]).stdout
    cluster.exec(cluster.control, ["tee", path], stdin=SITE_JSV).check()
    cluster.exec(cluster.control, ["chmod", "755", path]).check()
    section = '[managers.gridengine]\noptions = { jsv = "' + path + '" }\n'
    try:
        changed = before.replace("[managers.gridengine]\n", section)
        cluster.exec(cluster.control, ["tee", toml], stdin=changed).check()
        install(cluster).check()
        # qmaster starts a JSV whose file has changed anew.
        time.sleep(2)
        for qpu in ("", "east"):
            assert "the site wants no such name" in cluster.try_submit("true", qpu, name="forbidden").text
            assert cluster.try_submit("true", qpu, name="later").status != 0
            moved = cluster.submit("echo $QUEUE $QRMI_JOB_QPU_RESOURCES", qpu, name="moved")
            assert cluster.wait_state(moved, "ended").outcome == "completed"
            assert cluster.output(moved).split() == ["classical", *([qpu] if qpu else [])]
        assert "north" in cluster.try_submit("true", "nort", name="plain").text
        for name in ("slow", "dies"):
            done = cluster.try_submit("true", name=name, timeout=60)
            assert "does not answer" in done.text, done.text
            assert done.seconds < 15
        assert cluster.try_submit("true", name="plain").status == 0
    finally:
        cluster.exec(cluster.control, ["tee", toml], stdin=before).check()
        install(cluster).check()


def test_the_sites_own_prolog_and_starter_go_on(cluster: GridEngineCluster) -> None:
    """A queue with scripts of its own: the installer tells what to do, and with that done both run."""
    prolog = f'#!/bin/sh\necho "site prolog $JOB_ID" >>/home/site.log\nexec {HOOKS}/prolog "$@"\n'
    starter = '#!/bin/sh\nexport SITE_STARTER=1\nexec /bin/sh "$@"\n'
    for host in cluster.workers:
        for name, text in (("site-prolog", prolog), ("site-starter", starter)):
            cluster.exec(host, ["tee", f"/usr/local/lib/{name}"], stdin=text).check()
            cluster.exec(host, ["chmod", "755", f"/usr/local/lib/{name}"]).check()
    toml = "/etc/qtandem/qtandem.toml"
    before = {host: cluster.exec(host, ["cat", toml]).stdout for host in (cluster.control, *cluster.workers)}
    queue = ["qconf", "-mattr", "queue"]
    try:
        cluster.sge([*queue, "prolog", "root@/usr/local/lib/site-prolog $job_id $job_owner", "main"]).check()
        cluster.sge([*queue, "starter_method", "/usr/local/lib/site-starter", "main"]).check()
        told = install(cluster).stdout
        assert f"call ours from it, as root, and pass on its exit status: {HOOKS}/prolog $job_id $job_owner" in told
        assert "set options.starter to it" in told
        section = '[managers.gridengine]\noptions = { starter = "/usr/local/lib/site-starter" }\n'
        for host, text in before.items():
            changed = text.replace("[managers.gridengine]\n", section)
            cluster.exec(host, ["tee", toml], stdin=changed).check()
            install(cluster, host).check()
        cluster.sge([*queue, "starter_method", f"{HOOKS}/starter_method", "main"]).check()
        job = cluster.submit("echo $SITE_STARTER $QRMI_JOB_QPU_RESOURCES", "east", partition="main")
        assert cluster.wait_state(job, "ended").outcome == "completed"
        assert cluster.output(job) == "1 east\n"
        assert f"site prolog {job}" in cluster.exec("c1", ["cat", "/home/site.log"]).stdout
    finally:
        for key in ("prolog", "starter_method"):
            cluster.sge([*queue, key, "NONE", "main"]).check()
        for host, text in before.items():
            cluster.exec(host, ["tee", toml], stdin=text).check()
            install(cluster, host).check()
    unharmed(cluster)
    agreed(cluster)


def test_the_doctor_names_what_was_changed(cluster: GridEngineCluster) -> None:
    def faults() -> list[str]:
        said = json.loads(cluster.sge(["qtandem", "doctor", "gridengine", "--json"]).stdout)
        return [check["name"] for check in said["checks"] if check["ok"] is False]

    assert faults() == []
    cluster.sge(["qconf", "-dm", PUBLISHER]).check()
    cluster.configure(prolog="none", jsv_allowed_mod="ac,h,l")
    cluster.shell(cluster.control, f"chmod 777 {HOOKS}/jsv; echo >>{HOOKS}/prolog").check()
    assert faults() == [
        "hook jsv", "hook prolog", f"{PUBLISHER} is a manager of the cell", "prolog of the cell: the prolog",
        "jsv_allowed_mod",
    ]  # fmt: skip
    cluster.configure(jsv_allowed_mod="ac,h,i,e,o,j,M,N,p,w")
    install(cluster).check()
    assert faults() == []


def test_installed_again_nothing_changes(cluster: GridEngineCluster) -> None:
    objects = cluster.exec(cluster.control, ["cluster", "objects"]).stdout
    for host in (cluster.control, *cluster.workers):
        said = cluster.sge(["qtandem", "install", "gridengine"], host).check().stdout
        assert said.rstrip().endswith("nothing to change"), said
        install(cluster, host).check()
    assert cluster.exec(cluster.control, ["cluster", "objects"]).stdout == objects


@pytest.mark.timeout(300)
def test_taken_back_the_cell_is_exactly_as_it_was(cluster: GridEngineCluster) -> None:
    """The last test of this file: what is left is a plain cell."""
    running = cluster.submit("sleep 25; echo done", "east", nodes="c1")
    cluster.wait_begun(running)
    early = cluster.sge(["qtandem", "uninstall", "gridengine", "--apply"], "c1")
    assert early.status != 0
    assert "first, on the host of qmaster" in early.stdout

    cluster.kill("qtandemd")
    cluster.wait_sensors(dict.fromkeys(QPUS, 0), 30)
    objects = cluster.exec(cluster.control, ["cluster", "objects"]).stdout
    busy = cluster.sge(["qtandem", "uninstall", "gridengine", "--apply"])
    assert busy.status != 0
    assert f"jobs ask for a QPU ({running})" in busy.stdout
    assert cluster.exec(cluster.control, ["cluster", "objects"]).stdout == objects
    assert cluster.wait_state(running, "ended", within=90).outcome == "completed"
    assert cluster.output(running) == "done\n"
    unharmed(cluster)

    for host in (cluster.control, *cluster.workers):
        done = cluster.sge(["qtandem", "uninstall", "gridengine", "--apply"], host)
        assert done.status == 0, done.text
        assert cluster.shell(host, "ls -d /usr/libexec/qtandem /var/lib/qtandem/install/gridengine.json").status != 0
    diff = "cluster objects | diff /var/log/cluster/objects.before -"
    left = cluster.shell(cluster.control, diff)
    assert left.status == 0, left.stdout
    job = cluster.submit("echo plain")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "plain\n"
    assert cluster.sge(["qsub", "-l", "qpu=east", "-b", "y", "true"], user="alice").status != 0
    there = ["pgrep", "-f", HOOKS]
    for host in cluster.workers:
        cluster.until(lambda host=host: cluster.exec(host, there).stdout, lambda text: not text, 30, "no sensor runs")
    for host in (cluster.control, *cluster.workers):
        install(cluster, host).check()
    cluster.start("qtandemd")

"""What Grid Engine alone has: its forms of a request, its hooks on the nodes, its sensors, its ways to harm a queue."""

from __future__ import annotations

import re
import time

import pytest

from tests.live.cluster import all_at_once
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("gridengine",)
HOOKS = "/usr/libexec/qtandem/gridengine"
# `load_report_time` of the cluster.
REPORT_S = 3.0


def unharmed(cluster: GridEngineCluster) -> None:
    """No queue is stopped and no job is in error."""
    states = [line.split()[5:] for line in cluster.sge(["qstat", "-f"]).stdout.splitlines() if "@" in line]
    assert states == [[]] * 4, states
    assert "E" not in "".join(re.findall(r"<state>(.*?)</state>", cluster.sge(["qstat", "-u", "*", "-xml"]).stdout))


def requests(cluster: GridEngineCluster, job: str) -> str:
    text = cluster.sge(["qstat", "-j", job]).check().stdout
    return re.search(r"hard resource_list: +(.*)", text)[1]  # type: ignore[index]


def test_the_directive_in_the_script_is_read(cluster: GridEngineCluster) -> None:
    job = cluster.submit("#!/bin/sh\n#$ -l qpu=east\nenv | grep -c ^QRMI_JOB_QPU_RESOURCES=east\n")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "1\n"


def test_slots_by_a_complex_of_their_own(cluster: GridEngineCluster) -> None:
    cluster.close("north")
    cluster.wait_sensors({"north": 0})
    job = cluster.submit("true", args=["-l", "qpu=north,qpu_slots=2,arch=*"])
    assert set(requests(cluster, job).split(",")) == {"qpu_north=2", "arch=*"}
    cluster.cancel(job)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["-soft", "-l", "qpu=east"], "soft"),
        (["-l", "qpu_slots=2"], "names no QPU"),
        (["-l", "qpu=east,qpu_slots=0"], "qpu_slots=0"),
        (["-l", "qpu=east/south,qpu_slots=1"], "one name"),
        (["-l", "qpu=east,qpu_south=1"], "not mean the same"),
        (["-l", "qpu_nowhere=1"], "qpu_nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused(cluster: GridEngineCluster, args: list[str], word: str) -> None:
    done = cluster.try_submit("true", args=args)
    assert done.status != 0
    assert word in done.text


def test_a_users_own_limit_on_the_queue_at_the_vendor(cluster: GridEngineCluster) -> None:
    cluster.set("east", queue=7)
    shown = ["qhost", "-F", "qpu_queue_east"]
    cluster.until(lambda: cluster.sge(shown).stdout, lambda text: text.count("=7.0") == 2, 20, "hosts report the queue")
    job = cluster.submit("true", args=["-l", "qpu=east,qpu_queue_east=3"])
    time.sleep(2 * REPORT_S)
    assert cluster.job(job).state == "pending"
    cluster.set("east", queue=2)
    assert cluster.wait_state(job, "ended").outcome == "completed"


def test_tasks_of_an_array_have_a_lease_each(cluster: GridEngineCluster) -> None:
    before = len(cluster.witness("north"))
    job = cluster.submit("sleep 1; echo $QTANDEM_RUN >>$HOME/array-$JOB_ID", "north", args=["-t", "1-5:2"])
    cluster.wait_state(job, "ended", within=60)
    said = cluster.exec(cluster.control, ["cat", f"/home/alice/array-{job}"]).stdout.split()
    assert sorted(said) == [f"gridengine:lab:{job}_{task}.0" for task in (1, 3, 5)]
    acquired = [row for row in cluster.witness("north")[before:] if row["event"] == "acquire"]
    assert len(acquired) == 3
    agreed(cluster)


def test_shell_arguments_and_variables_are_what_they_are_without_us(cluster: GridEngineCluster) -> None:
    names = ("PYTHON", "SITE", "RUNS", "HOOKS", "login", "line", "a.b", "x-y", "BASH_FUNC_module%%")
    given = ",".join(f"{name}=mine" for name in names)
    kept = "import os; print(sorted(name for name, value in os.environ.items() if value == 'mine'))"
    forms: list[tuple[str, list[str]]] = [
        ("shopt -q login_shell && echo login; echo $0 $1 | sed 's|.*/||'", ["-S", "/bin/bash"]),
        ("", ["-b", "y", "-S", "/bin/bash", "echo", "a  b", "c;", "echo", "$JOB_NAME"]),
        ("", ["-b", "y", "-shell", "no", "echo", "a  b", "c;", "$HOME"]),
        ("", ["-b", "y", "-shell", "no", "-v", given, "/usr/bin/python3", "-c", kept]),
        ("echo $PYTHON $SITE $RUNS $HOOKS $login $line", ["-v", given]),
    ]

    def outputs() -> list[str]:
        found = []
        for script, args in forms:
            job = cluster.submit(script, args=args)
            cluster.wait_state(job, "ended")
            found.append(cluster.output(job).replace(job, "N"))
        return found

    ours = outputs()
    cluster.sge(["qconf", "-mattr", "queue", "starter_method", "NONE", "main", "classical"]).check()
    try:
        plain = outputs()
    finally:
        cluster.sge(["qconf", "-mattr", "queue", "starter_method", f"{HOOKS}/starter_method", "main"]).check()
        cluster.sge(["qconf", "-mattr", "queue", "starter_method", f"{HOOKS}/starter_method", "classical"]).check()
    assert ours == plain
    assert "PYTHON" in plain[3]


def test_owners_change_neither_qpu_nor_hold(cluster: GridEngineCluster) -> None:
    cluster.close("east")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit("true", "east", user="bob")
    cluster.sge(["qalter", "-h", "o", job]).check()
    for change in (["qalter", "-l", "qpu_physics_only=1", job], ["qalter", "-v", "QTANDEM_QPU=", job]):
        assert cluster.sge(change, user="bob").text.count("jsv_allowed_mod")
    assert "must be operator" in cluster.sge(["qrls", "-h", "o", job], user="bob").text
    assert requests(cluster, job) == "qpu_east=1"
    cluster.cancel(job)


def test_root_hooks_run_nothing_of_the_users(cluster: GridEngineCluster) -> None:
    evil = "import os\nopen('/tmp/pwned-%d' % os.getuid(), 'w').write('x')\n"
    script = (
        '#!/bin/sh\nset +e\n/usr/bin/id -u >/tmp/pwned-$(/usr/bin/id -u)\nexec /usr/bin/env -i /bin/sh -c "exit 0"\n'
    )
    places = {f"{name}.py": evil for name in ("sitecustomize", "usercustomize", "json", "http", "evil")}
    places |= dict.fromkeys(("python3", "env", "sleep", "date", "stat", "timeout", "sh"), script)
    for name, text in places.items():
        cluster.exec(cluster.control, ["tee", f"/home/bob/{name}"], "bob", stdin=text).check()
        cluster.exec(cluster.control, ["chmod", "755", f"/home/bob/{name}"], "bob").check()
    hostile = {
        "PATH": "/home/bob", "PYTHONPATH": "/home/bob", "PYTHONSTARTUP": "/home/bob/evil.py", "PYTHONHOME": "/home/bob",
        "PERL5LIB": "/home/bob", "LD_PRELOAD": "/home/bob/evil.so", "LD_LIBRARY_PATH": "/home/bob",
        "LD_AUDIT": "/home/bob/evil.so", "ENV": "/home/bob/sh", "BASH_ENV": "/home/bob/sh", "IFS": "/",
        "JOB_ID": "1", "SGE_TASK_ID": "4", "SGE_JOB_SPOOL_DIR": "/home/bob", "PPID": "1", "QTANDEM_QPU": "",
        "QTANDEM_SOCKET": "/home/bob/sock", "QTANDEM_RUN": "gridengine:lab:1.0", "QRMI_JOB_QPU_RESOURCES": "direct",
    }  # fmt: skip
    given = ",".join(f"{name}={value}" for name, value in hostile.items())
    job = cluster.submit("/usr/bin/env", "east", "bob", args=["-v", given])
    assert cluster.wait_state(job, "ended").outcome == "completed", cluster.output(job, "bob")
    env = dict(line.split("=", 1) for line in cluster.output(job, "bob").splitlines() if "=" in line)
    assert env["QRMI_JOB_QPU_RESOURCES"] == "east"
    assert env["QRMI_JOB_UID"] == "2002"
    assert env["QTANDEM_RUN"] == f"gridengine:lab:{job}.0"
    for host in (cluster.control, *cluster.workers):
        found = cluster.shell(host, "ls /tmp/pwned-0 /tmp/pwned-$(id -u sgeadmin) /tmp/pwned-$(id -u qtandem)").stdout
        assert found == "", f"a privileged process on {host} ran the user's code"
        assert cluster.shell(host, "ls -A /run/qtandem/runs").stdout == ""
    agreed(cluster)


def test_a_mark_of_the_users_own_gets_no_lease(cluster: GridEngineCluster) -> None:
    """The hooks look at jobs with our mark; what such a job may have is what Grid Engine granted it."""
    before = len(cluster.witness("east"))
    job = cluster.submit("true", args=["-v", "QTANDEM_QPU=1,QTANDEM_NATIVE=qpu_east=1"])
    cluster.wait_state(job, "ended")
    assert not [row for row in cluster.witness("east")[before:] if row["event"] == "acquire"]
    unharmed(cluster)


def test_two_jobs_that_start_for_one_slot(cluster: GridEngineCluster) -> None:
    """The consumable is bypassed: both reach their prologs; one runs, the other waits again without harm."""
    cluster.sge(["qconf", "-mattr", "exechost", "complex_values", "qpu_east=2", "global"]).check()
    jobs = all_at_once(2, lambda _: cluster.submit("echo once; sleep 6", "east"))
    ended = cluster.wait_ended(jobs, within=120)
    assert {view.outcome for view in ended.values()} == {"completed"}
    assert [cluster.output(job) for job in jobs] == ["once\n"] * 2
    unharmed(cluster)
    agreed(cluster)


def test_a_deleted_job_leaves_a_slow_acquire_at_once(cluster: GridEngineCluster) -> None:
    cluster.set("east", latency_s=4.0)
    job = cluster.submit("true", "east", nodes="c1")
    cluster.until(cluster.leases, bool, 20, "the lease is being acquired")
    cluster.cancel(job)
    began = time.monotonic()
    cluster.wait_state(job, "ended", within=30)
    assert time.monotonic() - began < 15
    cluster.open("east")
    unharmed(cluster)
    agreed(cluster)


def test_the_check_of_jobs_outlives_the_daemon_and_words_that_it_does_not_know(cluster: GridEngineCluster) -> None:
    process = f"pgrep -f '^/usr/bin/python3 -I {HOOKS}/jsv'"
    before = cluster.shell(cluster.control, process).check().stdout
    odd = ["-N", "x'\"$(id)", "-ac", "a=1,b=%0a", "-b", "y", "echo", "RESULT STATE ACCEPT", "PARAM l_hard qpu_east=1"]
    cluster.wait_state(cluster.submit("", args=odd), "ended")
    cluster.kill("qtandemd")
    assert cluster.try_submit("true", "east+south").status != 0
    cluster.submit("true")
    cluster.start("qtandemd")
    # Each of qmaster's threads starts one of its own when it first needs it.
    assert set(before.split()) <= set(cluster.shell(cluster.control, process).stdout.split())


def test_doctor_finds_all_in_order_on_every_host(cluster: GridEngineCluster) -> None:
    for host in (cluster.control, *cluster.workers):
        done = cluster.sge(["qtandem", "doctor", "gridengine"], host)
        assert done.status == 0, f"{host}: {done.text}"

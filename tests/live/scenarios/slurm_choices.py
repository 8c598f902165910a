"""A choice follows what opens while its job waits, and pauses end when their cause has gone."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.live.cluster import Cluster
from tests.live.scenarios.crowd import agreed
from tests.live.slurm_cluster import licences_of

MANAGERS = ("slurm",)
SAY = "echo $QRMI_JOB_QPU_RESOURCES"


def test_a_choice_is_moved_to_what_opens_earlier(cluster: Cluster) -> None:
    cluster.close("east", "south")
    cluster.wait_sensors({"east": 0, "south": 0})
    job = cluster.submit(SAY, "east/south")
    first = licences_of(cluster, job).partition("@")[0]
    other = "south" if first == "east" else "east"
    opened = cluster.set(other, availability="online", reason="")
    cluster.until(lambda: licences_of(cluster, job), lambda text: text == f"{other}@qtandem:1", 10, "it was moved")
    print(f"moved {time.time() - opened:.1f} s after the opening")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job).strip() == other
    cluster.open()
    agreed(cluster)


@pytest.mark.timeout(300)
def test_the_elements_of_an_array_that_has_a_choice_spread_over_what_is_free(cluster: Cluster) -> None:
    """All are pinned to one QPU when they are submitted; each waits by itself, and is moved by itself."""
    script = "echo $QRMI_JOB_QPU_RESOURCES $QTANDEM_RUN; sleep 6"
    job = cluster.submit(script, "either", args=["--array=0-9", "--output=/home/alice/spread-%A-%a.out"])
    done = f"squeue -h -r -t all -j {job} -o %T"
    cluster.until(
        lambda: cluster.shell(cluster.control, done).stdout.split(), lambda rows: rows == ["COMPLETED"] * 10, 250, "all"
    )
    said = cluster.shell(cluster.control, f"cat spread-{job}-*.out", "alice").stdout.split("\n")[:-1]
    assert sorted(line.split()[1] for line in said) == sorted(f"slurm:lab:{job}_{index}.0" for index in range(10))
    shares = Counter(line.split()[0] for line in said)
    print(f"elements by QPU: {dict(shares)}")
    assert set(shares) == {"east", "south"}
    assert min(shares.values()) >= 2, shares
    agreed(cluster)


def test_a_moved_choice_moves_again_after_the_daemon_was_killed(cluster: Cluster) -> None:
    cluster.close("east", "south")
    cluster.wait_sensors({"east": 0, "south": 0})
    job = cluster.submit(SAY, "either", args=["--begin=now+120"])
    first = licences_of(cluster, job).partition("@")[0]
    other = "south" if first == "east" else "east"
    cluster.set(other, availability="online", reason="")
    cluster.until(lambda: licences_of(cluster, job), lambda text: text.startswith(other), 10, "it was moved")
    cluster.close(other)
    cluster.kill("qtandemd")
    cluster.start("qtandemd")
    cluster.until(cluster.daemon_answers, bool, 30, "the daemon is back")
    cluster.set(first, availability="online", reason="")
    cluster.until(lambda: licences_of(cluster, job), lambda text: text.startswith(first), 15, "it was moved back")


def test_what_its_owner_chose_since_stays(cluster: Cluster) -> None:
    cluster.close("east", "south", "north")
    cluster.wait_sensors({"east": 0, "south": 0, "north": 0})
    job = cluster.submit(SAY, "east/south")
    change = ["scontrol", "update", f"jobid={job}", "licenses=north@qtandem:1"]
    cluster.exec(cluster.control, change, "alice").check()
    cluster.open("east", "south")
    cluster.wait_sensors({"east": 1, "south": 1})
    time.sleep(3)
    assert licences_of(cluster, job) == "north@qtandem:1"
    cluster.open("north")
    assert cluster.wait_state(job, "ended").outcome == "completed"
    assert cluster.output(job) == "north\n"


def test_a_requeued_job_starts_long_before_slurms_two_minutes(cluster: Cluster) -> None:
    job = cluster.submit('echo $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ] || sleep 300', "east", requeue=True)
    cluster.wait_begun(job)
    licences = licences_of(cluster, job)
    began = time.monotonic()
    cluster.requeue(job)
    view = cluster.wait_state(job, "ended", within=60)
    print(f"requeued to ended: {time.monotonic() - began:.1f} s")
    assert (view.outcome, view.restarts) == ("completed", 1)
    assert licences_of(cluster, job) == licences, "a requeue must not lose the licences"
    agreed(cluster)


def test_a_begin_time_of_the_users_own_is_left_alone(cluster: Cluster) -> None:
    job = cluster.submit(SAY, "east", args=["--begin=now+40"])
    time.sleep(20)
    assert cluster.job(job).state == "pending"
    cluster.cancel(job)


def test_a_refused_job_starts_when_the_qpu_opens_and_not_before(cluster: Cluster) -> None:
    cluster.set("east", fault="500", fault_on="acquire")
    job = cluster.submit(SAY, "east")
    cluster.until(lambda: cluster.job(job), lambda view: view.restarts >= 1, 60, "it was refused")
    cluster.set("east", fault="", availability="offline", reason="repair")
    cluster.wait_sensors({"east": 0})
    cluster.until(
        lambda: cluster.shell(cluster.control, f"squeue -h -j {job} -o %r").stdout.strip(),
        lambda reason: reason in ("BeginTime", "Licenses", "None"),
        20,
        "it waits",
    )
    cluster.open("east")
    assert cluster.wait_state(job, "ended", within=40).outcome == "completed"
    agreed(cluster)

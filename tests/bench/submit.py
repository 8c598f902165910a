"""What qtandem adds to a submission, and how soon a job runs after its QPU opened, on a real Slurm.

A submission without qtandem has neither the option plug-in (PlugStackConfig of its own) nor our part of
job_submit.lua; with and without take turns at fixed times. Scheduling intervals are Slurm's defaults. A QPU opens at a
random moment, and once more right after a submission: Slurm then keeps its pause after scheduling, whoever asks. The
peer of the opening is a licence that is opened by sacctmgr alone, as the reference poller does: nobody kicks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from statistics import median

from tests.bench import _cluster
from tests.bench.rows import Row
from tests.live.cluster import moments
from tests.live.slurm_cluster import SlurmCluster

skip = _cluster.skip
ADDED_MS, OPENED_S = 5.0, 2.0
QUEUE, OPENINGS, UNKICKED, AT_ONCE = 45, 10, 4, 5
# As long as this after its submission, a QPU may open at any moment.
UNCERTAIN_S = 10.0
KINDS = ("without", "no QPU", "QPU")

HOOK = """
local qtandem = dofile("/usr/libexec/qtandem/slurm/qtandem.lua")
function slurm_job_submit(job, parts, uid)
  if job.name == "without" then return slurm.SUCCESS end
  return qtandem.submit(job, parts, uid)
end
function slurm_job_modify(job, rec, parts, uid) return qtandem.modify(job, rec, parts, uid) end
return slurm.SUCCESS
"""

LOAD = """
import json, os, subprocess, sys, threading, time
rate, seconds, kinds = json.loads(sys.argv[1])
took, failed = {kind: [] for kind in kinds}, []
def submit(kind):
    env = dict(os.environ, SLURM_CONF="/etc/slurm/bare.conf") if kind == "without" else dict(os.environ)
    argv = ["sbatch", "--hold", f"--job-name={kind.split()[0]}", "--output=/dev/null", "--wrap=true"]
    if kind == "QPU":
        argv.insert(1, "--qpu=east")
    began = time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    took[kind].append(time.perf_counter() - began)
    if done.returncode:
        failed.append(f"{kind}: {done.stderr.strip()}")
begin, threads = time.perf_counter() + 0.1, []
for number in range(int(rate * seconds)):
    time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
    threads.append(threading.Thread(target=submit, args=(kinds[number % len(kinds)],)))
    threads[-1].start()
for thread in threads:
    thread.join()
print(json.dumps({"took": took, "failed": failed}))
"""


def rows() -> Iterator[Row]:
    with _cluster.cluster() as site:
        _prepare(site)
        for rate, seconds, kind in ((5, 45, "required"), (50, 6, "info")):
            yield from _submissions(site, rate, seconds, kind)
        yield from _opening(site)


def _prepare(site: SlurmCluster) -> None:
    site.exec(site.control, ["tee", "/etc/slurm/job_submit.lua"], stdin=HOOK).check()
    bare = "{ cat /etc/slurm/slurm.conf; echo PlugStackConfig=/dev/null; } >/etc/slurm/bare.conf"
    site.shell(site.control, f"{bare}; chmod 644 /etc/slurm/bare.conf").check()
    site.close("east", "south")
    site.wait_sensors({"east": 0, "south": 0})


def _submissions(site: SlurmCluster, rate: int, seconds: int, kind: str) -> Iterator[Row]:
    argv = ["python3", "-c", LOAD, json.dumps([rate, seconds, KINDS])]
    load = json.loads(site.exec(site.control, argv, "alice", timeout=seconds * 3 + 60).check().stdout)
    site.shell(site.control, "scancel -u alice", timeout=60).check()
    middle = {name: 1000 * median(values) for name, values in load["took"].items()}
    refused = [text for text in load["failed"] if "Try again" in text]
    assert len(refused) == len(load["failed"]), load["failed"][:3]
    for name in KINDS[1:]:
        yield Row(
            name=f"added to sbatch at {rate}/s, median, {name}",
            value=middle[name] - middle["without"],
            unit="ms",
            bound=ADDED_MS if kind == "required" else None,
            kind="required" if kind == "required" else "info",
            peer="sbatch without qtandem",
            peer_value=middle["without"],
            ratio=middle[name] / middle["without"],
        )
    if kind == "info" or refused:
        yield Row(name=f"told to try again at {rate}/s", value=len(refused), unit=f"of {len(load['took']['QPU'])}")


def _opening(site: SlurmCluster) -> Iterator[Row]:
    """The jobs that wait stand behind others that wait for something else."""
    for _ in range(QUEUE):
        site.submit("true", "south")
    kicked = [_kicked(site, moment) for moment in moments(OPENINGS, UNCERTAIN_S)]
    at_once = [_kicked(site, 0.0) for _ in range(AT_ONCE)]
    add = "sacctmgr -iQ add resource name=peer server=other type=license count=1 cluster=lab allowed=100 lastconsumed=2"
    site.shell(site.control, add).check()
    unkicked = [_unkicked(site, moment) for moment in moments(UNKICKED, UNCERTAIN_S)]
    behind = f"behind {QUEUE} waiting jobs"
    yield Row(
        name=f"opened to running at a random moment, median of {OPENINGS}, {behind}",
        value=median(kicked),
        unit="s",
        bound=OPENED_S,
        kind="required",
        peer="a licence opened without a kick",
        peer_value=median(unkicked),
        ratio=median(unkicked) / median(kicked),
    )
    yield Row(name=f"opened to running at a random moment, worst of {OPENINGS}, {behind}", value=max(kicked), unit="s")
    yield Row(
        name=f"opened to running right after a submission, median of {AT_ONCE}, {behind}",
        value=median(at_once),
        unit="s",
        peer="Slurm's pause after scheduling (batch_sched_delay)",
        peer_value=3.0,
    )


def _kicked(site: SlurmCluster, moment: float) -> float:
    site.close("east")
    site.wait_sensors({"east": 0})
    job = site.submit("date +%s.%N", "east")
    time.sleep(moment)
    opened = site.set("east", availability="online", reason="")
    site.wait_state(job, "ended", within=90)
    return float(site.output(job)) - opened


def _unkicked(site: SlurmCluster, moment: float) -> float:
    value = "sacctmgr -iQ modify resource where name=peer server=other set lastconsumed="
    site.shell(site.control, f"{value}2").check()
    job = site.submit("date +%s.%N", args=["--licenses=peer@other:1"])
    time.sleep(moment)
    opened = float(site.shell(site.control, f"date +%s.%N; {value}0").check().stdout.split()[0])
    site.wait_state(job, "ended", within=120)
    return float(site.output(job)) - opened

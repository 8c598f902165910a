"""`make demo-slurm`: the main job on a Slurm cluster in containers, to watch.

usage: python -m tests.live.demo_slurm [--keep]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.live.cluster import Cluster
from tests.live.hosts import ROOT, no_docker
from tests.live.scenarios.main_job import TASK
from tests.live.slurm_cluster import SlurmCluster


def say(text: str) -> None:
    print(f"\n\033[1m# {text}\033[0m" if sys.stdout.isatty() else f"\n# {text}", flush=True)


def show(cluster: Cluster, command: str, user: str = "alice") -> None:
    print(f"$ {command}")
    print(cluster.shell(cluster.control, command, user, timeout=60).text.rstrip(), flush=True)


def tour(cluster: Cluster) -> None:
    say("What there is")
    show(cluster, "qtandem resources")

    say("The QPU east is being calibrated; a job that asks for it waits, for Slurm's own reason")
    cluster.close("east", reason="calibrating, back in some seconds")
    cluster.wait_sensors({"east": 0})
    job = cluster.submit(TASK.replace("--json ", ""), qpu="east", name="bell")
    print(f"$ sbatch --qpu=east bell.sh\nSubmitted batch job {job}")
    cluster.until(lambda: cluster.job(job), lambda view: view.reason == cluster.waits_for_qpu, 15, "the job waits")
    show(cluster, "squeue")
    show(cluster, f"qtandem explain {job}")

    say("The calibration ends")
    opened = cluster.set("east", availability="online", reason="")
    cluster.wait_state(job, "running", "ending", "ended")
    print(f"running {time.time() - opened:.1f} s later")
    show(cluster, "qtandem leases")
    cluster.wait_state(job, "ended", within=60)
    show(cluster, f"cat job-{job}.out")

    say("The slot is free again, and the run is accounted")
    cluster.wait_no_leases()
    show(cluster, "qtandem leases")
    show(cluster, "qtandem usage")

    say("What cannot run is refused at once")
    show(cluster, "sbatch --qpu=eats --wrap hostname")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.demo_slurm", description="Watch the main job.")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    keep = parser.parse_args().keep
    lack = no_docker()
    if lack:
        print(f"demo-slurm needs Docker: {lack}", file=sys.stderr)
        return 1
    say("The image of the cluster (minutes the first time, seconds later)")
    subprocess.run([ROOT / "containers/build"], check=True)
    cluster = SlurmCluster("qtandem-demo")
    try:
        began = time.monotonic()
        cluster.up()
        say(f"Three hosts are up after {time.monotonic() - began:.0f} s")
        tour(cluster)
    finally:
        if not keep:
            cluster.down()
    if keep:
        say(f"Look around with: docker exec -it {cluster.containers['ctl'][:12]} bash")
        print("End it with: docker-compose -p qtandem-demo -f containers/slurm/docker-compose.yml down -v")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A Slurm cluster of `containers/slurm`, as the scenarios drive it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.live.cluster import Cluster, JobView
from tests.live.hosts import Result

_STATES = {"PENDING": "pending", "CONFIGURING": "starting", "RUNNING": "running", "COMPLETING": "ending"}
_OUTCOMES = {"NODE_FAIL": "node-failure", "REQUEUED": "requeued"}


class SlurmCluster(Cluster):
    manager = "slurm"
    control = "ctl"
    workers = ("c1", "c2")
    waits_for_qpu = "Licenses"
    cannot: Mapping[str, str] = {}
    devices_user = "qtandem-worker"
    roles: Mapping[str, str] = {"controller": "slurmctld", "accounting": "slurmdbd", "execution": "slurmd"}
    control_daemons = ("munged", "mariadbd", "slurmdbd", "slurmctld", "launcher", "qtandemd", "deadman")
    worker_daemons = ("munged", "slurmd", "relay")
    resumes = "scontrol update nodename={host} state=resume 2>/dev/null"
    logs = "tail -n +1 /var/log/slurm/* /var/log/cluster/* /var/log/qtandem/* 2>/dev/null"

    def ready(self) -> bool:
        if not self.hosts_ready():
            return False
        nodes = self.exec(self.control, ["sinfo", "-h", "-N", "-p", "main", "-o", "%N %t"], timeout=5).stdout
        return len(nodes.splitlines()) == len(self.workers) and all(
            line.split()[1] in ("idle", "mix", "alloc") for line in nodes.splitlines()
        )

    # ---- jobs
    def try_submit(self, script: str, qpu: str = "", user: str = "alice", **options: Any) -> Result:
        argv = ["sbatch", "--parsable", "--output", f"/home/{user}/job-%j.out", "--open-mode=append"]
        if qpu:
            argv.append(f"--qpu={qpu}")
        flags = {"name": "--job-name", "partition": "--partition", "minutes": "--time", "nodes": "--nodelist"}
        argv += [f"{flag}={options[key]}" for key, flag in flags.items() if options.get(key)]
        if options.get("requeue") is False:
            argv.append("--no-requeue")
        elif options.get("requeue"):
            argv.append("--requeue")
        if options.get("held"):
            argv.append("--hold")
        argv += options.get("args", ())
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        host = options.get("host", self.control)
        return self.exec(host, argv, user, stdin=text, env=options.get("env"), timeout=options.get("timeout", 20))

    def submitted(self, result: Result) -> str:
        return result.stdout.strip().splitlines()[-1].partition(";")[0]

    def jobs(self) -> dict[str, JobView]:
        done = self.exec(self.control, ["scontrol", "-o", "show", "job"], timeout=15)
        if done.status and "No jobs in the system" not in done.text:
            done.check()
        views = (_view(line) for line in done.stdout.splitlines() if line.startswith("JobId="))
        return {view.id: view for view in views}

    def cancel(self, job: str, user: str = "root") -> None:
        self.exec(self.control, ["scancel", job], "" if user == "root" else user, timeout=15).check()

    def requeue(self, job: str) -> None:
        self.exec(self.control, ["scontrol", "requeue", job], timeout=15).check()

    def expedite(self, job: str) -> None:
        self.exec(self.control, ["scontrol", "update", f"jobid={job}", "starttime=now"], timeout=15).check()

    # ---- sensors
    def sensors(self) -> dict[str, int]:
        return {name: row["Free"] for name, row in self._licences().items()}

    def in_use(self) -> dict[str, int]:
        return {name: row["Used"] for name, row in self._licences().items()}

    def _licences(self) -> dict[str, dict[str, int]]:
        text = self.exec(self.control, ["scontrol", "-o", "show", "licenses"], timeout=10).check().stdout
        out = {}
        for line in text.splitlines():
            fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
            name, _, server = fields.get("LicenseName", "").partition("@")
            if server == "qtandem":
                out[name] = {key: int(fields[key]) for key in ("Total", "Used", "Free")}
        return out

    # ---- evidence
    def records(self, job: str) -> str:
        commands = (
            f"scontrol -dd show job {job}",
            f"scontrol show job {job} --json",
            f"sacct -j {job} -o ALL -P",
            f"scontrol write batch_script {job} -",
            f"squeue -j {job} -o '%all'",
            "scontrol show licenses",
        )
        return "\n".join(self.shell(self.control, command).text for command in commands)

    def overview(self) -> str:
        shown = "scontrol -d show job; scontrol show licenses; scontrol show node; ps -ef; qtandem leases"
        return self.shell(self.control, shown).text


def _view(line: str) -> JobView:
    def field(name: str) -> str:
        match = re.search(rf"(?:^| ){name}=(\S*)", line)
        return match[1] if match else ""

    word = field("JobState")
    comment = re.search(r" Comment=(.*?)(?: \w+=|\s*$)", line)
    return JobView(
        id=field("JobId"),
        state=_STATES.get(word, "ended"),
        outcome="" if word in _STATES else _OUTCOMES.get(word, word.lower()),
        reason=field("Reason"),
        restarts=int(field("Restarts") or 0),
        nodes=field("NodeList"),
        comment=comment[1] if comment else "",
    )


def licences_of(cluster: Cluster, job: str) -> str:
    """The licences in a job's record, as slurmctld writes them."""
    record = cluster.shell(cluster.control, f"scontrol -o show job {job}").check().stdout
    return next(part.partition("=")[2] for part in record.split() if part.startswith("Licenses="))

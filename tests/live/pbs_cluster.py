"""A PBS cluster of `containers/pbs`, on a site's own PBS, as the scenarios drive it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from tests.live.cluster import Cluster, JobView
from tests.live.hosts import Result

BIN = "/opt/pbs/bin"
_STATES = {
    "Q": "pending", "H": "pending", "W": "pending", "T": "pending", "B": "running", "R": "running", "S": "suspended",
    "U": "suspended", "E": "ending", "F": "ended", "X": "ended", "M": "ended",
}  # fmt: skip
# Substates: sent to its host, where hooks still run; ended by qdel.
_PRERUN, _DELETED = 41, 91
# `Exit_status` of PBS's own.
_OUTCOMES = {0: "completed", -20: "node-failure", -29: "timeout"}
# The scenarios' words, which are Slurm's: for our own back-off, and for a hold without an end.
WAITS, BACKED_OFF, HELD = "waits for its QPU", "BeginTime", "JobHeld"


class PbsCluster(Cluster):
    manager = "pbs"
    control = "ctl"
    workers = ("c1", "c2")
    waits_for_qpu = WAITS
    pauses_requeued = False
    devices_user = "qtandem-worker"
    roles: Mapping[str, str] = {"controller": "pbs_server", "execution": "pbs_mom"}
    control_daemons = ("pbs_comm", "pbs_server", "pbs_sched", "launcher", "qtandemd", "deadman")
    worker_daemons = ("relay", "pbs_mom")
    logs = (
        "tail -n +1 /var/spool/pbs/server_logs/* /var/spool/pbs/sched_logs/* /var/spool/pbs/mom_logs/* "
        "/var/log/cluster/* 2>/dev/null; ps -ef"
    )
    whole_environment = ("-V",)
    # PBS counts the first run as 1.
    first_attempt = 1
    cannot: Mapping[str, str] = {
        "directives": "the scenario's directive is Slurm's; `#PBS -l qpu=` has a scenario of its own",
        "interactive": "the scenario runs srun; qsub -I has a scenario of its own",
        "steps": "PBS has no steps",
        "kill accounting": "PBS has no accounting daemon",
        "scontrol": "that is Slurm's; pbs_site has the rights in PBS",
        "launcher's death shows": "the process that speaks to PBS goes on without it",
        "modify": "the scenario runs scontrol; qalter has a scenario of its own",
    }

    def up(self, within: float = 180.0) -> Self:
        # PBS makes its database at its first start.
        return super().up(within)

    def ready(self) -> bool:
        if not self.hosts_ready():
            return False
        told = self.pbs(["pbsnodes", "-a", "-F", "json"], timeout=10).stdout
        nodes = json.loads(told).get("nodes", {}) if told else {}
        return len(nodes) == len(self.workers) and all(
            state in ("free", "job-busy") for node in nodes.values() for state in node["state"].split(",")
        )

    def pbs(self, argv: list[str], user: str = "", host: str = "", **options: Any) -> Result:
        """One of PBS's commands; a server that hangs would have it hang for ever."""
        options.setdefault("timeout", 20)
        return self.exec(host or self.control, [f"{BIN}/{argv[0]}", *argv[1:]], user, **options)

    def manage(self, *directives: str) -> None:
        """Directives of qmgr, by its admin."""
        for directive in directives:
            self.pbs(["qmgr", "-c", directive]).check()

    def reload(self) -> None:
        """Have the daemon take up its configuration, and wait until it has."""
        count = 'grep -c \'"event": "reload\' /var/log/cluster/qtandemd.log'
        before = self.shell(self.control, count).stdout
        self.qtandem("daemon", "reload").check()
        self.until(lambda: self.shell(self.control, count).stdout, lambda now: now != before, 30, "it is reloaded")

    # ---- jobs
    def try_submit(self, script: str, qpu: str = "", user: str = "alice", **options: Any) -> Result:
        # Written to the folder from the job's first line on, as JOB.SERVER.OU.
        argv = ["qsub", "-j", "oe", "-koed", "-o", f"/home/{user}/"]
        if qpu:
            argv += ["-l", f"qpu={qpu}"]
        if options.get("minutes"):
            argv += ["-l", f"walltime=0:{options['minutes']}:0"]
        if options.get("nodes"):
            argv += ["-l", f"select=1:ncpus=1:vnode={options['nodes']}"]
        argv += ["-N", options.get("name") or "job"]
        if options.get("partition"):
            argv += ["-q", options["partition"]]
        if options.get("requeue") is False:
            argv += ["-r", "n"]
        if options.get("held"):
            argv.append("-h")
        # The scenarios' `bob` may not use what physics may.
        argv += ["-A", options.get("account") or {"alice": "physics"}.get(user, "chemistry")]
        argv += options.get("args", ())
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        return self.pbs(
            argv, user, options.get("host", ""), stdin=text, env=options.get("env"), timeout=options.get("timeout", 20)
        )

    def submitted(self, result: Result) -> str:
        return result.stdout.strip().splitlines()[-1].partition(".")[0]

    def told(self) -> dict[str, dict[str, Any]]:
        """Every job as qstat tells it, by number."""
        done = self.pbs(["qstat", "-x", "-t", "-f", "-F", "json"], timeout=15).check()
        jobs = json.loads(done.stdout).get("Jobs", {})
        return {name.partition(".")[0]: job for name, job in jobs.items()}

    def jobs(self) -> dict[str, JobView]:
        return {name: _view(name, job) for name, job in self.told().items()}

    def output(self, job: str, user: str = "alice") -> str:
        return self.exec(self.control, ["cat", self._output_path(job, user)]).stdout

    def _output_path(self, job: str, user: str) -> str:
        return f"/home/{user}/{job}.{self.control}.OU"

    def wait_begun(self, job: str, user: str = "alice", within: float = 30.0) -> None:
        there = ["test", "-e", self._output_path(job, user)]
        self.wait_state(job, "running", within=within)
        self.until(lambda: self.exec(self.control, there).status, lambda status: status == 0, within, "it has begun")

    def cancel(self, job: str, user: str = "root") -> None:
        done = self.pbs(["qdel", job], "" if user == "root" else user)
        # One that is ending just now is as good as deleted.
        if "invalid for state" not in done.stderr and "has finished" not in done.stderr:
            done.check()

    def requeue(self, job: str) -> None:
        done = self.pbs(["qrerun", job])
        # On a busy host it gives up waiting for the job's end, which comes all the same.
        if "still in progress" not in done.stderr:
            done.check()

    def expedite(self, job: str) -> None:
        """Nothing: a job waits for seconds here, and PBS loses one that is made to run before its time.

        The clock that it had set for the job goes on, and puts it back in the queue if it is just ending then.
        """

    # ---- sensors
    def server(self) -> dict[str, Any]:
        told = self.pbs(["qstat", "-B", "-f", "-F", "json"], timeout=10).check().stdout
        [server] = json.loads(told)["Server"].values()
        return dict(server)

    def sensors(self) -> dict[str, int]:
        server = self.server()
        used = _counted(server.get("resources_assigned", {}))
        return {qpu: max(0, n - used.get(qpu, 0)) for qpu, n in _counted(server.get("resources_available", {})).items()}

    def in_use(self) -> dict[str, int]:
        return _counted(self.server().get("resources_assigned", {}))

    # ---- evidence
    def records(self, job: str) -> str:
        commands = (
            ["qstat", "-x", "-f", job], ["qstat", "-x", "-f", "-F", "json", job], ["tracejob", job],
            ["qstat", "-B", "-f"], ["pbsnodes", "-a"],
        )  # fmt: skip
        return "\n".join(self.pbs(command).text for command in commands)

    def overview(self) -> str:
        shown = (["qstat", "-x", "-t", "-f"], ["qstat", "-B", "-f"], ["pbsnodes", "-a"], ["qmgr", "-c", "list hook"])
        return "\n".join([*(self.pbs(command).text for command in shown), self.qtandem("leases").text])


def _view(name: str, job: Mapping[str, Any]) -> JobView:
    letter = str(job.get("job_state", ""))[:1]
    state = _STATES.get(letter, "pending")
    if state == "running" and int(job.get("substate", 0)) == _PRERUN:
        state = "starting"
    runs, comment = int(job.get("run_version", 0)), str(job.get("comment", ""))
    return JobView(
        id=name,
        state=state,
        outcome=_outcome(job) if state == "ended" else "",
        reason=_reason(letter, job, comment) if state == "pending" else "",
        # Each run that was sent to a host and came back.
        restarts=runs if state == "pending" else max(0, runs - 1),
        nodes="+".join(part.partition("/")[0] for part in str(job.get("exec_host", "")).split("+")),
        comment=comment,
    )


def _outcome(job: Mapping[str, Any]) -> str:
    status = job.get("Exit_status")
    if status is None or (int(job.get("substate", 0)) == _DELETED and int(status) not in _OUTCOMES):
        return "cancelled"
    return _OUTCOMES.get(int(status), "failed" if int(status) > 0 else f"Exit_status {status}")


def _reason(letter: str, job: Mapping[str, Any], comment: str) -> str:
    if letter == "W":
        return BACKED_OFF
    if letter == "H":
        return HELD if "s" in str(job.get("Hold_Types", "")) else "held by its user"
    return WAITS if "server resource: qpu_" in comment else comment


def _counted(values: Mapping[str, Any]) -> dict[str, int]:
    return {name.removeprefix("qpu_"): int(value) for name, value in values.items() if name.startswith("qpu_")}

"""A Grid Engine cluster of `containers/gridengine`, as the scenarios drive it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qtandem.gridengine import complexes
from qtandem.gridengine.records import parsed
from tests.live.cluster import QPUS, Cluster, JobView
from tests.live.hosts import Result

COMMON = "/var/lib/gridengine/default/common"
SGE = {"SGE_ROOT": "/var/lib/gridengine", "SGE_CELL": "default"}
# Columns of the accounting file.
_QUEUE, _HOST, _OWNER, _NUMBER, _START, _FAILED, _EXIT, _TASK = 0, 1, 3, 5, 9, 11, 12, 35
# `failed`: 25 put back by status 99 of a hook or of the job, 24 moved; what follows is another line of the same job.
_AGAIN = ("24", "25")
_FAILED_WORDS = {"100": "cancelled", "19": "node-failure", "22": "node-failure", "21": "node-failure", "37": "timeout"}
# The scenarios' words, which are Slurm's: for our own back-off, and for a hold without an end.
WAITS, BACKED_OFF, HELD = "waits for its QPU", "BeginTime", "JobHeld"


class GridEngineCluster(Cluster):
    manager = "gridengine"
    control = "ctl"
    workers = ("c1", "c2")
    waits_for_qpu = WAITS
    devices_user = "qtandem-worker"
    pauses_requeued = False
    # A name that qmaster could not resolve, as that of a container that is down, it looks up again after 2 minutes.
    starts_within_s = 150.0
    roles: Mapping[str, str] = {"controller": "qmaster", "execution": "execd"}
    control_daemons = ("qmaster", "launcher", "qtandemd", "deadman")
    worker_daemons = ("relay", "execd")
    logs = (
        "tail -n +1 /var/spool/gridengine/qmaster/messages /var/spool/gridengine/execd/*/messages "
        "/var/log/cluster/* 2>/dev/null; ps -ef"
    )
    cannot: Mapping[str, str] = {
        "directives": "the scenario's directive is Slurm's; `#$ -l qpu=` has a scenario of its own",
        "interactive": "the scenario runs srun; qrsh has a scenario of its own",
        "steps": "Grid Engine has no steps",
        "kill accounting": "Grid Engine has no accounting daemon",
        "scontrol": "the launcher's commands have a scenario of their own",
        "modify": "the scenario runs scontrol; qalter has a scenario of its own",
        "node failure": "qmaster waits for a host that is gone, or for an admin's qdel -f",
    }

    def __init__(self, project: str, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(project, environment)
        self._known: set[str] = set()

    def ready(self) -> bool:
        if not self.hosts_ready():
            return False
        # A host that reports has a load, and its sensor has spoken.
        hosts = self.sge(["qhost", "-F", "qpu_east"]).stdout
        queues = self.sge(["qstat", "-f", "-u", "*"]).stdout
        up = [line for line in queues.splitlines() if re.match(r"(main|classical)@", line)]
        if hosts.count("qpu_east=") != 1 + len(self.workers) or len(up) != 2 * len(self.workers):
            return False
        return all(len(line.split()) == 5 for line in up)

    def sge(self, argv: list[str], host: str = "", user: str = "", **options: Any) -> Result:
        options["env"] = {**SGE, **(options.get("env") or {})}
        if not user:
            argv = ["env", *(f"{key}={value}" for key, value in options.pop("env").items()), *argv]
        return self.exec(host or self.control, argv, user, **options)

    def configure(self, **values: str) -> None:
        """Change the cell's global configuration."""
        text = self.sge(["qconf", "-sconf"]).check().stdout
        changed = complexes.edited(text, values)
        self.shell(self.control, "mkdir -p /root/conf").check()
        self.exec(self.control, ["tee", "/root/conf/global"], stdin=changed).check()
        self.sge(["qconf", "-Mconf", "/root/conf/global"]).check()

    # ---- jobs
    def try_submit(self, script: str, qpu: str = "", user: str = "alice", **options: Any) -> Result:
        argv = ["qsub", "-terse", "-j", "y", "-o", f"/home/{user}/job-$JOB_ID.out"]
        resources = [f"qpu={qpu}"] if qpu else []
        if options.get("minutes"):
            resources.append(f"h_rt=0:{options['minutes']}:0")
        if options.get("nodes"):
            resources.append(f"hostname={options['nodes']}")
        if resources:
            argv += ["-l", ",".join(resources)]
        if options.get("name"):
            argv += ["-N", options["name"]]
        if options.get("partition"):
            argv += ["-q", options["partition"]]
        if "requeue" in options:
            argv += ["-r", "y" if options["requeue"] else "n"]
        else:
            argv += ["-r", "y"]
        if options.get("held"):
            argv.append("-h")
        argv += options.get("args", ())
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        # What `#!` asks for is Slurm's way; here the shell is an option.
        interpreter = text.splitlines()[0].removeprefix("#!").strip()
        if interpreter != "/bin/sh":
            argv += ["-S", interpreter]
        host = options.get("host", self.control)
        timeout = options.get("timeout", 20)
        return self.sge(argv, host, user, stdin=text, env=options.get("env"), timeout=timeout)

    def submitted(self, result: Result) -> str:
        job = result.stdout.strip().splitlines()[-1].partition(".")[0]
        self._known.add(job)
        return job

    def jobs(self) -> dict[str, JobView]:
        listed = self.sge(["qstat", "-u", "*", "-s", "prs", "-r", "-xml"], timeout=15).check().stdout
        over = self._accounted()
        waiting = self._reasons(listed)
        views: dict[str, JobView] = {}
        for job, lines in over.items():
            last = lines[-1]
            if last[_FAILED].split()[0] not in _AGAIN:
                views[job] = JobView(job, "ended", _outcome(last), restarts=_restarts(lines), nodes=last[_HOST])
        for element in parsed(listed).iter("job_list"):
            job = element.findtext("JB_job_number", "")
            word = (element.findtext("state") or "").strip()
            state = _state(word)
            asks = any(one.get("name", "").startswith("qpu_") for one in element.iterfind("hard_request"))
            if state == "running" and asks and not self._begun(job):
                # Grid Engine calls it running while its prolog runs.
                state = "starting"
            views[job] = JobView(
                id=job,
                state=state,
                reason=_reason(word, waiting.get(job, "")),
                restarts=_restarts(over.get(job, [])),
                nodes=(element.findtext("queue_name") or "").partition("@")[2],
            )
        if any(view.reason == HELD for view in views.values()):
            # A back-off may have ended between the two looks; what is held for good is held in a third one.
            again = parsed(self.sge(["qstat", "-u", "*", "-s", "p", "-xml"], timeout=15).check().stdout)
            held = {
                element.findtext("JB_job_number", "")
                for element in again.iter("job_list")
                if "h" in (element.findtext("state") or "")
            }
            gone = [job for job, view in views.items() if view.reason == HELD and job not in held]
            views |= {job: replace(views[job], reason="") for job in gone}
        # Deleted while it waited: no line anywhere.
        for job in self._known - views.keys():
            views[job] = JobView(job, "ended", "cancelled")
        self._known |= views.keys()
        return views

    def _begun(self, job: str) -> bool:
        """Whether the prolog of a job with a QPU has left its environment on a host."""
        there = f"ls -d /run/qtandem/runs/gridengine-{job} /run/qtandem/runs/gridengine-{job}.*"
        return any(self.shell(host, there).stdout for host in self.workers)

    def _accounted(self) -> dict[str, list[list[str]]]:
        text = self.exec(self.control, ["cat", f"{COMMON}/accounting"], timeout=15).stdout
        found: dict[str, list[list[str]]] = {}
        for line in text.splitlines():
            fields = line.split(":")
            if not line.startswith("#") and len(fields) > _TASK:
                found.setdefault(fields[_NUMBER], []).append(fields)
        return found

    def _reasons(self, listed: str) -> dict[str, str]:
        ids = re.findall(r"<job_list state=\"pending\">\s*<JB_job_number>(\d+)<", listed)
        if not ids:
            return {}
        said = self.sge(["qstat", "-j", ",".join(ids), "-xml"], timeout=15).stdout
        root = parsed(said)
        out: dict[str, str] = {}
        for element in root.iterfind("djob_info/element"):
            context = {
                one.findtext("VA_variable"): one.findtext("VA_value")
                for one in element.iterfind("JB_context/context_list")
            }
            # Its owner can write there too.
            if float(context.get("qtandem_until") or 0) > time.time() - 60:
                out[element.findtext("JB_job_number", "")] = BACKED_OFF
        for element in root.iterfind("messages/element/SME_message_list/element"):
            for number in element.iter("ULNG_value"):
                text = element.findtext("MES_message", "")
                if out.get(number.text or "") != BACKED_OFF and (number.text not in out or ":qpu_" in text):
                    out[number.text or ""] = text
        return out

    def cancel(self, job: str, user: str = "root") -> None:
        self.sge(["qdel", job], user="" if user == "root" else user, timeout=15).check()

    def requeue(self, job: str) -> None:
        self.sge(["qmod", "-rj", job], timeout=15).check()

    def expedite(self, job: str) -> None:
        self.sge(["qalter", "-h", "O", job], timeout=15)

    # ---- sensors
    def sensors(self) -> dict[str, int]:
        found = self._global()
        left = {name: int(float(value)) for name, value in found.items()}
        if all(gate == 0 for gate in self._gates()):
            return dict.fromkeys(left, 0)
        return {name: max(0, value) for name, value in left.items()}

    def hosts_xml(self, *complexes: str) -> Any:
        """What `qhost -F` shows of these complexes."""
        return parsed(self.sge(["qhost", "-F", ",".join(complexes), "-xml"], timeout=10).check().stdout)

    def _gates(self) -> list[int]:
        """For each host 1 if its sensor lets jobs of QPUs in, else 0."""
        gates = []
        for host in self.hosts_xml("qpu_north").iterfind("host"):
            values = [value for value in host.iterfind("resourcevalue") if value.get("dominance") == "hl"]
            if host.get("name") != "global":
                gates.append(0 if any(float(value.text or 0) == 0 for value in values) else 1)
        return gates

    def _global(self) -> dict[str, str]:
        root = self.hosts_xml(*(f"qpu_{name}" for name in QPUS))
        values = root.iterfind("host[@name='global']/resourcevalue")
        return {value.get("name", "").removeprefix("qpu_"): value.text or "0" for value in values}

    def in_use(self) -> dict[str, int]:
        text = self.sge(["qstat", "-u", "*", "-s", "rs", "-r", "-xml"], timeout=15).check().stdout
        used = dict.fromkeys(QPUS, 0)
        for element in parsed(text).iter("job_list"):
            for request in element.iterfind("hard_request"):
                name = request.get("name", "").removeprefix("qpu_")
                if name in used:
                    used[name] += int(float(request.text or 0))
        return used

    def heal(self) -> None:
        self.revive()
        self.open()
        self.until(self._gates, lambda gates: gates == [1] * len(self.workers), 30, "the load sensors are open")
        self.wait_sensors(QPUS, 30)

    # ---- evidence
    def records(self, job: str) -> str:
        commands = (["qstat", "-j", job], ["qstat", "-j", job, "-xml"], ["qacct", "-j", job], ["qhost", "-F"])
        return "\n".join(self.sge(command).text for command in commands)

    def overview(self) -> str:
        shown = [["qstat", "-f", "-u", "*"], ["qhost", "-F"], ["qconf", "-sconf"], ["qtandem", "leases"]]
        return "\n".join(self.sge(command).text for command in shown)


def _state(word: str) -> str:
    if "q" in word:
        return "pending"
    if "d" in word:
        return "ending"
    return "starting" if "t" in word else "running"


def _reason(word: str, said: str) -> str:
    if "q" not in word:
        return ""
    if "h" in word:
        return BACKED_OFF if said == BACKED_OFF else HELD
    return WAITS if re.search(r"\bg[cl]:qpu_|hl:qpu_", said) else said


def _outcome(fields: list[str]) -> str:
    failed = fields[_FAILED].split()[0]
    if failed == "0":
        return "completed" if fields[_EXIT] == "0" else "failed"
    return _FAILED_WORDS.get(failed, f"failed {failed}")


def _restarts(lines: list[list[str]]) -> int:
    return sum(line[_FAILED].split()[0] in _AGAIN for line in lines)

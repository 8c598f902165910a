"""An LSF cluster of `containers/lsf`, on a site's own LSF (or OpenLava), as the scenarios drive it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

from tests.live.cluster import QPUS, Cluster, JobView
from tests.live.hosts import Result

_STATES = {
    "PEND": "pending", "PSUSP": "pending", "RUN": "running", "USUSP": "suspended", "SSUSP": "suspended",
    "UNKWN": "running", "DONE": "ended", "EXIT": "ended", "ZOMBI": "ended",
}  # fmt: skip
# Of a job that LSF ended at its run limit: by SIGUSR2, as a shell counts.
_RUN_LIMIT = "140"
# The scenarios' words, which are Slurm's: for our own back-off, and for a hold without an end.
WAITS, BACKED_OFF, HELD = "waits for its QPU", "BeginTime", "JobHeld"
# A value's way to LSF's scheduler: period of the elim, poll of LIM, and mbatchd's own look.
LAG_S = 20.0
PAUSES = "/var/lib/qtandem/lsf.json"


class LsfCluster(Cluster):
    manager = "lsf"
    control = "ctl"
    workers = ("c1", "c2")
    waits_for_qpu = WAITS
    pauses_requeued = False
    devices_user = "qtandem-worker"
    roles: Mapping[str, str] = {"controller": "mbatchd", "execution": "sbatchd"}
    control_daemons = ("lim", "res", "sbatchd", "mbatchd", "launcher", "qtandemd")
    worker_daemons = ("relay", "lim", "res", "sbatchd")
    starts_within_s = 90.0
    logs = ". $LSF_ENVDIR/lsf.conf; tail -n +1 $LSF_LOGDIR/* /var/log/cluster/* 2>/dev/null; ps -ef"
    # When a job ends mbatchd adds what it had to the value that it knows, even one that is 0 by now.
    waits_in = ("pending", "starting")
    # The elim's period, LIM's poll and mbatchd's own interval, one after another; nothing asks LSF to look sooner.
    opens_within_s = (15.0, 30.0)
    cannot: Mapping[str, str] = {
        "directives": "the scenario's directive is Slurm's; `#BSUB -a qpu(…)` has a scenario of its own",
        "interactive": "the scenario runs srun; bsub -I has a scenario of its own",
        "steps": "LSF has no steps",
        "kill accounting": "LSF has no accounting daemon",
        "modify": "the scenario runs scontrol; bmod has a scenario of its own",
        "node failure": "a job that may not run again stays UNKWN until its host is back",
    }

    def __init__(self, project: str, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(project, environment)
        self._lsf: dict[str, str] = {}

    def up(self, within: float = 240.0) -> Self:
        """LSF's daemons look for each other at intervals of their own."""
        super().up(within)
        if "OpenLava" in self.lsf(["lsid"]).stdout:
            lost = "OpenLava loses how a job ended whose sbatchd was killed; lsf_faults has what then must hold"
            self.cannot = {**self.cannot, "kill execution": lost}
        return self

    def ready(self) -> bool:
        if not self.hosts_ready():
            return False
        if not self._lsf:
            told = self.exec(self.control, ["cluster", "environment"]).check().stdout
            self._lsf = dict(line.split("=", 1) for line in told.splitlines())
        hosts = self.lsf(["bhosts"], timeout=5).stdout.splitlines()
        up = [line for line in hosts if line.split()[0] in self.workers and line.split()[1] == "ok"]
        return len(up) == len(self.workers) and len(self._indices("TOTAL")) == len(QPUS)

    def lsf(self, argv: list[str], user: str = "", host: str = "", **options: Any) -> Result:
        """One of LSF's commands, which wait for ever for a daemon that is not there."""
        options.setdefault("timeout", 20)
        # By `env`, so that what becomes the user does not take a hostile environment itself.
        env = {**self._lsf, **(options.pop("env", None) or {})}
        given = [f"{name}={value}" for name, value in env.items()]
        program = f"{self._lsf['LSF_BINDIR']}/{argv[0]}"
        return self.exec(host or self.control, ["/usr/bin/env", *given, program, *argv[1:]], user, **options)

    # ---- jobs
    def try_submit(self, script: str, qpu: str = "", user: str = "alice", **options: Any) -> Result:
        # -N: the report of the job goes by mail, not into its output.
        argv = ["bsub", "-N", "-o", f"/home/{user}/job-%J.out"]
        if qpu:
            argv += ["-a", f"qpu({qpu})"]
        flags = {"minutes": "-W", "nodes": "-m", "name": "-J", "partition": "-q"}
        for key, flag in flags.items():
            if options.get(key):
                argv += [flag, str(options[key])]
        if options.get("requeue", True):
            argv.append("-r")
        if options.get("held"):
            argv.append("-H")
        # The scenarios' `bob` may not use what physics may.
        argv += ["-P", options.get("account") or {"alice": "physics"}.get(user, "chemistry")]
        argv += options.get("args", ())
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        return self.lsf(
            argv, user, options.get("host", ""), stdin=text, env=options.get("env"), timeout=options.get("timeout", 20)
        )

    def submitted(self, result: Result) -> str:
        match = re.search(r"Job <(\d+)> is submitted", result.text)
        assert match, result.text
        return match[1]

    def jobs(self) -> dict[str, JobView]:
        """Elements of an array stand there as `JOB[INDEX]`, and the array as the furthest behind of them."""
        listed = self.lsf(["bjobs", "-a", "-w", "-u", "all"])
        if listed.status and not re.search(r"No .*job found", listed.text):
            listed.check()
        history = self.history()
        paused = self._pauses()
        views: dict[str, JobView] = {}
        for line in listed.stdout.splitlines():
            words = line.split()
            if not words or not words[0].isdigit():
                continue
            element = re.search(r"\[(\d+)\] +[A-Z][a-z]{2} +\d+ ", line)
            name = f"{words[0]}[{element[1]}]" if element else words[0]
            views[name] = _view(name, words[2], words[5], history.get(name, ""), paused)
        for name, view in sorted(views.items(), key=lambda each: _BEHIND.index(each[1].state)):
            views.setdefault(name.partition("[")[0], view)
        return views

    def history(self) -> dict[str, str]:
        """What bhist tells of each job."""
        text = self.lsf(["bhist", "-l", "-a", "-u", "all"]).stdout
        return dict(_each_job(text))

    def _pauses(self) -> dict[str, float]:
        """Ends of our own stops by job, 0 for those without one."""
        text = self.exec(self.control, ["cat", PAUSES]).stdout
        found = json.loads(text) if text else {}
        return {name.rpartition(":")[2]: until for name, (until, _) in found.items()}

    def output(self, job: str, user: str = "alice") -> str:
        """LSF puts it in its place when it has called the job over."""
        path = f"/home/{user}/job-{job}.out"
        there = f"for _ in $(seq 50); do test -e {path} && break; sleep 0.1; done; cat {path}"
        return self.shell(self.control, there).stdout

    def past_esub(self, user: str) -> dict[str, str]:
        """Environment of a bsub that calls no esub: LSF takes its helpers from the folder that its caller names."""
        eauth, folder = f"{self._lsf['LSF_SERVERDIR']}/eauth", f"/home/{user}/helpers"
        self.shell(self.control, f"mkdir -p {folder}; ln -sf {eauth} {folder}/", user).check()
        return {"LSF_SERVERDIR": folder}

    def wait_begun(self, job: str, user: str = "alice", within: float = 30.0) -> None:
        # The output is in its place at the job's end.
        self.wait_state(job, "running", within=within)

    def cancel(self, job: str, user: str = "root") -> None:
        done = self.lsf(["bkill", job], "" if user == "root" else user)
        if not re.search("already finished|in progress", done.text):
            done.check()

    def requeue(self, job: str) -> None:
        self.lsf(["brequeue", job]).check()

    def expedite(self, job: str) -> None:
        self.lsf(["bresume", job])

    # ---- sensors
    def sensors(self) -> dict[str, int]:
        return self._indices("TOTAL")

    def in_use(self) -> dict[str, int]:
        return self._indices("RESERVED")

    def _indices(self, column: str) -> dict[str, int]:
        """A column of `bhosts -s`; TOTAL is what is left. An index without a value counts as 0."""
        place = ("RESOURCE", "TOTAL", "RESERVED").index(column)
        rows = (line.split() for line in self.lsf(["bhosts", "-s"]).check().stdout.splitlines())
        found = {row[0].removeprefix("qpu_"): row[place] for row in rows if len(row) > place}
        return {name: int(float(found[name])) if found[name] != "-" else 0 for name in QPUS if name in found}

    def wait_sensors(self, wanted: Mapping[str, int], within: float = 15.0) -> dict[str, int]:
        return super().wait_sensors(wanted, within + LAG_S)

    # ---- evidence
    def records(self, job: str) -> str:
        commands = (
            ["bjobs", "-a", "-l", job],
            ["bhist", "-l", job],
            ["bread", job],
            ["bhosts", "-s"],
            ["lsload", "-s"],
        )
        events = "cat $LSB_SHAREDIR/lab/logdir/lsb.events $LSB_SHAREDIR/logdir/lsb.events 2>/dev/null"
        told = [self.lsf(command).text for command in commands]
        return "\n".join([*told, self.shell(self.control, f". $LSF_ENVDIR/lsf.conf; {events}").text])

    def overview(self) -> str:
        shown = [["bhist", "-l", "-a", "-u", "all"], ["bjobs", "-l", "-u", "all"], ["bhosts"], ["bhosts", "-s"]]
        return "\n".join([*(self.lsf(command).text for command in shown), self.qtandem("leases").text])


# Of an array's elements: the one that is furthest behind comes first.
_BEHIND = ("pending", "starting", "running", "suspended", "ending", "ended")
_JOB = re.compile(r"Job (?:Id )?<(\d+(?:\[\d+\])?)>")


def _each_job(text: str) -> Iterator[tuple[str, str]]:
    """By id what stands below it; lines are cut at 80 characters and go on indented."""
    for block in re.split(r"\n(?=Job (?:Id )?<\d)", "\n" + re.sub(r"\n {20,}", "", text)):
        match = _JOB.match(block.strip())
        if match:
            yield match[1], block.strip().partition("Summary of time")[0]


def _view(name: str, word: str, place: str, told: str, paused: Mapping[str, float]) -> JobView:
    state = _STATES.get(word, "running")
    if word == "EXIT" and told.rfind("Signal <REQUEUE_PEND>") > told.rfind(": Pending"):
        # brequeue ends it first, and puts it back some seconds later.
        state = "ending"
    starts = re.findall(r": Dispatched (?:<[^>]*>|\d+ Task\(s\))? ?(?:to|on)", told)
    begun = told.rfind("unning with execution home") > told.rfind(": Dispatched")
    if state == "running" and not begun:
        # LSF calls it running while its pre_exec runs.
        state = "starting"
    return JobView(
        id=name,
        state=state,
        outcome=_outcome(word, told) if state == "ended" else "",
        reason=_reason(name, word, paused) if state == "pending" else "",
        # Each time that it was sent to a host and came back.
        restarts=len(starts) if state == "pending" else max(0, len(starts) - 1),
        nodes="" if state == "pending" or place == "-" else place,
    )


def _outcome(word: str, told: str) -> str:
    if word == "DONE":
        return "completed"
    if "TERM_RUNLIMIT" in told or f"Exited with exit code {_RUN_LIMIT}" in told:
        return "timeout"
    return "cancelled" if "Signal <KILL> requested" in told else "failed"


def _reason(name: str, word: str, paused: Mapping[str, float]) -> str:
    if word == "PSUSP":
        until = paused.get(name.replace("[", "_").rstrip("]"))
        return "held by its user" if until is None else BACKED_OFF if until else HELD
    return WAITS

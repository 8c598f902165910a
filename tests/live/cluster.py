"""What a scenario may do with a cluster, whichever manager runs it.

A manager's own class fills in the abstract part. What it cannot do stands in `cannot`, with the reason; a
scenario that needs it asks `needs`, which skips with that reason.
"""

from __future__ import annotations

import abc
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import pytest

from tests.live.hosts import PYTHON, ROOT, Agent, HostLost, Project, Result, docker

T = TypeVar("T")
# Prints a line of figures at the end of the run.
Measured = Callable[[str], None]
SOCKET = "/run/qtandem/qtandem.sock"
# The simulated QPUs of every test cluster, with their slots.
QPUS: Mapping[str, int] = {"north": 2, "east": 1, "south": 1}

# Knobs of a simulated QPU that takes work and does as it is told.
AT_REST: Mapping[str, Any] = {
    "availability": "online",
    "reason": "",
    "queue": 0,
    "wait_s": None,
    "free_slots": None,
    "latency_s": 0.0,
    "fault": "",
    "fault_on": "all",
    "fault_at": "before",
    "task_s": 0.0,
}


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the manager shows it. `state`: pending, starting, running, ending, ended; `outcome` how it ended:
    completed, failed, cancelled, timeout, node-failure, or the manager's own word."""

    id: str
    state: str
    outcome: str = ""
    reason: str = ""
    restarts: int = 0
    nodes: str = ""
    comment: str = ""


class Cluster(abc.ABC):
    """A running cluster with qtandem on it. `control` is the daemon's host, `workers` those that run jobs."""

    manager: str
    control: str
    workers: tuple[str, ...]
    # The manager's word for "waits for its QPU".
    waits_for_qpu: str
    # The manager's daemons by role: controller, execution, and accounting where there is one.
    roles: Mapping[str, str]
    # What runs on the control host and on each worker, in the order in which it starts.
    control_daemons: tuple[str, ...]
    worker_daemons: tuple[str, ...]
    # Seconds that a daemon, and all of them together, may take to be there again.
    starts_within_s = 60.0
    # What an admin types for a worker whose daemons are back, if the manager does not use it by itself.
    resumes = ""
    # What prints the logs of a host.
    logs: str
    cannot: Mapping[str, str] = {}
    # Whether the manager keeps every requeued job waiting for a while.
    pauses_requeued = True
    # Where a job may wait whose QPU closed while another job held it: some managers look again only at its start.
    waits_in: tuple[str, ...] = ("pending",)
    # Seconds from the opening of a QPU to the job's first line: the median, and the worst with a kick that works.
    opens_within_s = (2.0, 12.0)

    # Arguments of a submission that give the job the submitter's whole environment, if it has not that anyway.
    whole_environment: tuple[str, ...] = ()
    # The number of a job's first run.
    first_attempt = 0
    # The user whose processes open the simulated QPUs.
    devices_user = "qtandem"

    def __init__(self, project: str, environment: Mapping[str, str] | None = None) -> None:
        """`project` names the compose project; `environment` is for variables of its file."""
        file = ROOT / "containers" / self.manager / "docker-compose.yml"
        self.project = Project(project, file, environment)
        self.containers: dict[str, str] = {}
        self.agents: dict[str, Agent] = {}
        self.devices: Agent

    def up(self, within: float = 150.0) -> Self:
        """Bring the containers up and wait until jobs can run."""
        self.project.up()
        for host in (self.control, *self.workers):
            self.containers[host] = self.project.container(host)
            self.agents[host] = Agent(self.containers[host])
        self.devices = Agent(self.containers[self.control], self.devices_user)
        self.until(self.ready, bool, within, "the cluster is ready")
        return self

    def down(self) -> None:
        for agent in (*self.agents.values(), *([self.devices] if self.containers else [])):
            agent.close()
        self.project.down()

    def hosts_ready(self) -> bool:
        """Whether each host's own start script has done its work."""
        return not any(self.exec(host, ["cluster", "ready"]).status for host in (self.control, *self.workers))

    # ---- the manager's own part
    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether all hosts take jobs."""

    @abc.abstractmethod
    def try_submit(self, script: str, qpu: str = "", user: str = "alice", **options: Any) -> Result:
        """Submit as a user would. Options: name, partition, minutes, requeue, held, nodes, env, args, host."""

    @abc.abstractmethod
    def submitted(self, result: Result) -> str:
        """The job id in the output of a submission that went well."""

    @abc.abstractmethod
    def jobs(self) -> dict[str, JobView]:
        """All jobs that the manager still shows, by id."""

    @abc.abstractmethod
    def cancel(self, job: str, user: str = "root") -> None: ...

    @abc.abstractmethod
    def requeue(self, job: str) -> None: ...

    @abc.abstractmethod
    def expedite(self, job: str) -> None:
        """Lift the manager's own delay of a requeued job."""

    @abc.abstractmethod
    def sensors(self) -> dict[str, int]:
        """Slots of each QPU that the manager would give to its next job."""

    @abc.abstractmethod
    def in_use(self) -> dict[str, int]:
        """Slots of each QPU that the manager counts as used by its jobs."""

    @abc.abstractmethod
    def records(self, job: str) -> str:
        """Everything that the manager shows about a job, to anybody."""

    @abc.abstractmethod
    def overview(self) -> str:
        """What the manager and the daemon show of the whole cluster, for whoever reads a failure."""

    # ---- daemons and nodes
    def start(self, daemon: str, host: str = "") -> None:
        started = ["cluster", "start", self.roles.get(daemon, daemon)]
        self.exec(self._host(daemon, host), started, timeout=self.starts_within_s).check()

    def kill(self, daemon: str, host: str = "") -> None:
        """SIGKILL to a daemon: qtandemd, relay, deadman, or a role of the manager's."""
        self.exec(self._host(daemon, host), ["cluster", "kill", self.roles.get(daemon, daemon)]).check()

    def _host(self, daemon: str, host: str) -> str:
        on_workers = self.roles.get(daemon, daemon) in (self.roles["execution"], "relay")
        return host or (self.workers[0] if on_workers else self.control)

    def lose_node(self, host: str) -> None:
        """End everything on a host at once, as a power failure would."""
        docker("kill", self.containers[host])

    def return_node(self, host: str) -> None:
        began = time.time()
        docker("start", self.containers[host])
        up = ["find", "/run/cluster-ready", "-newermt", f"@{began}"]
        self.until(lambda: self.exec(host, up).stdout, bool, 60, f"{host} is back")

    def heal(self) -> None:
        """Bring back every daemon and node that a scenario may have left down, and open every QPU."""
        self.revive()
        self.open()
        self.wait_sensors(QPUS, 30)

    def revive(self) -> None:
        """The same under load: sensors need not show that all is free."""
        for host in (self.control, *self.workers):
            try:
                self.exec(host, ["true"], timeout=10)
            except HostLost:
                self.return_node(host)
        for daemon in self.control_daemons:
            self.start(daemon, self.control)
        for host in self.workers:
            for daemon in self.worker_daemons:
                self.start(daemon, host)
            if self.resumes:
                self.shell(self.control, self.resumes.format(host=host))
        self.until(self.daemon_answers, bool, 30, "the daemon is healthy")
        self.until(self.ready, bool, self.starts_within_s, "the cluster is ready")

    # ---- hosts
    def exec(self, host: str, argv: Sequence[str], user: str = "", **options: Any) -> Result:
        return self.agents[host].run(argv, user, **options)

    def shell(self, host: str, text: str, user: str = "", **options: Any) -> Result:
        return self.exec(host, ["sh", "-c", text], user, **options)

    def qtandem(self, *argv: str, host: str = "", user: str = "", **options: Any) -> Result:
        return self.exec(host or self.control, ["qtandem", *argv], user, **options)

    def python(self, text: str, host: str = "", user: str = "", **options: Any) -> Result:
        return self.exec(host or self.control, [PYTHON, "-c", text], user, **options)

    def api(self, path: str, host: str = "", user: str = "", method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Status and JSON body of one call on a host's socket; status 0: nobody answered."""
        argv = ["curl", "-s", "-m", "10", "-X", method, "--unix-socket", SOCKET, "-w", "\n%{http_code}"]
        if body is not None:
            argv += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        done = self.exec(host or self.control, [*argv, f"http://qtandem{path}"], user)
        text, _, status = done.stdout.rpartition("\n")
        try:
            return int(status or 0), json.loads(text) if text else None
        except json.JSONDecodeError:
            return int(status or 0), text

    # ---- jobs
    def submit(self, script: str, qpu: str = "", user: str = "alice", **options: Any) -> str:
        return self.submitted(self.try_submit(script, qpu, user, **options).check())

    def job(self, job: str) -> JobView:
        view = self.jobs().get(job)
        assert view is not None, f"{self.manager} does not know job {job}"
        return view

    def run_of(self, job: str) -> str:
        """The job's first run, as the daemon names it."""
        return f"{self.manager}:lab:{job}.{self.first_attempt}"

    def output(self, job: str, user: str = "alice") -> str:
        return self.exec(self.control, ["cat", f"/home/{user}/job-{job}.out"]).stdout

    def wait_begun(self, job: str, user: str = "alice", within: float = 30.0) -> None:
        """Wait until the job's script runs: a manager may call it running before its node knows of it."""
        there = ["test", "-e", f"/home/{user}/job-{job}.out"]
        self.wait_state(job, "running", within=within)
        self.until(lambda: self.exec(self.control, there).status, lambda status: status == 0, within, "it has begun")

    def wait_state(self, job: str, *states: str, within: float = 30.0) -> JobView:
        return self.until(lambda: self.job(job), lambda view: view.state in states, within, f"job {job} is {states}")

    def wait_ended(self, jobs: Iterable[str], within: float = 60.0) -> dict[str, JobView]:
        wanted = list(jobs)

        def chosen() -> dict[str, JobView]:
            views = self.jobs()
            return {job: views[job] for job in wanted if job in views}

        def done(views: dict[str, JobView]) -> bool:
            return len(views) == len(wanted) and all(view.state == "ended" for view in views.values())

        return self.until(chosen, done, within, f"jobs {wanted} ended")

    def explain(self, job: str, user: str = "") -> dict[str, Any]:
        status, body = self.api(f"/v1/explain/{quote(job)}", user=user)
        assert status == 200, body
        return body

    # ---- QPUs
    def state_dir(self, qpu: str) -> str:
        return f"/var/lib/qtandem/simulator/{qpu}"

    def set(self, qpu: str, **knobs: Any) -> float:
        """Turn the knobs of a simulated QPU; returns the Unix time at which it was done."""
        return float(self.devices.call("set", state_dir=self.state_dir(qpu), knobs=knobs)["at"])

    def open(self, *qpus: str) -> None:
        for qpu in qpus or QPUS:
            self.set(qpu, **AT_REST)

    def close(self, *qpus: str, reason: str = "maintenance") -> None:
        for qpu in qpus or QPUS:
            self.set(qpu, availability="offline", reason=reason)

    def witness(self, qpu: str) -> list[dict[str, Any]]:
        """The QPU's own log of sessions and tasks."""
        return list(self.devices.call("log", state_dir=self.state_dir(qpu))["log"])

    def facts(self) -> dict[str, dict[str, Any]]:
        status, body = self.api("/v1/facts")
        assert status == 200, body
        return {fact["resource"]: fact for fact in _rows(body, "facts")}

    # ---- leases
    def leases(self, open_only: bool = True) -> list[dict[str, Any]]:
        status, body = self.api("/v1/leases")
        assert status == 200, body
        rows = _rows(body, "leases")
        held = ("reserved", "acquiring", "held", "releasing")
        return [row for row in rows if not open_only or row["state"] in held]

    def wait_no_leases(self, within: float = 30.0) -> None:
        self.until(self.leases, lambda rows: not rows, within, "all leases are released")

    def wait_sensors(self, wanted: Mapping[str, int], within: float = 15.0) -> dict[str, int]:
        def match(seen: dict[str, int]) -> bool:
            return all(seen.get(name) == value for name, value in wanted.items())

        return self.until(self.sensors, match, within, f"sensors show {dict(wanted)}")

    def daemon_answers(self, host: str = "") -> bool:
        status, body = self.api("/v1/healthz", host=host)
        return status == 200 and bool(body.get("healthy"))

    # ---- waiting
    def until(self, read: Callable[[], T], good: Callable[[T], bool], within: float, what: str) -> T:
        """Read again and again until it is good; fails with the last reading.

        At most half of the time it reads: on a busy machine what is waited for comes later for each reading.
        """
        end = time.monotonic() + within
        while True:
            began = time.monotonic()
            try:
                value = read()
                if good(value):
                    return value
                seen: object = value
            except (AssertionError, HostLost) as error:
                seen = error
            if time.monotonic() > end:
                pytest.fail(f"not within {within:.0f} s: {what}; last seen: {seen}")
            time.sleep(max(0.1, time.monotonic() - began))

    def needs(self, ability: str) -> None:
        if ability in self.cannot:
            pytest.skip(f"{self.manager} cannot: {ability} ({self.cannot[ability]})")

    # ---- evidence
    def collect(self, into: Path) -> None:
        """Copy logs of every host into a directory, for whoever reads a failure."""
        for host, container in self.containers.items():
            folder = into / host
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "container.log").write_text(docker("logs", container))
            (folder / "logs.txt").write_text(_or_down(lambda host=host: self.shell(host, self.logs).stdout))
        (into / "state.txt").write_text(_or_down(self.overview))


def _or_down(read: Callable[[], str]) -> str:
    try:
        return read()
    except HostLost:
        return "the host is down\n"


def _rows(body: Any, key: str) -> list[dict[str, Any]]:
    return list(body[key] if isinstance(body, dict) and key in body else body)


def moments(count: int, within: float) -> list[float]:
    """Random moments between 0 and `within`, one in each of `count` equal parts of it, in no order."""
    chance = random.Random()
    drawn = [within * (part + chance.random()) / count for part in range(count)]
    chance.shuffle(drawn)
    return drawn


def all_at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """Call with 0…count-1 from threads and return the answers in order."""
    with ThreadPoolExecutor(min(count, 16)) as pool:
        return list(pool.map(call, range(count)))

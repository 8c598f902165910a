"""LSF's side of a job's life on its host. Written from IBM's documentation of Spectrum LSF 10.1 ("Pre- and
post-execution processing", JOB_INCLUDE_POSTPROC, LOCAL_MAX_PREEXEC_RETRY, "Queue-level job starters", "Environment
variables set for job execution"), not run on one.

PRE_EXEC runs under `/bin/sh -c` with the job's environment, PATH of the system, and no standard streams. Its status 0
starts the job, 99 ends it, any other has it wait again; after LOCAL_MAX_PREEXEC_RETRY of these it is suspended.
JOB_STARTER is text in the job's own shell; the command stands for %USRCMD in it, or behind it.
POST_EXEC runs when the job has ended, LSB_JOBEXIT_STAT is the job's wait status, and its own status changes nothing.
With JOB_INCLUDE_POSTPROC the job runs until POST_EXEC is over.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

SYSTEM_PATH = "/bin:/usr/bin:/sbin:/usr/sbin"


@dataclass
class Job:
    """`states` are those that bjobs would have shown, in order."""

    command: str
    requirement: str
    id: str = "7"
    index: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["PEND"])
    tries: int = 0
    output: str = ""
    status: int | None = None
    preexec: int | None = None
    postexec: int | None = None


@dataclass
class Host:
    """One execution host with the hooks of a queue. All runs as this process's own user."""

    pre_exec: str
    post_exec: str
    job_starter: str
    include_postproc: bool = False
    max_retry: int = 2**31 - 1
    timeout_s: float = 30.0

    def variables(self, job: Job) -> dict[str, str]:
        """What the hooks and the job get; the user's own come first and cannot replace LSF's."""
        return {
            **job.environment,
            "LSB_JOBID": job.id,
            "LSB_JOBINDEX": str(job.index),
            "LSB_QUEUE": "normal",
            "LSB_HOSTS": "c1",
            "LSB_EFFECTIVE_RSRCREQ": job.requirement,
            "LSB_EXIT_PRE_ABORT": "99",
        }

    def start_pre_exec(self, job: Job) -> subprocess.Popen[bytes]:
        job.states.append("RUN")
        job.tries += 1
        return self._hook(self.pre_exec, self.variables(job))

    def dispatch(self, job: Job) -> str:
        """One try of the job; returns its state after it."""
        job.preexec = self.start_pre_exec(job).wait(self.timeout_s)
        if job.preexec == 99:
            return self._becomes(job, "EXIT")
        if job.preexec != 0:
            return self._becomes(job, "PSUSP" if job.tries >= self.max_retry else "PEND")
        env = {**self.variables(job), "PATH": job.environment.get("PATH", os.environ["PATH"])}
        line = self.job_starter if "%USRCMD" in self.job_starter else f"{self.job_starter} %USRCMD"
        line = line.replace("%USRCMD", job.command)
        done = subprocess.run(
            ["/bin/sh", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=self.timeout_s
        )
        job.status, job.output = done.returncode, done.stdout + done.stderr
        end = "DONE" if done.returncode == 0 else "EXIT"
        if not self.include_postproc:
            self._becomes(job, end)
        wait = done.returncode << 8 if done.returncode >= 0 else -done.returncode
        after = {**self.variables(job), "LSB_JOBEXIT_STAT": str(wait)}
        job.postexec = self._hook(self.post_exec, after).wait(self.timeout_s)
        return self._becomes(job, end)

    def _hook(self, command: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**env, "PATH": SYSTEM_PATH},
            cwd="/tmp",
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
        )

    def _becomes(self, job: Job, state: str) -> str:
        if job.states[-1] != state:
            job.states.append(state)
        return state

"""A fake Slurm for tests: `bin` holds its programs (`program.py`), one state file is the cluster."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.slurm import program

PROGRAM = Path(__file__).with_name("program.py")
RECORDED = Path(__file__).with_name("recorded")
VERSIONS = ("24.11", "26.05")
PROGRAMS = ("sacctmgr", "scontrol", "squeue", "srun")


def recorded(kind: str, version: str) -> str:
    """What a real Slurm printed: `squeue` (JSON), `licences` or `waiting`."""
    return (RECORDED / f"{kind}-{version}.{'json' if kind == 'squeue' else 'txt'}").read_text()


class FakeSlurm:
    """The cluster as its admin and its jobs change it; jobs are told by number."""

    def __init__(self, folder: Path, version: str = "24.11.5", cluster: str = "lab") -> None:
        self._at(folder)
        self.bin.mkdir(parents=True)
        state: dict[str, Any] = {
            "version": version, "cluster": cluster, "resources": {}, "jobs": [], "users": {}, "config": {},
            "nodes": [
                {"name": "c1", "state": ["IDLE"], "features": ["qpu", "fast"], "partitions": ["main"]},
                {"name": "c2", "state": ["MIXED", "DRAIN"], "features": [], "partitions": ["main", "big"]},
            ],
            "down": [], "option": True, "kicks": [], "calls": [],
        }  # fmt: skip
        self._path.write_text(json.dumps(state))
        for name in PROGRAMS:
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{PROGRAM}" "{self._path}" {name} "$@"\n')
            script.chmod(0o755)

    def _at(self, folder: Path) -> None:
        self.folder, self.bin, self._path = folder, folder / "bin", folder / "state.json"

    @classmethod
    def at(cls, folder: str) -> FakeSlurm:
        """The cluster that another process has made."""
        found = cls.__new__(cls)
        found._at(Path(folder))
        return found

    @contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """The state, written back when the block ends."""
        with self._path.open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            state = json.load(stream)
            yield state
            stream.seek(0)
            stream.truncate()
            json.dump(state, stream)

    def submit(self, number: int, licences: str = "", **fields: Any) -> None:
        """Add a pending job. Numbers of `fields` may be plain; `array_task_string` makes it the rest of an array."""
        unset = {"set": False, "infinite": False, "number": 0}
        job = {
            "job_id": number, "array_job_id": unset, "array_task_id": unset, "array_task_string": "",
            "het_job_id": unset, "het_job_offset": unset, "name": "job", "job_state": ["PENDING"],
            "state_reason": "Licenses", "user_id": 1000, "user_name": "alice", "account": "acc", "partition": "main",
            "nodes": "", "time_limit": {"set": True, "infinite": False, "number": 5}, "requeue": True,
            "batch_flag": True, "restart_cnt": 0, "licenses": licences, "comment": "", "admin_comment": "",
            "eligible_time": unset, "start_time": unset, "priority": {"set": True, "infinite": False, "number": 1},
        }  # fmt: skip
        with self.state() as state:
            wrapped = {key: program.number(fields[key]) for key in fields if isinstance(job[key], dict)}
            state["jobs"].append(job | fields | wrapped)

    def start(self, number: int) -> bool:
        """Run a pending job if its licences are free, as the scheduler would."""
        with self.state() as state:
            asked = program.wanted(next(job for job in state["jobs"] if job["job_id"] == number)["licenses"])
            fits = all(program.free(state, name) >= slots for name, slots in asked.items())
        if fits:
            self.become(number, "RUNNING")
        return fits

    def free(self, licence: str) -> int:
        with self.state() as state:
            return program.free(state, licence)

    def become(self, number: int, word: str, **fields: Any) -> None:
        """Put a job into a state of Slurm's, for example RUNNING."""
        nodes = "n1" if word == "RUNNING" else ""
        with self.state() as state:
            job = next(job for job in state["jobs"] if job["job_id"] == number)
            job.update({"job_state": [word], "state_reason": "None", "nodes": nodes} | fields)

    def job(self, number: int) -> dict[str, Any]:
        with self.state() as state:
            return next(job for job in state["jobs"] if job["job_id"] == number)

    def down(self, *daemons: str) -> None:
        """Have these of slurmctld and slurmdbd not answer, and the others answer."""
        with self.state() as state:
            state["down"] = list(daemons)

    @property
    def calls(self) -> list[list[str]]:
        with self.state() as state:
            return list(state["calls"])

    def calls_of(self, name: str) -> list[list[str]]:
        """Arguments of each call of one program."""
        return [call[1:] for call in self.calls if call[0] == name]

    @property
    def kicks(self) -> list[str]:
        with self.state() as state:
            return list(state["kicks"])

"""A cluster of the fake commands: where they are, and what tests do to its jobs."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Any

from qtandem.core.settings import ManagerSettings
from tests.fakes.lsf import commands


class FakeLsf:
    """The commands stand in `bin`. With `form` text they are those of an LSF without JSON."""

    def __init__(self, folder: Path, form: str = "json") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.bin, self.sensors = folder / "cluster.json", folder / "bin", folder / "sensors.lsf"
        self.state_file = folder / "pauses.json"
        self.bin.mkdir()
        self.path.write_text(json.dumps(commands.fresh(form, str(self.sensors))))
        for program in commands.PROGRAMS:
            (self.bin / program).write_text(self.script(program))
            (self.bin / program).chmod(0o755)

    def script(self, program: str) -> str:
        return f'#!/bin/sh\nexec {sys.executable} -I {commands.__file__} {self.path} {program} "$@"\n'

    def settings(self, **options: str) -> ManagerSettings:
        given = {"envdir": str(self.bin), "sensors": str(self.sensors), "state": str(self.state_file), **options}
        return ManagerSettings(cluster="lab", bin_dir=str(self.bin), options=given)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def write(self, **changes: object) -> None:
        commands.replace(self.path, {**self.read(), **changes})

    def submit(self, native: str = "", number: str = "", index: int = 0, **values: object) -> str:
        """A pending job with the requirement that esub.qpu writes for the native text; `values` beat it."""
        jobs = self.read()["jobs"]
        number = number or str(len(jobs) + 1)
        conditions = " && ".join(part.replace("=", ">=") for part in native.split(",") if part)
        requirement = f"select[{conditions}] rusage[{native.replace(',', ':')}]" if native else ""
        job = {
            "id": number, "index": index, "user": getpass.getuser(), "stat": "PEND", "queue": "normal", "host": "",
            "project": "physics", "limit": "", "requirement": requirement, "reason": "", "name": "job.sh",
        }  # fmt: skip
        self.write(jobs=[*jobs, {**job, **values}])
        return number

    def become(self, number: str, stat: str, index: int = 0, **values: object) -> None:
        """Give the job this state; an empty one takes it away."""
        host = "c1" if stat in ("RUN", "USUSP", "SSUSP") else ""
        jobs = self.read()["jobs"]
        for job in jobs:
            if job["id"] == number and job["index"] == index:
                job.update({"stat": stat, "host": host, **values})
        self.write(jobs=[job for job in jobs if job["stat"]])

    def job(self, number: str, index: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = next(job for job in self.read()["jobs"] if (job["id"], job["index"]) == (number, index))
        return found

    def cut(self) -> None:
        self.write(down=True)

    def said(self, program: str) -> list[list[str]]:
        """The calls of a program, without its name."""
        return [call[1:] for call in self.read()["log"] if call[0] == program]

"""A fake PBS for tests: `bin` holds its commands (`program.py`), one state file is the complex."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("program.py")
PROGRAMS = ("qstat", "qselect", "qmgr", "qhold", "qrls", "qalter", "qrerun")
BUILT_IN = {"ncpus": ["long", "nhq"], "mem": ["size", "nhq"], "walltime": ["long", ""]}


class FakePbsComplex:
    """The complex as its admin and its jobs change it; jobs are told by number."""

    def __init__(self, folder: Path, server: str = "pbs") -> None:
        self.bin, self._path = folder / "bin", folder / "state.json"
        self.bin.mkdir(parents=True)
        state: dict[str, Any] = {
            "server": server, "scheduling": "True", "available": {}, "resources": dict(BUILT_IN), "jobs": {},
            "managers": "", "attributes": {}, "hooks": {}, "kicks": [], "calls": [], "down": False,
        }  # fmt: skip
        self._path.write_text(json.dumps(state))
        for name in PROGRAMS:
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{PROGRAM}" "{self._path}" {name} "$@"\n')
            script.chmod(0o755)

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

    def submit(self, id: str, request: str = "", **fields: Any) -> None:
        """Add a waiting job; `id` may be `7`, `7[2]` or `7[]`."""
        resources: dict[str, Any] = {"ncpus": 1, "select": "1:ncpus=1"}
        for part in filter(None, request.split(",")):
            name, _, value = part.partition("=")
            resources[name] = int(value) if value.isdigit() else value
        job = {
            "Job_Name": "1e5", "Job_Owner": "root@login", "job_state": "Q", "queue": "workq", "Rerunable": "True",
            "Resource_List": resources, "Variable_List": {"A": "b"}, "comment": "",
        }  # fmt: skip
        with self.state() as state:
            state["jobs"][f"{id}.{state['server']}"] = job | fields

    def become(self, id: str, **fields: Any) -> None:
        with self.state() as state:
            state["jobs"][f"{id}.{state['server']}"].update(fields)

    def job(self, id: str) -> dict[str, Any]:
        with self.state() as state:
            return dict(state["jobs"][f"{id}.{state['server']}"])

    def run(self, id: str) -> None:
        version = int(self.job(id).get("run_version", 0)) + 1
        self.become(id, job_state="R", run_version=version, exec_host="c1/0")

    @property
    def calls(self) -> list[list[str]]:
        with self.state() as state:
            return list(state["calls"])

    def down(self) -> None:
        with self.state() as state:
            state["down"] = True

"""A cell of the fake commands: where they are, and what tests do to its jobs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.fakes.gridengine import commands


class FakeCell:
    """The commands stand in `bin_dir`; a job is `{id, owner, uid, requests, context, state, kind}`."""

    def __init__(self, folder: Path) -> None:
        self.path, self.bin_dir = folder / "cell.json", folder / "bin"
        self.bin_dir.mkdir()
        self.path.write_text(json.dumps(commands.fresh()))
        for program in commands.PROGRAMS:
            script = f'#!/bin/sh\nexec {sys.executable} -I {commands.__file__} {self.path} {program} "$@"\n'
            (self.bin_dir / program).write_text(script)
            (self.bin_dir / program).chmod(0o755)

    def read(self) -> dict[str, Any]:
        with commands.locked(self.path):
            found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def write(self, state: dict[str, Any]) -> None:
        with commands.locked(self.path):
            self.path.write_text(json.dumps(state))

    def submit(self, requests: str, owner: str = "alice", kind: int = 0) -> str:
        state = self.read()
        number = str(state["next"])
        state["next"] += 1
        state["jobs"][number] = {
            "id": number, "owner": owner, "uid": os.geteuid(), "requests": requests, "context": {}, "state": "qw",
            "kind": kind,
        }  # fmt: skip
        self.write(state)
        return number

    def become(self, number: str, word: str) -> None:
        """Give the job this state; an empty one ends it."""
        state = self.read()
        if word:
            state["jobs"][number]["state"] = word
        else:
            del state["jobs"][number]
        self.write(state)

    def cut(self) -> None:
        self.write({**self.read(), "down": True})

    def said(self, program: str) -> list[list[str]]:
        """The calls of a program, without its name."""
        return [call[1:] for call in self.read()["log"] if call[0] == program]

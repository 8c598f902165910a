"""LSF's side of a submission: what bsub and bmod do around esub. Written from IBM's documentation of Spectrum LSF 10.1
("Configuration to enable job submission and execution controls", "bsub -a", LSB_ESUB_METHOD), not run on one.

The parameters are lines `NAME="value"` in LSB_SUB_PARM_FILE, a quote within with a backslash before it and all else as
it is (so on OpenLava 4.0). Mandatory methods run first, then those of `-a`, each as
`esub.NAME ARGUMENT...`; each sees what the ones before it changed. Of all exit statuses LSB_SUB_ABORT_VALUE alone
refuses the job. With `single` the one file `esub` runs instead, as older forms do, and `-a` is but a parameter.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ABORT = "97"
NUMBERS = {"LSB_SUB_NUM_PROCESSORS", "LSB_SUB_MAX_NUM_PROCESSORS", "LSB_SUB_BEGIN_TIME"}


@dataclass(frozen=True)
class Outcome:
    """`parameters` as the job gets them; `said` is what the user saw; `runs` counts the esubs that ran."""

    aborted: bool
    parameters: Mapping[str, str]
    said: str
    runs: int


def escaped(value: str) -> str:
    return value.replace('"', '\\"')


def unescaped(value: str) -> str:
    return value.replace('\\"', '"')


@dataclass
class Cluster:
    """`server_dir` is LSF_SERVERDIR, `methods` LSB_ESUB_METHOD."""

    server_dir: Path
    scratch: Path
    methods: str = "qpu"
    single: bool = False
    quoted: Callable[[str], str] = escaped

    def bsub(self, *, a: str = "", environment: Mapping[str, str] | None = None, **options: str) -> Outcome:
        """Options by the names of the parameters without LSB_SUB_: `RES_REQ`, `QUEUE`, `PROJECT_NAME`."""
        parameters = {f"LSB_SUB_{name}": value for name, value in options.items()}
        if a:
            parameters["LSB_SUB_ADDITIONAL"] = a
        said, runs = "", 0
        for argv in self._esubs(a):
            done, changes = self._run(argv, parameters, environment or {})
            said, runs = said + done.stderr, runs + 1
            if done.returncode == int(ABORT):
                return Outcome(True, parameters, said, runs)
            parameters.update({name: value for name, value in changes.items() if name != "LSB_SUB_ADDITIONAL"})
        return Outcome(False, parameters, said, runs)

    def bmod(self, *, a: str = "", environment: Mapping[str, str] | None = None, **options: str) -> Outcome:
        return self.bsub(a=a, environment=environment, MODIFY="Y", **options)

    def _esubs(self, a: str) -> list[list[str]]:
        if self.single:
            return [[str(self.server_dir / "esub")]]
        chosen = [(name, "") for name in self.methods.split()]
        chosen += [(match[1], match[2] or "") for match in re.finditer(r"([\w-]+)\s*(?:\(([^()]*)\))?", a)]
        files = ((self.server_dir / f"esub.{name}", text) for name, text in chosen)
        return [[str(path), *filter(None, map(str.strip, text.split(",")))] for path, text in files if path.exists()]

    def _run(
        self, argv: list[str], parameters: Mapping[str, str], environment: Mapping[str, str]
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
        given, modify, variables = (self.scratch / name for name in ("parm", "modify", "env"))
        given.write_text("".join(self._line(name, value) for name, value in parameters.items()))
        modify.write_text("")
        variables.write_text("")
        env = {
            "PATH": os.environ["PATH"],
            **environment,
            "LSB_SUB_ABORT_VALUE": ABORT,
            "LSB_SUB_PARM_FILE": str(given),
            "LSB_SUB_MODIFY_FILE": str(modify),
            "LSB_SUB_MODIFY_ENVFILE": str(variables),
        }
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=30)
        lines = (line.partition("=") for line in modify.read_text().splitlines())
        return done, {name: unescaped(value[1:-1]) for name, _, value in lines}

    def _line(self, name: str, value: str) -> str:
        return f"{name}={value}\n" if name in NUMBERS else f'{name}="{self.quoted(value)}"\n'

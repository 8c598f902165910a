"""Our hooks as they are installed, run in a PBS of tests."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qtandem.core.installing import assembled, with_constants
from tests.fakes.pbs.module import Event, FakePbs, Job, Outcome
from tests.fakes.pbs.values import pbs_env

HOOKS = Path(__file__).parents[3] / "pbs" / "hooks"
RESOURCES = {"qpu": str, "quantum_resources": str, "qpu_fez": int, "qpu_ibm_x": int, "software": str}
ME = getpass.getuser()


@dataclass
class Site:
    """One PBS with our hooks. `server` and `node` run an event; fields are those of the job."""

    pbs: FakePbs
    folder: Path
    constants: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "names").write_text("fez\tfez\t2\nibm-x\tibm_x\t1\n")
        self.define()
        self.constants = {
            "CLUSTER": "lab", "SOCKET": str(self.folder / "s"), "NAMES": str(self.folder / "names"),
            "RUNS": str(self.folder / "runs"), "PRIV": str(self.folder / "priv"),
            "DEADLINE_MS": 500, "DOWN_S": 60, "CALL_S": 2, "BEGIN_S": 2,
            "END_S": 1, "GIVE_BACK_ON_SUSPEND": "", **self.constants,
        }  # fmt: skip

    def define(self, flags: str = "qm", **node_hook: str) -> None:
        """The files in which pbs_server keeps the node hook's attributes and the resources."""
        shown = {"hook_name": "qtandem_node", "event": '"execjob_begin,execjob_launch,execjob_end"', **node_hook}
        hooks = self.folder / "priv" / "hooks"
        hooks.mkdir(parents=True, exist_ok=True)
        (hooks / "qtandem_node.HK").write_text("".join(f"{key}={value}\n" for key, value in shown.items()))
        lines = ["qpu type=string", f"qpu_fez type=long flag={flags}", f"qpu_ibm_x type=long flag={flags}"]
        (self.folder / "priv" / "resourcedef").write_text("".join(f"{line}\n" for line in lines))

    def hook(self, name: str, **constants: Any) -> str:
        text = assembled((HOOKS / name).read_text(), HOOKS)
        return with_constants(text, {**self.constants, **constants}, "python")

    def job(self, resources: Mapping[str, Any], id: str = "7.pbs", **fields: Any) -> Job:
        return Job(id, self.pbs.list({"select": "1:ncpus=1", **resources}), **{"Job_Owner": f"{ME}@login", **fields})

    def queue(self, resources: Mapping[str, Any], variables: str = "", **constants: Any) -> Outcome:
        job = self.job(resources, "", Variable_List=pbs_env(variables), queue="main", Account_Name="physics")
        return self.pbs.run(self.hook("server.py", **constants), Event("QUEUEJOB", job, requestor=ME))

    def reserve(self, resources: Mapping[str, Any]) -> Outcome:
        return self.pbs.run(self.hook("server.py"), Event("RESVSUB", self.job(resources, ""), requestor=ME))

    def modify(self, changes: Mapping[str, Any], before: Mapping[str, Any], **fields: Any) -> Outcome:
        job = Job("7.pbs", self.pbs.list(changes))
        old = Job("7.pbs", self.pbs.list(before, lazy=True), **{"Job_Owner": f"{ME}@login", **fields})
        return self.pbs.run(self.hook("server.py"), Event("MODIFYJOB", job, requestor=ME, job_o=old))

    def server(self, event: str, resources: Mapping[str, Any], constants: dict[str, Any] | None = None, **fields: Any):  # type: ignore[no-untyped-def]
        job = self.job(resources, **fields)
        return self.pbs.run(self.hook("server.py", **(constants or {})), Event(event, job, requestor="Scheduler"))

    def node(self, event: str, resources: Mapping[str, Any], env: str = "", **fields: Any) -> Outcome:
        constants, argv = fields.pop("constants", {}), fields.pop("argv", ["sh"])
        job = self.job(resources, **{"run_version": 1, **fields})
        params = {"env": pbs_env(env, generic=True), "argv": argv, "progname": "/bin/sh"}
        made = Event(event, job, requestor="pbs_mom", **(params if event == "EXECJOB_LAUNCH" else {}))
        return self.pbs.run(self.hook("node.py", **{"DOWN_S": 1, **constants}), made)

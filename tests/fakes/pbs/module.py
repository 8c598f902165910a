"""A `pbs` module for tests: hooks run in it unchanged, as PBS runs them, and what they did is told."""

from __future__ import annotations

import signal
import sys
import time
import types as python_types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.pbs import values as types

EVENTS = (
    "QUEUEJOB", "MODIFYJOB", "RESVSUB", "RUNJOB", "JOBOBIT", "EXECJOB_BEGIN", "EXECJOB_PROLOGUE", "EXECJOB_LAUNCH",
    "EXECJOB_END", "EXECJOB_ABORT", "EXECJOB_POSTSUSPEND", "EXECJOB_PRERESUME",
)  # fmt: skip
NUMBERS = {name: 1 << place for place, name in enumerate(EVENTS)}
ATTRIBUTES = {
    "Job_Name", "Job_Owner", "euser", "queue", "job_state", "Account_Name", "Resource_List", "Variable_List",
    "Hold_Types", "Execution_Time", "exec_vnode", "exec_host", "run_version", "run_count", "Exit_status", "comment",
    "Rerunable", "interactive", "project",
}  # fmt: skip
# What a runjob hook may write of a job.
AT_RUNJOB = {"Hold_Types", "Execution_Time", "project", "Error_Path", "Output_Path", "Variable_List", "depend"}


class Job:
    """A job in an event. Attributes that are not set read as None; one that PBS does not know cannot be written."""

    def __init__(self, id: str, resources: types.Resources, mother_superior: bool = True, **values: Any) -> None:
        self.__dict__.update(dict.fromkeys(ATTRIBUTES))
        self.__dict__.update(id=id, Resource_List=resources, written={}, _ms=mother_superior, _event=None, **values)

    def in_ms_mom(self) -> bool:
        return self._ms

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ATTRIBUTES:
            raise types.UnsetAttributeNameError(f"job attribute '{name}' not found")
        if self._event == "RUNJOB" and name not in AT_RUNJOB:
            raise AssertionError(f"Can only set job's attributes under RUNJOB event - got <{name}>")
        if name == "Execution_Time" and not isinstance(value, int | float):
            raise types.BadAttributeValueError("Execution_Time is a number")
        if name == "Hold_Types" and not isinstance(value, types.hold_types):
            raise types.BadAttributeValueError("Hold_Types is a pbs.hold_types")
        self.__dict__[name] = self.written[name] = value


class Event:
    """One event; `user` and `alarm` are not there for a hook to read."""

    def __init__(self, name: str, job: Job, requestor: str = "root", hook: str = "qtandem", **params: Any) -> None:
        self.__dict__.update(
            type=NUMBERS[name], name=name, hook_name=hook, hook_type="site", requestor=requestor,
            requestor_host="login", decision=None, message="", **params,
        )  # fmt: skip
        # A reservation is no job, and has nothing of one that a hook of ours asks for but its resources.
        self.__dict__["resv" if name == "RESVSUB" else "job"] = job
        job.__dict__["_event"] = name
        # In these a job has what its request brought along; in all others PBS looks it up when asked.
        job.Resource_List.lazy = name not in ("QUEUEJOB", "MODIFYJOB", "RESVSUB")

    def accept(self, ecode: int = 0) -> None:
        self.__dict__["decision"] = True
        raise SystemExit(str(ecode))

    def reject(self, emsg: str = "", ecode: int = 255) -> None:
        if "\x00" in str(emsg):
            raise ValueError("embedded null character")
        self.__dict__.update(decision=False, message=str(emsg))
        raise SystemExit(str(ecode))

    def __getattr__(self, key: str) -> Any:
        raise types.EventIncompatibleError(f'"{key}" not found in self._param')

    def __setattr__(self, key: str, value: Any) -> None:
        if key not in ("env", "argv", "progname") or key not in self.__dict__:
            raise types.BadAttributeValueError(f"event attribute '{key}' is readonly")
        self.__dict__[key] = value


@dataclass
class Outcome:
    """What PBS does after the hook. `environment` is what a job finds, after execjob_launch."""

    accepted: bool
    message: str
    event: Event
    seconds: float
    failed: str = ""
    log: list[str] = field(default_factory=list)

    @property
    def job(self) -> Job:
        """The job of the event, or its reservation."""
        shown: Job = self.event.__dict__.get("job") or self.event.__dict__["resv"]
        return shown

    @property
    def environment(self) -> dict[str, str]:
        return types.given_to_the_job(str(self.event.__dict__["env"]))


class Server:
    """What `pbs.server()` tells; jobs and vnodes are costly to walk, so their walks are counted."""

    def __init__(self, name: str = "pbs", vnodes: tuple[str, ...] = ("c1", "c2")) -> None:
        self.name, self.walks, self.restarts = name, 0, 0
        self._vnodes = vnodes

    def vnodes(self) -> Iterator[Any]:
        self.walks += 1
        return iter([python_types.SimpleNamespace(name=name) for name in self._vnodes])

    def vnode(self, name: str) -> Any:
        return python_types.SimpleNamespace(name=name) if name in self._vnodes else None

    def jobs(self) -> Iterator[Any]:
        self.walks += 1
        return iter([])

    def scheduler_restart_cycle(self) -> None:
        self.restarts += 1


class FakePbs:
    """One interpreter of a PBS daemon, with the resources that the server knows."""

    def __init__(self, resources: Mapping[str, type] | None = None) -> None:
        self.resources = dict(resources or {})
        self.server = Server()

    def list(self, values: Mapping[str, Any] | None = None, *, lazy: bool = False) -> types.Resources:
        return types.Resources(self.resources, dict(values or {}), lazy)

    def run(self, hook: Any, event: Event, alarm_s: float | None = None) -> Outcome:
        """Run the hook (text, or a code object) for one event. A hook that says nothing accepts."""
        log: list[str] = []
        module = self._module(event, log)
        code = compile(hook, "<hook>", "exec") if isinstance(hook, str) else hook
        began, failed = time.perf_counter(), ""
        with _as_pbs(module), _alarm(alarm_s):
            try:
                exec(code, {"__name__": "__main__"})
            except SystemExit:
                pass
            except Alarm:
                failed = f"request rejected as filter hook '{event.hook_name}' got an alarm call. Please inform Admin"
            except Exception as error:
                log.append(f"{type(error).__name__}: {error}")
                failed = f"request rejected as filter hook '{event.hook_name}' encountered an exception."
        spent = time.perf_counter() - began
        decision = event.__dict__["decision"]
        accepted = not failed and decision is not False
        return Outcome(accepted, failed or event.__dict__["message"], event, spent, failed, log)

    def _module(self, event: Event, log: list[str]) -> Any:
        module: Any = python_types.ModuleType("pbs")
        for name in vars(types):
            if not name.startswith("_") and name[0].islower():
                setattr(module, name, getattr(types, name))
        for name, number in NUMBERS.items():
            setattr(module, name, number)
        module.LOG_WARNING, module.LOG_ERROR, module.LOG_DEBUG = 4, 3, 7
        module.logmsg = lambda _level, text: log.append(text)
        module.event = lambda: event
        module.server = lambda: self.server
        return module


class Alarm(BaseException):
    """PBS's interrupt of a hook that overran."""


@contextmanager
def _as_pbs(module: Any) -> Iterator[None]:
    before = sys.modules.get("pbs")
    sys.modules["pbs"] = module
    try:
        yield
    finally:
        # None is no module. To take the name out at each event would have the table made anew after some thousands.
        sys.modules["pbs"] = before  # type: ignore[assignment]


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return

    def ring(_number: int, _frame: Any) -> None:
        raise Alarm

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

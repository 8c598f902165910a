"""Installs Grid Engine's side on one host: hook files, and on the master what the cell must know of them.

Scripts and settings of the site are never replaced: where one is in the way, the lines to add are shown. A manifest
records what was done, so that it can be undone.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among
from qtandem.core.installing import Change, ChangeState, HostFiles, Step, assembled, run_steps, with_constants
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import Settings
from qtandem.gridengine import complexes
from qtandem.gridengine.manager import Client

SOURCE = Path(__file__).parent
HOOKS = Path("/usr/libexec/qtandem/gridengine")
# File name, language of its constants, mode.
HOOK_FILES: tuple[tuple[str, str, int], ...] = (
    ("jsv", "python", 0o755),
    ("qtandem_gridengine.py", "python", 0o644),
    ("prolog", "sh", 0o755),
    ("epilog", "sh", 0o755),
    ("starter_method", "sh", 0o755),
    ("load_sensor", "sh", 0o755),
)
DAEMON_USER = "qtandem"
ARGUMENTS = "$job_id $job_owner"
UNSET = ("none", "")
# Settings that are lists, to which ours is added.
LISTS = ("load_sensor", "execd_params")
JSV_NOTE = (
    "With a server JSV, Grid Engine lets qalter change only what jsv_allowed_mod lists (default: ac,h,i,e,o,j,M,N,p,w):"
    " all users lose `qalter -l`, `-q`, `-a` and the like on pending jobs. A letter that is added there is checked"
    " by no JSV; keep `l` and `v` out."
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One attribute of an object of the cell: its name, the value that we need, how it reads in the object."""

    title: str
    key: str
    value: str


class Installer:
    """Grid Engine's installer on this host."""

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        if "gridengine" not in settings.managers:
            message = "The configuration has no section [managers.gridengine]"
            raise QtandemError("bad-config", message, remedy="Add it, with a name for the cell as `cluster`.")
        self._settings = settings
        self.section = settings.managers["gridengine"]
        self._catalog = catalog
        self._host = host or socket.gethostname()
        self.client = Client(self.section)
        self.files = HostFiles(settings.daemon.state_dir / "install" / "gridengine.json")
        self.hooks = Path(self.section.options.get("hooks_dir") or HOOKS)
        self.common = Path(self.client.root) / self.client.cell / "common"
        twice = complexes.taken_twice([one.native for one in catalog.resources.values()])
        if twice:
            message = f"The complex {', '.join(sorted(twice))} would have two meanings"
            raise QtandemError("bad-config", message, remedy="Give one of the QPUs another `native` name.")

    def changes(self) -> list[Change]:
        """Everything that an installed host has, each done or to do. Reads only."""
        return [step.change for step in self._steps()]

    def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Make those of the changes that are to do; returns them with what became of them."""
        wanted = {change.id for change in changes}
        return run_steps(step for step in self._steps() if step.change.id in wanted)

    def removals(self) -> list[Change]:
        """What `undo` would take back: what this installer made and nobody changed since."""
        return [step.change for step in self._undo_steps()]

    def undo(self) -> list[Change]:
        """Take back what was installed. Complexes stay while they are in use by jobs: Grid Engine says so."""
        return run_steps(self._undo_steps())

    def hook_texts(self) -> dict[Path, tuple[bytes, int]]:
        """Each hook file as it is installed: path, content, mode."""
        values = self._constants()
        out: dict[Path, tuple[bytes, int]] = {}
        for name, language, mode in HOOK_FILES:
            text = assembled((SOURCE / "hooks" / name).read_text()).replace(str(HOOKS), str(self.hooks))
            out[self.hooks / name] = (with_constants(text, values, language).encode(), mode)
        return out

    def is_master(self) -> bool:
        """Whether qmaster runs on this host, by act_qmaster or by the configuration's control_hosts."""
        try:
            known = [(self.common / "act_qmaster").read_text().strip(), *self.section.control_hosts]
        except OSError:
            known = list(self.section.control_hosts)
        return among(self._host, known)

    def _steps(self) -> list[Step]:
        steps = [self.files.step(path, data, mode) for path, (data, mode) in self.hook_texts().items()]
        return steps + (self._cell_steps() if self.is_master() else [])

    # ---- the cell, on its master
    def _cell_steps(self) -> list[Step]:
        try:
            return [
                self._manager_right(),
                self._complexes(),
                *self._unreachable(),
                *self._configuration(),
                *self._starters(),
            ]
        except QtandemError as error:
            change = Change("cell", "the cell's own settings", ChangeState.BLOCKED, error.one_line())
            return [Step(change)]

    def _manager_right(self) -> Step:
        title = f"{DAEMON_USER} is a manager of the cell"
        listed = self.client.run_sync("qconf", "-sm").stdout.split()
        return self._noted(
            "manager", title, DAEMON_USER in listed, lambda: self.client.run_sync("qconf", "-am", DAEMON_USER)
        )

    def _complexes(self) -> Step:
        text = self.client.run_sync("qconf", "-sc").stdout
        wanted = complexes.definitions(one.native for one in self._catalog.resources.values())
        missing = {key: line for key, line in wanted.items() if key not in complexes.defined(text)}

        def define() -> None:
            self._replace("-Mc", "complexes", text.rstrip() + "\n" + "\n".join(missing.values()) + "\n")
            self.files.note(f"complex {key}" for key in missing)

        detail = "\n".join(missing.values())
        state = ChangeState.TODO if missing else ChangeState.DONE
        return Step(Change("complexes", "complexes for QPUs", state, detail), define if missing else None)

    def _unreachable(self) -> Iterable[Step]:
        """Queues and hosts from which a QPU cannot be reached have 0 of it, so that no job waits there for nothing."""
        limited = [one for one in self._catalog.resources.values() if one.reach.partitions or one.reach.nodes]
        if not limited:
            return
        for kind, flag, names in (
            ("queue", "-sq", self.client.run_sync("qconf", "-sql").stdout.split()),
            ("exechost", "-se", self.client.run_sync("qconf", "-sel").stdout.split()),
        ):
            for name in names:
                shown = complexes.attributes(self.client.run_sync("qconf", flag, name).stdout)
                have = complexes.pairs(shown.get("complex_values", ""))
                wanted = [complexes.name(one.native) for one in limited if _blocked(one, kind, name)]
                missing = [key for key in wanted if have.get(key) != "0"]
                if wanted:
                    yield self._zeros(kind, name, missing, wanted)

    def _zeros(self, kind: str, name: str, missing: Sequence[str], wanted: Sequence[str]) -> Step:
        text = ",".join(f"{key}=0" for key in missing)
        title = f"{kind} {name} cannot reach {', '.join(wanted)}"
        return self._noted(
            f"zero {kind} {name} {','.join(wanted)}",
            title,
            not missing,
            lambda: self.client.run_sync("qconf", "-mattr", kind, "complex_values", text, name),
        )

    def configuration_settings(self) -> list[Setting]:
        """What the cell's global configuration needs."""
        return [
            Setting("the load sensor", "load_sensor", str(self.hooks / "load_sensor")),
            # Else execd waits busily, and reports nothing more, for a sensor that was killed.
            Setting("a load sensor that ended is started again", "execd_params", "DEMAND_LS=false"),
            Setting("the prolog", "prolog", f"root@{self.hooks}/prolog {ARGUMENTS}"),
            Setting("the epilog", "epilog", f"root@{self.hooks}/epilog {ARGUMENTS}"),
            Setting("the server JSV", "jsv_url", f"script:{self.jsv_user()}@{self.hooks}/jsv"),
        ]

    def jsv_user(self) -> str:
        """Whom qmaster runs the JSV as: a service user, so that the daemon takes its word."""
        users = [user for user in self.section.service_users if user != "root"]
        return users[0] if users else "root"

    def _configuration(self) -> list[Step]:
        text = self.client.run_sync("qconf", "-sconf").stdout
        have = complexes.attributes(text)
        todo: dict[str, str] = {}
        steps = [
            self._configured(setting, have.get(setting.key, ""), todo) for setting in self.configuration_settings()
        ]
        if todo:
            # One change of the configuration for all, made by the first of the steps.
            first = next(number for number, step in enumerate(steps) if step.change.state is ChangeState.TODO)

            def write() -> None:
                self._replace("-Mconf", "global", complexes.edited(text, todo))
                self.files.note(f"conf {key} {value}" for key, value in todo.items())

            steps = [
                Step(step.change, write if number == first else _nothing)
                if step.change.state is ChangeState.TODO
                else step
                for number, step in enumerate(steps)
            ]
        return steps

    def _configured(self, setting: Setting, have: str, todo: dict[str, str]) -> Step:
        identity, title = f"conf:{setting.key}", f"{setting.key} of the cell: {setting.title}"
        if setting.value in (have, *have.split(",")):
            return Step(Change(identity, title, ChangeState.DONE))
        note = JSV_NOTE if setting.key == "jsv_url" else ""
        if have.lower() in UNSET:
            todo[setting.key] = setting.value
            return Step(Change(identity, title, ChangeState.TODO, note))
        if setting.key == "load_sensor" or (setting.key in LISTS and "DEMAND_LS" not in have):
            todo[setting.key] = f"{have},{setting.value}"
            return Step(Change(identity, title, ChangeState.TODO, f"beside {have}"))
        return Step(Change(identity, title, ChangeState.MANUAL, _by_hand(setting, have, note)))

    def _starters(self) -> Iterable[Step]:
        value = str(self.hooks / "starter_method")
        for queue in self.client.run_sync("qconf", "-sql").stdout.split():
            shown = complexes.attributes(self.client.run_sync("qconf", "-sq", queue).stdout)
            have = shown.get("starter_method", "NONE")
            title = f"starter_method of the queue {queue}"
            if have.upper() == "NONE" or have == value:
                yield self._noted(
                    f"starter {queue}",
                    title,
                    have == value,
                    lambda queue=queue: self.client.run_sync(  # type: ignore[misc]
                        "qconf", "-mattr", "queue", "starter_method", value, queue
                    ),
                )
            else:
                detail = f"it is {have}\nset options.starter to it in [managers.gridengine], install again, then:\n"
                detail += f"qconf -mattr queue starter_method {value} {queue}"
                yield Step(Change(f"starter {queue}", title, ChangeState.MANUAL, detail))
            for key in ("prolog", "epilog"):
                own = shown.get(key, "NONE")
                if own.upper() != "NONE" and str(self.hooks) not in own:
                    setting = next(one for one in self.configuration_settings() if one.key == key)
                    detail = _by_hand(setting, own, "")
                    yield Step(Change(f"{key} {queue}", f"{key} of the queue {queue}", ChangeState.MANUAL, detail))

    def _noted(self, identity: str, title: str, done: bool, act: Callable[[], object]) -> Step:
        def make() -> None:
            act()
            self.files.note([identity])

        return Step(Change(identity, title, ChangeState.DONE if done else ChangeState.TODO), None if done else make)

    def _replace(self, flag: str, name: str, text: str) -> None:
        """Give an object to qconf, which takes the file's name for the object's."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / name
            file.write_text(text)
            self.client.run_sync("qconf", flag, str(file))

    # ---- and back
    def _undo_steps(self) -> list[Step]:
        records = list(self.files.manifest.records)
        order = ("conf", "starter", "zero", "complex", "manager")
        records.sort(key=lambda record: order.index(record.split()[0]) if record.split()[0] in order else len(order))
        undone = self._undone(records) if records else []
        return undone + self.files.removals()

    def _undone(self, records: Sequence[str]) -> list[Step]:
        names = [record.split()[1] for record in records if record.startswith("complex ")]
        steps = [
            Step(
                Change(f"record:{record}", f"take back {record}", ChangeState.TODO),
                lambda record=record: self._take_back(record),  # type: ignore[misc]
            )
            for record in records
            if not record.startswith("complex ")
        ]
        if names:
            change = Change("record:complexes", f"take back the complexes {', '.join(names)}", ChangeState.TODO)
            steps.append(Step(change, lambda: self._drop_complexes(names)))
        return steps

    def _take_back(self, record: str) -> None:
        kind, *words = record.split()
        if kind == "conf":
            self._unset(words[0], record.split(None, 2)[2])
        elif kind == "starter":
            value = str(self.hooks / "starter_method")
            shown = complexes.attributes(self.client.run_sync("qconf", "-sq", words[0]).stdout)
            if shown.get("starter_method") == value:
                self.client.run_sync("qconf", "-mattr", "queue", "starter_method", "NONE", words[0])
        elif kind == "zero":
            self.client.run_sync("qconf", "-dattr", words[0], "complex_values", words[2], words[1])
        elif kind == "manager":
            self.client.run_sync("qconf", "-dm", DAEMON_USER)
        self.files.forget(record)

    def _unset(self, key: str, value: str) -> None:
        text = self.client.run_sync("qconf", "-sconf").stdout
        have = complexes.attributes(text).get(key, "")
        ours = next((one.value for one in self.configuration_settings() if one.key == key), value)
        left = [part for part in have.split(",") if part != ours] if key in LISTS else []
        if have == value or ours in have.split(","):
            self._replace("-Mconf", "global", complexes.edited(text, {key: ",".join(left) or "none"}))

    def _drop_complexes(self, names: Sequence[str]) -> None:
        shown = complexes.attributes(self.client.run_sync("qconf", "-se", "global").stdout)
        used = [name for name in names if name in complexes.pairs(shown.get("complex_values", ""))]
        if used:
            self.client.run_sync("qconf", "-dattr", "exechost", "complex_values", ",".join(used), "global")
        lines = self.client.run_sync("qconf", "-sc").stdout.splitlines()
        kept = [line for line in lines if not line.split() or line.split()[0] not in names]
        self._replace("-Mc", "complexes", "\n".join(kept) + "\n")
        for name in names:
            self.files.forget(f"complex {name}")

    def _constants(self) -> Mapping[str, str | int | float | Iterable[str]]:
        daemon, timing = self._settings.daemon, self._settings.timing
        natives = [one.native for one in self._catalog.resources.values()]
        return {
            "CLUSTER": self.section.cluster,
            "SOCKET": str(daemon.socket),
            "RUNTIME": str(daemon.runtime_dir),
            "BEAT": str(daemon.runtime_dir / "heartbeat.gridengine"),
            "NAMES": str(daemon.runtime_dir / "names"),
            "RUNS": str(daemon.runtime_dir / "runs"),
            "HOOKS": str(self.hooks),
            "PYTHON": _python(),
            "DEADLINE_MS": round(timing.submit_ms),
            "SITE_JSV": self.section.options.get("jsv", ""),
            "SITE": self.section.options.get("starter", ""),
            "KNOWN": natives,
            "LIMIT": round(timing.deadman_s),
            "PAUSE": 30,
            "REFUSED_PAUSE_S": 30,
            "CALL_S": 10,
            # Sensors are closed by then, so that a job which waits again does not start at once.
            "DAEMON_DOWN_S": round(timing.deadman_s) + 10,
            "TOTAL_S": round(2 * max(timing.no_requeue_wait_s, timing.releasing_wait_s)) + 60,
        }


def _blocked(resource: Resource, kind: str, name: str) -> bool:
    if kind == "queue":
        return bool(resource.reach.partitions) and name not in resource.reach.partitions
    return bool(resource.reach.nodes) and resource.reach.blocks((), (name,)) is not None


def _by_hand(setting: Setting, have: str, note: str) -> str:
    """What an admin does where the site has a script of its own."""
    if setting.key == "jsv_url":
        lines = [
            f"it is {have}",
            "set options.jsv in [managers.gridengine] to that script, which ours then asks first; install again, then:",
            f"qconf -mconf global: jsv_url {setting.value}",
            note,
        ]
    else:
        path = re.sub(r"^root@", "", setting.value)
        lines = [
            f"it is {have}",
            f"call ours from it, as root, and pass on its exit status: {path}",
        ]
    return "\n".join(lines)


def _nothing() -> None:
    return None


def _python() -> str:
    """The system's interpreter: hooks must not depend on an environment of ours."""
    for path in ("/usr/bin/python3", "/usr/libexec/platform-python"):
        if Path(path).exists():
            return path
    return shutil.which("python3") or "/usr/bin/python3"

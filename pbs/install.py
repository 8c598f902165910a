"""Installs PBS's side: hooks, counted resources, and the daemon's right to set them, on the server's host.

PBS itself brings hooks to its nodes. Site files are never edited: what they need is shown. A manifest records what was
done, so that it can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtandem.core import accounts, installers
from qtandem.core.errors import QtandemError
from qtandem.core.installing import Change, ChangeState, Step, blocked
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.pbs import records, rights, site
from qtandem.pbs.manager import client
from qtandem.pbs.port import FLAGS

SOURCE = Path(__file__).parent
HOME = "/var/spool/pbs"
# File name, language of its constants, mode.
HOOK_FILES: tuple[tuple[str, str, int], ...] = (
    ("server.py", "python", 0o644),
    ("node.py", "python", 0o644),
    ("server_dyn_res", "python", 0o755),
)
# Resources of users' own wording; the scheduler does not look at them.
TEXTS = ("qpu", "quantum_resources")


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook of PBS. `later` are events that older servers do not have."""

    name: str
    file: str
    events: tuple[str, ...]
    later: tuple[str, ...]
    alarm_s: int


# Last of all hooks (`order`): what an earlier one refuses has taken nothing of ours.
ORDER = "900"
PBS_HOOKS = (
    Hook("qtandem_server", "server.py", ("queuejob", "modifyjob", "runjob"), ("resvsub", "jobobit"), 5),
    Hook(
        "qtandem_node",
        "node.py",
        ("execjob_begin", "execjob_launch", "execjob_end"),
        ("execjob_abort", "execjob_postsuspend", "execjob_preresume"),
        60,
    ),
)


class Installer(installers.Installer):
    """PBS's installer on this host."""

    manager = "pbs"
    absent = "Add it, with a name for the PBS complex as `cluster`."
    source = SOURCE / "hooks"
    hook_files = HOOK_FILES

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        super().__init__(settings, catalog, host=host)
        self.client = client(self.section)
        self.conf = site.conf(Path(self.section.options.get("conf") or site.CONF))
        self.sched_config = Path(self.conf.get("PBS_HOME", HOME)) / "sched_priv" / "sched_config"

    def is_server(self) -> bool:
        return site.is_server(self.conf, self.section.control_hosts, self.host)

    def natives(self) -> list[str]:
        """The counted resources by which PBS knows the QPUs."""
        return [records.resource(one.native) for one in self.catalog.resources.values()]

    def managers(self) -> Sequence[str]:
        return rights.managers(self.settings, self.host)

    def launched(self) -> accounts.Commands:
        return rights.commands(self.section)

    def pbs_hooks(self) -> dict[str, dict[str, str]]:
        return site.listed(self.client.run_sync("qmgr", "-c", "list hook", check=False).stdout, "Hook")

    def resources(self) -> dict[str, dict[str, str]]:
        return site.listed(self.client.run_sync("qmgr", "-c", "list resource", check=False).stdout, "Resource")

    def text_in_pbs(self, hook: Hook) -> str:
        said = self.client.run_sync("qmgr", "-c", f"export hook {hook.name} application/x-python default", check=False)
        return said.stdout.rstrip("\n")

    def hook_fault(self, hook: Hook, shown: dict[str, str] | None) -> str:
        """What is not as it must be of one hook in PBS, or an empty text."""
        if shown is None:
            return "PBS does not have it"
        events = site.words(shown.get("event", ""))
        if not set(hook.events) <= events or not events <= {*hook.events, *hook.later}:
            return f"its events are {','.join(sorted(events)) or 'none'}"
        for key, value in (("enabled", "true"), ("order", ORDER), ("alarm", str(hook.alarm_s))):
            if shown.get(key, "").lower() != value:
                return f"its {key} is {shown.get(key) or 'not set'}, not {value}"
        wanted = self.hook_texts()[self.hooks / hook.file][0].decode().rstrip("\n")
        return "" if self.text_in_pbs(hook) == wanted else "its text is not what this version and configuration install"

    def _steps(self) -> Iterator[Step]:
        yield from (self._hook_file_steps() if self.is_server() else []) + self._launcher_steps()
        yield from self._server_steps()

    def _server_steps(self) -> list[Step]:
        if not self.is_server():
            title = "hooks come from the server of PBS; this host needs qtandem-relay alone"
            return [Step(Change("node", title, ChangeState.DONE))]
        try:
            known = self.resources()
            return [
                *(self._resource(name, known) for name in (*TEXTS, *self.natives())),
                *self._manager_rights(),
                *self._hook_steps(),
                *self._by_hand(),
            ]
        except QtandemError as error:
            if error.code != "manager-unreachable":
                raise
            return [Step(Change("server", "hooks and resources of PBS", ChangeState.BLOCKED, error.one_line()))]

    def _resource(self, name: str, known: dict[str, dict[str, str]]) -> Step:
        identity, title = f"resource {name}", f"the resource {name} of PBS"
        if name in known and (name in TEXTS or set(FLAGS) <= set(known[name].get("flag", ""))):
            return Step(Change(identity, title, ChangeState.DONE))
        if name in known:
            mend = f"set resource {name} flag={FLAGS}"
            detail = f"its flags are {known[name].get('flag') or 'none'}, not {FLAGS}"
            return Step(Change(identity, title, ChangeState.TODO, detail), lambda: self._qmgr(mend))

        def make() -> None:
            if name in TEXTS:
                self._qmgr(f"create resource {name} type=string")
            else:
                # Closed until the daemon says otherwise.
                made = f"create resource {name} type=long,flag={FLAGS}"
                self._qmgr(made, f"set server resources_available.{name} = 0")
            self.files.note([identity])

        return Step(Change(identity, title, ChangeState.TODO), make)

    def _manager_rights(self) -> Iterable[Step]:
        have = site.words(self.server_attribute("managers"))
        for who in self.managers():
            identity, title = f"manager {who}", f"{who} is a manager of PBS: it sets resources and holds jobs"
            if who in have:
                yield Step(Change(identity, title, ChangeState.DONE))
            else:
                add = f'set server managers += "{who}"'
                yield self._noted(identity, title, lambda add=add: self._qmgr(add))  # type: ignore[misc]

    def server(self) -> records.Record:
        shown = records.objects(self.client.run_sync("qstat", "-B", "-f", "-F", "json").stdout, "Server")
        return shown[0] if shown else records.Record("", {})

    def server_attribute(self, name: str) -> str:
        return self.server().get(name)

    def with_qpu(self, name: str, states: str) -> set[str]:
        """The jobs in these states that have or want this resource."""
        said = self.client.run_sync("qselect", "-s", states, "-l", f"{name}.gt.0").stdout
        return {id.partition(".")[0] for id in said.split()}

    def _hook_steps(self) -> Iterable[Step]:
        have = self.pbs_hooks()
        for hook in PBS_HOOKS:
            fault = self.hook_fault(hook, have.get(hook.name))
            identity, title = f"hook {hook.name}", f"the hook {hook.name} of PBS"
            if not fault:
                yield Step(Change(identity, title, ChangeState.DONE))
                continue
            there = hook.name in have
            detail = fault if there else ",".join((*hook.events, *hook.later))
            change = Change(identity, title, ChangeState.TODO, detail)
            yield Step(change, lambda hook=hook, there=there: self._make_hook(hook, there))  # type: ignore[misc]

    def _make_hook(self, hook: Hook, there: bool) -> None:
        """Text before events: a hook that was switched on without its text would refuse jobs."""
        file = self.hooks / hook.file
        self._qmgr(
            *([] if there else [f"create hook {hook.name}"]),
            f"import hook {hook.name} application/x-python default {file}",
            f"set hook {hook.name} order = {ORDER}",
            f"set hook {hook.name} alarm = {hook.alarm_s}",
        )
        self.files.note([f"hook {hook.name}"])
        self._set_events(hook)
        self._qmgr(f"set hook {hook.name} enabled = true")

    def _set_events(self, hook: Hook) -> None:
        """Leave out, one by one, the events that this PBS does not have."""
        events = [*hook.events]
        self._qmgr(f'set hook {hook.name} event = "{",".join(events)}"')
        for event in hook.later:
            try:
                self._qmgr(f'set hook {hook.name} event = "{",".join([*events, event])}"')
                events.append(event)
            except QtandemError as error:
                if error.code == "manager-unreachable":
                    raise

    def _by_hand(self) -> Iterable[Step]:
        """What stands in files or settings of the site's own."""
        names = self.natives()
        identity, title = "line:sched_config", f"{self.sched_config}: the scheduler looks at the QPUs"
        text = self._sched_text()
        if text is None:
            detail = f'it is not here; on the scheduler\'s host, have in it: resources: "…, {", ".join(names)}"'
            yield Step(Change(identity, title, ChangeState.MANUAL, detail))
        elif set(names) <= set(site.scheduled(text)):
            yield Step(Change(identity, title, ChangeState.DONE))
        else:
            detail = f"{site.scheduled_line(text, names)}\nthen: kill -HUP the pid of pbs_sched"
            yield Step(Change(identity, title, ChangeState.MANUAL, detail))
        released = site.words(self.server_attribute("restrict_res_to_release_on_suspend"))
        identity, title = "suspend", "a job that is suspended keeps its QPU in PBS's count too"
        if self.gives_back() or (released and not released & set(names)):
            yield Step(Change(identity, title, ChangeState.DONE))
        else:
            detail = "qmgr -c 'set server restrict_res_to_release_on_suspend = \"ncpus,mem\"' (what you want released)"
            yield Step(Change(identity, title, ChangeState.MANUAL, detail, optional=True))

    def _sched_text(self) -> str | None:
        try:
            return self.sched_config.read_text(errors="replace")
        except OSError:
            return None

    def gives_back(self) -> bool:
        return self.section.options.get("suspend", "keep") == "release"

    def _undo_steps(self) -> list[Step]:
        """Rights before resources: a daemon that still runs would make them again."""
        order = ("hook", "manager", "resource")
        noted = sorted(self.files.manifest.records, key=lambda record: order.index(record.split()[0]))
        steps = [
            Step(
                Change(f"record:{record}", f"take back the {record}", ChangeState.TODO),
                lambda record=record: self._take_back(record),  # type: ignore[misc]
            )
            for record in noted
        ]
        steps += self.files.removals()
        why = self._missed() if noted else ""
        if why:
            steps = blocked(steps, why)
        return steps + (self._left() if self.is_server() else [])

    def _missed(self) -> str:
        """Why nothing can be taken back now: without hooks, jobs that ask for a QPU would run without it."""
        jobs: set[str] = set()
        try:
            known = self.resources()
            for name in filter(known.__contains__, self.natives()):
                jobs |= self.with_qpu(name, "BEHQRSTUW")
        except QtandemError as error:
            return error.one_line()
        shown = ", ".join(sorted(jobs)[:5])
        return f"jobs ask for a QPU ({shown}): again when they have ended, or delete them" if jobs else ""

    def _left(self) -> list[Step]:
        """What the admin has to take back: lines of theirs, and resources that the daemon made for later QPUs."""
        steps = []
        if any(name.startswith(records.PREFIX) for name in site.scheduled(self._sched_text() or "")):
            title = f"{self.sched_config}: take the QPUs out of the line resources, then HUP pbs_sched"
            steps.append(Step(Change("line:sched_config", title, ChangeState.MANUAL)))
        mine = {record.partition(" ")[2] for record in self.files.manifest.records}
        try:
            known = self.resources()
        except QtandemError:
            return steps
        others = [name for name in self.natives() if name in known and name not in mine]
        lines = "\n".join(f"qmgr -c 'delete resource {name}'" for name in others)
        if others:
            title = "resources that this installer did not make"
            steps.append(Step(Change("resources", title, ChangeState.MANUAL, lines, optional=True)))
        return steps

    def _take_back(self, record: str) -> None:
        kind, _, name = record.partition(" ")
        if kind == "manager":
            self._qmgr(f'set server managers -= "{name}"')
        else:
            self._qmgr(f"delete {kind} {name}")
        self.files.forget(record)

    def _noted(self, identity: str, title: str, act: Callable[[], None]) -> Step:
        def make() -> None:
            act()
            self.files.note([identity])

        return Step(Change(identity, title, ChangeState.TODO), make)

    def _qmgr(self, *lines: str) -> None:
        self.client.run_sync("qmgr", stdin="".join(f"{line}\n" for line in lines))

    def _constants(self) -> dict[str, str | int | float | Iterable[str]]:
        return super()._constants() | {
            "PRIV": str(Path(self.conf.get("PBS_HOME", HOME)) / "server_priv"),
            "BEGIN_S": 25,
            "END_S": 5,
            # In the server a job waits for so long; on a node the hook does.
            "DOWN_S": max(5, round(self.settings.timing.refusal_backoff_s)),
            "GIVE_BACK_ON_SUSPEND": "yes" if self.gives_back() else "",
        }

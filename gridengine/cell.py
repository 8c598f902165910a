"""What the cell itself must know of qtandem: its settings on qmaster, made and taken back by qconf."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from qtandem.core.commands import CommandError
from qtandem.core.errors import QtandemError
from qtandem.core.installing import Change, ChangeState, HostFiles, Step, blocked
from qtandem.core.resources import Catalog, Resource
from qtandem.gridengine import complexes, define, records
from qtandem.gridengine.advice import JSV_NOTE, Setting, by_hand, script
from qtandem.gridengine.client import Client
from qtandem.gridengine.records import seconds

ARGUMENTS = "$job_id $job_owner"
UNSET = ("none", "")
# Settings that are lists, to which ours is added.
LISTS = ("load_sensor", "execd_params")
# Settings of the cell and of queues that are scripts.
SCRIPTS = ("prolog", "epilog", "shepherd_cmd", "starter_method")
AGAIN_S = 2.0
# What was made, in the order in which it is taken back.
ORDER = ("conf", "starter", "zero", "complex", "manager", "was")


class Cell:
    """The cell's part of an installation. `jsv_user` is whom qmaster runs the JSV as, `managers` who needs the rights
    of a manager."""

    def __init__(
        self,
        client: Client,
        catalog: Catalog,
        files: HostFiles,
        hooks: Path,
        jsv_user: str,
        managers: Sequence[str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._catalog, self._files = client, catalog, files
        self._hooks, self._jsv_user, self._managers = hooks, jsv_user, managers
        self._monotonic, self._sleep = monotonic, sleep

    def steps(self) -> list[Step]:
        """All that the cell needs, each done or to do; one step that says why where it cannot be asked."""
        try:
            return [
                *(self._manager_right(user) for user in self._managers),
                self._complexes(),
                *self._unreachable(),
                *self._configuration(),
                *self._starters(),
            ]
        except QtandemError as error:
            return [Step(Change("cell", "the cell's own settings", ChangeState.BLOCKED, error.one_line()))]

    def settings(self) -> list[Setting]:
        """What the cell's global configuration needs."""
        needed = [
            Setting("the load sensor", "load_sensor", str(self._hooks / "load_sensor")),
            # Else execd waits busily, and reports nothing more, for a sensor that was killed.
            Setting("a load sensor that ended is started again", "execd_params", "DEMAND_LS=false"),
            Setting("the prolog", "prolog", f"root@{self._hooks}/prolog {ARGUMENTS}"),
            Setting("the epilog", "epilog", f"root@{self._hooks}/epilog {ARGUMENTS}"),
            Setting("the server JSV", "jsv_url", f"script:{self._jsv_user}@{self._hooks}/jsv"),
        ]
        if self._signals_prologs():
            title = "prologs of interactive jobs are not ended by a signal"
            needed.append(Setting(title, "shepherd_cmd", str(self._hooks / "shepherd")))
        return needed

    def names_hooks(self) -> bool:
        """Whether the cell still calls what is in the folder of hooks."""
        return any(f"{self._hooks}/" in value for shown in self._shown() for value in shown.values())

    def callers(self) -> list[str]:
        """The site's own scripts in the cell's and queues' settings that call ours, as far as they can be read here."""
        own = {shown.get(key, "") for shown in self._shown() for key in SCRIPTS}
        return sorted({str(script(value)) for value in own if self._calls(value, self._hooks)})

    def _shown(self) -> Iterator[Mapping[str, str]]:
        yield complexes.attributes(self._client.run_sync("qconf", "-sconf").stdout)
        for queue in self._queues():
            yield complexes.attributes(self._client.run_sync("qconf", "-sq", queue).stdout)

    def _calls(self, value: str, hook: Path) -> bool:
        """Whether the script of the site's own that a setting names has the path of ours in it."""
        if value.lower() in UNSET or f"{self._hooks}/" in value:
            return False
        try:
            return str(hook) in script(value).read_text(errors="replace")
        except OSError:
            return False

    def _signals_prologs(self) -> bool:
        """Whether this is the Grid Engine that hooks/shepherd mends."""
        version = self._client.run_sync("qconf", "-help").stdout.split("\n", 1)[0]
        bootstrap = self._client.bootstrap()
        return version.startswith("SGE 8.1") and bootstrap.get("admin_user", "none").lower() not in ("none", "root")

    def _queues(self) -> list[str]:
        return self._client.run_sync("qconf", "-sql").stdout.split()

    def _manager_right(self, user: str) -> Step:
        listed = self._client.run_sync("qconf", "-sm").stdout.split()
        title = f"{user} is a manager of the cell"
        return self._noted(
            f"manager {user}", title, user in listed, lambda: self._client.run_sync("qconf", "-am", user)
        )

    def _complexes(self) -> Step:
        text = self._client.run_sync("qconf", "-sc").stdout
        natives = [one.native for one in self._catalog.resources.values()]
        wanted = complexes.definitions(natives)
        missing = {key: line for key, line in wanted.items() if key not in complexes.defined(text)}

        def make() -> None:
            added = define.add(self._client, natives)
            self._files.note(f"complex {key}" for key in added)

        detail = "\n".join(missing.values())
        state = ChangeState.TODO if missing else ChangeState.DONE
        return Step(Change("complexes", "complexes for QPUs", state, detail), make if missing else None)

    def _unreachable(self) -> Iterable[Step]:
        """Queues and hosts from which a QPU cannot be reached have 0 of it, so that no job waits there for nothing."""
        limited = [one for one in self._catalog.resources.values() if one.reach.partitions or one.reach.nodes]
        if not limited:
            return
        hosts = self._client.run_sync("qconf", "-sel").stdout.split()
        for kind, flag, names in (("queue", "-sq", self._queues()), ("exechost", "-se", hosts)):
            for name in names:
                shown = complexes.attributes(self._client.run_sync("qconf", flag, name).stdout)
                have = complexes.pairs(shown.get("complex_values", ""))
                wanted = [complexes.name(one.native) for one in limited if _blocked(one, kind, name)]
                missing = [key for key in wanted if have.get(key) != "0"]
                if wanted:
                    yield self._zeros(kind, name, missing, wanted)

    def _zeros(self, kind: str, name: str, missing: Sequence[str], wanted: Sequence[str]) -> Step:
        text = ",".join(f"{key}=0" for key in missing)
        title = f"{kind} {name} cannot reach {', '.join(wanted)}"
        argv = ("qconf", "-mattr", kind, "complex_values", text, name)
        return self._noted(
            f"zero {kind} {name} {','.join(wanted)}", title, not missing, lambda: self._client.run_sync(*argv)
        )

    def _configuration(self) -> list[Step]:
        text = self._client.run_sync("qconf", "-sconf").stdout
        have, notes = complexes.attributes(text), self._notes()
        todo: dict[str, str] = {}
        steps = [self._configured(setting, have.get(setting.key, ""), notes, todo) for setting in self.settings()]
        if todo:
            # One change of the configuration for all, made by the first of the steps.
            first = next(number for number, step in enumerate(steps) if step.change.state is ChangeState.TODO)

            def write() -> None:
                self._replace("-Mconf", "global", complexes.edited(text, todo))
                for key, value in todo.items():
                    self._note_setting(key, value, have.get(key, ""), notes)

            steps = [
                Step(step.change, write if number == first else _nothing)
                if step.change.state is ChangeState.TODO
                else step
                for number, step in enumerate(steps)
            ]
        return steps

    def _configured(self, setting: Setting, have: str, notes: Mapping[str, str], todo: dict[str, str]) -> Step:
        identity, title = f"conf:{setting.key}", f"{setting.key} of the cell: {setting.title}"
        if setting.value in (have, *have.split(",")) or self._by_the_sites_own(setting, have):
            return Step(Change(identity, title, ChangeState.DONE))
        note = JSV_NOTE if setting.key == "jsv_url" else ""
        # What an earlier version or configuration of ours left there is ours to replace.
        if have.lower() in UNSET or have == notes.get(setting.key):
            todo[setting.key] = setting.value
            return Step(Change(identity, title, ChangeState.TODO, note))
        if setting.key == "load_sensor" or (setting.key in LISTS and "DEMAND_LS" not in have):
            todo[setting.key] = f"{have},{setting.value}"
            return Step(Change(identity, title, ChangeState.TODO, f"beside {have}"))
        return Step(Change(identity, title, ChangeState.MANUAL, by_hand(setting, have, note)))

    def _by_the_sites_own(self, setting: Setting, have: str) -> bool:
        """Whether a script of the site's own calls ours, as root where ours must be root."""
        if setting.key not in SCRIPTS or (setting.value.startswith("root@") and not have.startswith("root@")):
            return False
        return self._calls(have, script(setting.value))

    def _notes(self) -> dict[str, str]:
        """The values that we set, by key, as the manifest has them."""
        words = (record.split(None, 2) for record in self._files.manifest.records if record.startswith("conf "))
        return {parts[1]: parts[2] for parts in words if len(parts) == 3}

    def _note_setting(self, key: str, value: str, before: str, notes: Mapping[str, str]) -> None:
        if key in notes:
            self._files.forget(f"conf {key} {notes[key]}")
        else:
            self._files.note([f"was {key} {before}"])
        self._files.note([f"conf {key} {value}"])

    def _starters(self) -> Iterable[Step]:
        value = str(self._hooks / "starter_method")
        for queue in self._queues():
            shown = complexes.attributes(self._client.run_sync("qconf", "-sq", queue).stdout)
            have = shown.get("starter_method", "NONE")
            title = f"starter_method of the queue {queue}"
            if have.upper() == "NONE" or have == value:
                argv = ("qconf", "-mattr", "queue", "starter_method", value, queue)
                yield self._noted(
                    f"starter {queue}",
                    title,
                    have == value,
                    lambda argv=argv: self._client.run_sync(*argv),  # type: ignore[misc]
                )
            else:
                detail = f"it is {have}\nset options.starter to it in [managers.gridengine], install again, then:\n"
                detail += f"qconf -mattr queue starter_method {value} {queue}"
                yield Step(Change(f"starter {queue}", title, ChangeState.MANUAL, detail))
            yield from self._own_scripts(queue, shown)

    def _own_scripts(self, queue: str, shown: Mapping[str, str]) -> Iterator[Step]:
        """A queue's own prolog or epilog, which runs in place of the cell's."""
        for key in ("prolog", "epilog"):
            own = shown.get(key, "NONE")
            if own.upper() != "NONE" and str(self._hooks) not in own:
                setting = next(one for one in self.settings() if one.key == key)
                done = self._by_the_sites_own(setting, own)
                state, detail = (ChangeState.DONE, "") if done else (ChangeState.MANUAL, by_hand(setting, own, ""))
                yield Step(Change(f"{key} {queue}", f"{key} of the queue {queue}", state, detail))

    def _noted(self, identity: str, title: str, done: bool, act: Callable[[], object]) -> Step:
        def make() -> None:
            act()
            self._files.note([identity])

        return Step(Change(identity, title, ChangeState.DONE if done else ChangeState.TODO), None if done else make)

    def _replace(self, flag: str, name: str, text: str) -> None:
        """Give an object to qconf, which takes the file's name for the object's."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / name
            file.write_text(text)
            self._client.run_sync("qconf", flag, str(file))

    # ---- and back
    def undo_steps(self) -> list[Step]:
        """Take back what was noted as made here, settings first, so that nothing calls what goes after them.

        All of it stays while a job asks for a QPU: without the hooks it would run without one, and Grid Engine does not
        keep a complex that is asked for.
        """
        notes = [record for record in self._files.manifest.records if record.split()[0] in ORDER]
        names = [record.split()[1] for record in notes if record.startswith("complex ")]
        asking: list[str] = []
        if names and self._answers():
            there = complexes.defined(self._client.run_sync("qconf", "-sc").stdout)
            names = list(dict.fromkeys([*names, *complexes.families(there)]))
            said = self._client.run_sync("qstat", "-u", "*", "-s", "prs", "-r", "-xml").stdout
            asking = records.asking(said, names)
        steps = self._taken_back(notes, names)
        if not asking:
            return steps
        detail = f"jobs ask for a QPU ({', '.join(asking[:5])}); again when they have ended or were deleted"
        return blocked(steps, detail)

    def _answers(self) -> bool:
        try:
            self._client.run_sync("qconf", "-sh")
        except QtandemError as error:
            if error.code == "manager-unreachable":
                return False
            raise
        return True

    def _taken_back(self, notes: Sequence[str], names: Sequence[str]) -> list[Step]:
        steps = []
        for record in sorted(notes, key=lambda record: ORDER.index(record.split()[0])):
            if record.split()[0] not in ("complex", "was"):
                change = Change(f"record:{record}", f"take back {record}", ChangeState.TODO)
                steps.append(Step(change, lambda record=record: self._take_back(record)))  # type: ignore[misc]
        if names:
            change = Change("record:complexes", f"take back the complexes {', '.join(names)}", ChangeState.TODO)
            steps.append(Step(change, lambda: self._drop_complexes(names)))
        return steps

    def _take_back(self, record: str) -> None:
        kind, *words = record.split()
        if kind == "conf":
            self._unset(words[0], record.split(None, 2)[2])
        elif kind == "starter":
            value = str(self._hooks / "starter_method")
            shown = complexes.attributes(self._client.run_sync("qconf", "-sq", words[0]).stdout)
            if shown.get("starter_method") == value:
                self._client.run_sync("qconf", "-mattr", "queue", "starter_method", "NONE", words[0])
        elif kind == "zero":
            values = ",".join(f"{name}=0" for name in words[2].split(","))
            self._client.run_sync("qconf", "-dattr", words[0], "complex_values", values, words[1])
        elif kind == "manager":
            self._client.run_sync("qconf", "-dm", words[0])
        self._files.forget(record)

    def _unset(self, key: str, value: str) -> None:
        """Give a setting the value back that it had, unless somebody has changed it since."""
        before = next(
            (record for record in self._files.manifest.records if record.split(" ", 2)[:2] == ["was", key]),
            f"was {key} none",
        )
        was = before.split(" ", 2)[2] or "none"
        text = self._client.run_sync("qconf", "-sconf").stdout
        have = complexes.attributes(text).get(key, "")
        ours = [one.value for one in self.settings() if one.key == key]
        left = [part for part in have.split(",") if part not in ours] if key in LISTS else []
        if have == value or have in ours:
            self._replace("-Mconf", "global", complexes.edited(text, {key: was}))
        elif key in LISTS and len(left) < len(have.split(",")):
            self._replace("-Mconf", "global", complexes.edited(text, {key: ",".join(left) or was}))
        self._files.forget(before)

    def _drop_complexes(self, names: Sequence[str]) -> None:
        shown = complexes.attributes(self._client.run_sync("qconf", "-se", "global").stdout)
        used = [name for name in names if name in complexes.pairs(shown.get("complex_values", ""))]
        if used:
            self._client.run_sync("qconf", "-dattr", "exechost", "complex_values", ",".join(used), "global")
        until = self._monotonic() + self._reports_s()
        while True:
            try:
                self._undefine(names)
                break
            except CommandError as error:
                # Hosts report them until their sensors have been stopped, which is with a load report.
                if "still referenced in host" not in f"{error.stdout} {error.stderr}" or self._monotonic() > until:
                    raise
                self._sleep(AGAIN_S)
        for name in names:
            self._files.forget(f"complex {name}")

    def _undefine(self, names: Sequence[str]) -> None:
        lines = self._client.run_sync("qconf", "-sc").stdout.splitlines()
        kept = [line for line in lines if not line.split() or line.split()[0] not in names]
        if len(kept) < len(lines):
            self._replace("-Mc", "complexes", "\n".join(kept) + "\n")

    def _reports_s(self) -> float:
        """Two intervals of load reports, and a little."""
        shown = complexes.attributes(self._client.run_sync("qconf", "-sconf").stdout)
        return 2 * (seconds(shown.get("load_report_time", "")) or 60) + 15


def _blocked(resource: Resource, kind: str, name: str) -> bool:
    if kind == "queue":
        return bool(resource.reach.partitions) and name not in resource.reach.partitions
    return bool(resource.reach.nodes) and resource.reach.blocks((), (name,)) is not None


def _nothing() -> None:
    return None

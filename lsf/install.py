"""Installs LSF's side on one host: hook files, the elim and esub where LSF looks for them, and lines for LSF's files.

LSF's own files are never edited: what they need is shown, and written as fragments beside the hooks. A manifest
records what was done, so that it can be undone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from qtandem.core import accounts, installers
from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among
from qtandem.core.installing import Change, ChangeState, Step, digest
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.lsf import fragments, requirements, rights, site
from qtandem.lsf.manager import SENSORS, Client

SOURCE = Path(__file__).parent
# File name, language of its constants, mode.
HOOK_FILES: tuple[tuple[str, str, int], ...] = (
    ("esub.qpu", "sh", 0o755),
    ("qtandem_esub.py", "python", 0o644),
    ("elim.qpu", "sh", 0o755),
    ("pre_exec", "sh", 0o755),
    ("post_exec", "sh", 0o755),
    ("qtandem_lsf.py", "python", 0o644),
    ("jobstarter.qpu", "sh", 0o644),
)
SUDOERS = Path("/etc/lsf.sudoers")
CLIENT_MS = 500
RECONFIGURE = "then: lsadmin reconfig; badmin mbdrestart"


class Installer(installers.Installer):
    """LSF's installer on this host."""

    manager = "lsf"
    absent = "Add it, with the name of the cluster as `cluster`."
    source = SOURCE / "hooks"
    hook_files = HOOK_FILES

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        super().__init__(settings, catalog, host=host)
        self.client = Client(self.section)
        self.conf_path, self.conf = site.conf_path(self.section.options), self.client.conf
        self.indices = fragments.indices(catalog.resources.values())
        twice = requirements.taken_twice(one.native for one in catalog.resources.values())
        if twice:
            message = f"The index {', '.join(requirements.name(one) for one in sorted(twice))} has a meaning of its own"
            raise QtandemError("bad-config", message, remedy="Give that QPU another `native` name.")
        long = [index.name for index in self.indices if len(index.name) > fragments.MAX_NAME]
        if long:
            message = f"LSF takes no name of more than {fragments.MAX_NAME} characters: {', '.join(long)}"
            raise QtandemError("bad-config", message, remedy="Give that QPU a shorter `native` name.")

    def _undo_steps(self) -> list[Step]:
        """LSF starts no job of a queue whose hooks are gone, and takes none while its esub is."""
        named = self._named()
        if not named:
            return self.files.removals()
        title = "LSF's own files name our hooks"
        change = Change("line:named", title, ChangeState.MANUAL, "\n".join(["take out first:", *named]))
        blocked = (replace(step.change, state=ChangeState.BLOCKED) for step in self.files.removals())
        return [Step(change), *map(Step, blocked)]

    def _named(self) -> list[str]:
        """Lines in LSF's files that name what would be removed."""
        lines = []
        for name in ("lsb.queues", "lsb.applications"):
            path = self.site_file(name)
            for number, line in enumerate(_text(path).splitlines(), 1):
                if str(self.hooks) in line.partition("#")[0]:
                    lines.append(f"{path}:{number}: {line.strip()}")
        if fragments.PROFILE in self._methods():
            lines.append(f"{self.conf_path}: qpu in LSB_ESUB_METHOD")
        return lines

    def _methods(self) -> list[str]:
        return self.conf.get("LSB_ESUB_METHOD", "").split()

    def server_texts(self) -> dict[Path, tuple[bytes, int]]:
        """The elim and esub in LSF_SERVERDIR. Where one esub is for all (no mesub), it is ours or calls ours."""
        folder = self.server_dir()
        if folder is None:
            return {}
        texts, suffix = self.hook_texts(), ".qpu" if self.has_mesub() else ""
        return {folder / f"{kind}{suffix}": texts[self.hooks / f"{kind}.qpu"] for kind in ("esub", "elim")}

    def server_dir(self) -> Path | None:
        return Path(self.conf["LSF_SERVERDIR"]) if self.conf.get("LSF_SERVERDIR") else None

    def has_mesub(self) -> bool:
        """Whether LSF calls `esub.NAME` and `elim.NAME`; older forms have one `esub` and one `elim`."""
        folder = self.server_dir()
        return folder is not None and (folder / "mesub").exists()

    def is_master(self) -> bool:
        """Whether this host can be the master, by lsf.conf or by the configuration's control_hosts."""
        listed = re.split(r"[\s,]+", self.conf.get("LSF_MASTER_LIST", "").strip())
        return among(self.host, (*filter(None, listed), *self.section.control_hosts))

    def launches(self) -> bool:
        """Whether a launcher starts LSF's commands on this host: the master's."""
        return bool(self.settings.daemon.launcher) and self.is_master()

    def launched(self) -> accounts.Commands:
        return rights.commands(self.section)

    def profile(self) -> str:
        """The application profile that esub gives to jobs with a QPU; empty for none."""
        return self.section.options.get("profile", "")

    def site_file(self, name: str) -> Path:
        """One of LSF's own files."""
        if name in ("lsf.conf",):
            return self.conf_path
        confdir = Path(self.conf.get("LSF_CONFDIR") or self.conf_path.parent)
        if name == "lsf.cluster":
            return confdir / f"lsf.cluster.{self.section.options.get('lsf_cluster') or self.section.cluster}"
        if name.startswith("lsb."):
            folder = Path(self.conf.get("LSB_CONFDIR") or confdir / "lsbatch")
            nested = folder / (self.section.options.get("lsf_cluster") or self.section.cluster) / "configdir"
            return (nested if nested.is_dir() else folder) / name
        return confdir / name

    # ---- the steps
    def _steps(self) -> list[Step]:
        steps = self._hook_file_steps()
        if not self.conf:
            detail = "set options.envdir in [managers.lsf] to the folder of lsf.conf"
            change = Change("conf", f"{self.conf_path} cannot be read", ChangeState.BLOCKED, detail)
            return [*steps, Step(change)]
        steps += [self._in_server_dir(path, data, mode) for path, (data, mode) in self.server_texts().items()]
        steps += [
            self.files.step(self.hooks / "fragments" / name, text.encode(), 0o644)
            for name, text in self.fragment_texts().items()
        ]
        return steps + self._launcher_steps() + [Step(change) for change in self.site_changes()]

    def _in_server_dir(self, path: Path, data: bytes, mode: int) -> Step:
        """LSF_SERVERDIR is often one folder for all hosts: what another host put there is there."""
        identity, title = f"file:{path}", f"write {path}"
        if digest(path) == hashlib.sha256(data).hexdigest() and path.stat().st_mode & 0o7777 == mode:
            return Step(Change(identity, title, ChangeState.DONE))
        if path.exists() and not self.files.owns(path):
            option = path.name.partition(".")[0]
            detail = f"it is the site's own; move it, set options.{option} in [managers.lsf] to its new place, and "
            detail += "install again: ours then calls it"
            if option == "elim":
                detail = "it is the site's own; have it report our indices too, by one record from elim.qpu:\n"
                detail += f"{self.hooks}/elim.qpu"
            return Step(Change(identity, title, ChangeState.MANUAL, detail))
        return self.files.step(path, data, mode)

    def fragment_texts(self) -> dict[str, str]:
        """The lines for each of LSF's files, for a site that includes or copies them."""
        hooks, names = fragments.hooks(self.hooks), self._names()
        heads = fragments.HEADS if self.has_mesub() else fragments.OLD_HEADS
        shared = " ".join(heads) + "\n" + fragments.definitions(self.indices, heads)
        located = "RESOURCENAME LOCATION\n" + fragments.locations(self.indices)
        texts = {
            "lsf.shared": fragments.section("Resource", shared),
            "lsf.cluster": fragments.section("ResourceMap", located),
            "lsb.queues": fragments.settings(hooks) + "\n",
        }
        if self.has_mesub():
            reserved = "RESOURCE METHOD\n" + fragments.reservations(names)
            texts |= {
                "lsb.resources": fragments.section("ReservationUsage", reserved),
                "lsb.applications": fragments.section("Application", self._profile_lines()),
                "lsf.conf": 'LSB_ESUB_METHOD="qpu"\n',
            }
        return texts

    def _profile_lines(self) -> str:
        return fragments.settings(fragments.profile(self._minutes()))

    def site_changes(self) -> Iterator[Change]:
        """What LSF's own files need, done or for the admin's hand: most of it where this host can be the master."""
        yield self._as_user()
        if not self.is_master():
            return
        yield self._shared()
        yield self._mapped()
        yield from self._hooked()
        yield self._administrator()
        yield self._once_a_job()
        yield from self._settings_of_lsf()

    def _as_user(self) -> Change:
        user = site.conf(SUDOERS).get("LSB_PRE_POST_EXEC_USER", "")
        detail = (
            f"{SUDOERS} has LSB_PRE_POST_EXEC_USER={user}. LSF gives these commands the environment of the job,\n"
            f"LD_PRELOAD among it, so whoever submits a job can run what he likes as {user} on this host.\n"
            "qtandem does not need the line; if no other hook of the site does, take it out."
        )
        title = "pre_exec and post_exec run as the job's user on this host"
        return _by_hand("user", title, detail if user else "", optional=True)

    def _shared(self) -> Change:
        path = self.site_file("lsf.shared")
        missing, heads = fragments.undefined(_text(path), self.indices)
        heads = heads or (fragments.HEADS if self.has_mesub() else fragments.OLD_HEADS)
        lines = f"in its section Resource ({' '.join(heads)}):\n{fragments.definitions(missing, heads)}\n{RECONFIGURE}"
        return _by_hand("lsf.shared", f"{path} defines the QPUs' indices", lines if missing else "")

    def _mapped(self) -> Change:
        path = self.site_file("lsf.cluster")
        missing = fragments.unmapped(_text(path), self.indices)
        lines = f"in its section ResourceMap:\n{fragments.locations(missing)}\n{RECONFIGURE}"
        return _by_hand("lsf.cluster", f"{path} maps the QPUs' indices to hosts", lines if missing else "")

    def _hooked(self) -> Iterator[Change]:
        path = self.site_file("lsb.queues")
        queues = [one.values for one in site.of_kind(_text(path), "Queue") if one.values.get("QUEUE_NAME")]
        if not queues:
            yield _by_hand(
                "queues", f"{path} has our hooks in its queues", fragments.settings(fragments.hooks(self.hooks))
            )
        for values in queues:
            name = values["QUEUE_NAME"]
            missing = fragments.lacking(values, fragments.hooks(self.hooks))
            yield _by_hand(
                f"queue {name}", f"{path}: the queue {name} has our hooks", self._queue_lines(values, missing)
            )

    def _queue_lines(self, have: Mapping[str, str], missing: Mapping[str, str]) -> str:
        lines = []
        for name, value in missing.items():
            own = have.get(name)
            if not own or str(self.hooks) in own:
                lines.append(f"{name} = {value}")
            elif name == "JOB_STARTER":
                lines.append(f"{name} = {value} {own}")
            else:
                lines += [f"its {name} is {own}", f"call ours from it, and pass on its exit status: {value}"]
        return "\n".join(lines)

    def _administrator(self) -> Change:
        path, user = self.site_file("lsf.cluster"), accounts.publisher(self.settings.daemon)
        title = f"{user} is an administrator of LSF: it stops and resumes jobs that wait for a QPU"
        have = fragments.administrators(_text(path))
        return _by_hand("administrator", title, "" if user in have else f"add {user} to Administrators in {path}")

    def _once_a_job(self) -> Change:
        path = self.site_file("lsb.resources")
        missing = fragments.unreserved(_text(path), self._names())
        lines = f"in its section ReservationUsage:\n{fragments.reservations(missing)}"
        title = f"{path}: a QPU counts once a job, not once a slot"
        return _by_hand("reservations", title, lines if missing and self.has_mesub() else "", optional=True)

    def _settings_of_lsf(self) -> Iterator[Change]:
        if self.has_mesub():
            line = " ".join([*self._methods(), "qpu"])
            title = "esub.qpu is asked for each job, also where nobody wrote -a qpu(…)"
            done = "qpu" in self._methods()
            yield _by_hand("esub", title, "" if done else f'{self.conf_path}: LSB_ESUB_METHOD="{line}"')
        if self.has_mesub():
            yield self._ends()

    def _ends(self) -> Change:
        """LSF gives the QPU to its next job once post_exec is over, if it is told to."""
        params, applications = self.site_file("lsb.params"), self.site_file("lsb.applications")
        told = [one.values for one in site.of_kind(_text(params), "Parameters")]
        found = [one.values for one in site.of_kind(_text(applications), "Application")]
        told += [values for values in found if values.get("NAME") == self.profile() != ""]
        done = any(values.get("JOB_INCLUDE_POSTPROC", "").upper() in ("Y", "YES") for values in told)
        lines = (
            f"in {applications}:\n{fragments.section('Application', self._profile_lines())}"
            f'and options.profile = "{fragments.PROFILE}" in [managers.lsf], or for all jobs in {params}:\n'
            "JOB_INCLUDE_POSTPROC = Y"
        )
        title = "a job is over for LSF when its QPU has been given back, and not a moment before"
        return _by_hand("postproc", title, "" if done else lines, optional=True)

    def _names(self) -> list[str]:
        return [requirements.name(one.native) for one in self.catalog.resources.values()]

    def _minutes(self) -> int:
        return self._total_s() // 60 + 5

    def _constants(self) -> dict[str, str | int | float | Iterable[str]]:
        options = self.section.options
        return super()._constants() | {
            "SENSORS": options.get("sensors") or str(SENSORS),
            "PYTHON": installers.system_python() or "/usr/bin/python3",
            # At the client nobody waits but who submits.
            "DEADLINE_MS": max(CLIENT_MS, round(self.settings.timing.submit_ms)),
            "SITE_ESUB": options.get("esub", ""),
            "PROFILE": self.profile(),
            "DURATIONS": int(self.has_mesub()),
            # Those that the daemon names. LSF_SERVERDIR may be one folder of hosts that are configured unlike.
            "KNOWN": (),
            "TICK": 1,
            "TICKS": fragments.INTERVAL_S,
            # No step of the elim takes longer.
            "STUCK": 8,
        }


def _by_hand(identity: str, title: str, lines: str, *, optional: bool = False) -> Change:
    state = ChangeState.MANUAL if lines else ChangeState.DONE
    return Change(f"line:{identity}", title, state, lines, optional)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

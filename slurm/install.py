"""Installs Slurm's side on one host: hook files, the `--qpu` option, our lines for slurm.conf, licences.

Site files are never edited: what they need is shown. A manifest records what was done, so that it can be undone.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qtandem.core import accounts, commands
from qtandem.core.errors import QtandemError
from qtandem.core.hosts import among
from qtandem.core.installing import Change, ChangeState, HostFiles, Step, assembled, digest, run_steps, with_constants
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.slurm import conf, rights
from qtandem.slurm.commands import Client
from qtandem.slurm.records import Records

SOURCE = Path(__file__).parent
HOOKS = Path("/usr/libexec/qtandem/slurm")
BUILD_S = 120.0
HEADERS = (Path("/usr/include"), Path("/usr/local/include"))
# File name, language of its constants, mode.
HOOK_FILES: tuple[tuple[str, str, int], ...] = (
    ("qtandem.lua", "lua", 0o644),
    ("qtandem_forms.lua", "lua", 0o644),
    ("qtandem_slurm.py", "python", 0o644),
    ("prolog_slurmctld", "sh", 0o755),
    ("epilog_slurmctld", "sh", 0o755),
    ("prolog", "sh", 0o755),
    ("epilog", "sh", 0o755),
    ("task_prolog", "sh", 0o755),
)
HEAD = "# Written by `qtandem install slurm`, and removed by `qtandem uninstall slurm`.\n"
NO_COMPILER = (
    "It needs a C compiler and Slurm's headers (Debian: gcc libc6-dev libslurm-dev), "
    "or the file from a host with the same Slurm."
)


class Installer:
    """Slurm's installer on this host."""

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        if "slurm" not in settings.managers:
            message, remedy = (
                "The configuration has no section [managers.slurm]",
                "Add it, with slurm.conf's ClusterName.",
            )
            raise QtandemError("bad-config", message, remedy=remedy)
        self._settings = settings
        self._slurm = settings.managers["slurm"]
        self._host = host or socket.gethostname()
        self._client = Client(self._slurm)
        self.files = HostFiles(settings.daemon.state_dir / "install" / "slurm.json")
        self.records = Records(self._slurm, catalog, self._client, self.files, accounts.publisher(settings.daemon))
        options = self._slurm.options
        self.hooks = Path(options.get("hooks_dir") or HOOKS)
        self.conf_path = Path(options.get("conf") or os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
        self.own_conf = self.conf_path.parent / "qtandem.conf"
        self.plugstack = self.conf_path.parent / "plugstack.conf"
        self.fragment = self.conf_path.parent / "plugstack.conf.d" / "qtandem.conf"
        self.job_submit = self.conf_path.parent / "job_submit.lua"

    def changes(self) -> list[Change]:
        """Everything that an installed host has, each done or to do. Reads only."""
        return [step.change for step in self._steps()]

    def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Make those of the changes that are to do; returns them with what became of them."""
        wanted = {change.id for change in changes}
        # Slurm's commands read slurm.conf, which may include a file that is written here.
        done = run_steps(step for step in self._file_steps() if step.change.id in wanted)
        return done + run_steps(step for step in self._record_steps() if step.change.id in wanted)

    def removals(self) -> list[Change]:
        """What `undo` would take back: what this installer made on this host and nobody changed since."""
        return [step.change for step in self._undo_steps()]

    def undo(self) -> list[Change]:
        """Take back what was installed; files that were changed since stay and are named."""
        return run_steps(self._undo_steps())

    def hook_texts(self) -> dict[Path, tuple[bytes, int]]:
        """Each hook file as it is installed: path, content, mode."""
        values = self._constants()
        out: dict[Path, tuple[bytes, int]] = {}
        for name, language, mode in HOOK_FILES:
            text = assembled((SOURCE / "hooks" / name).read_text()).replace(str(HOOKS), str(self.hooks))
            out[self.hooks / name] = (with_constants(text, values, language).encode(), mode)
        return out

    def is_controller(self) -> bool:
        """Whether slurmctld runs on this host, by slurm.conf or by the configuration's control_hosts."""
        site = self.site_conf()
        known = [*(site.control_hosts() if site else ()), *self._slurm.control_hosts]
        return among(self._host, known)

    def site_conf(self) -> conf.SlurmConf | None:
        return conf.read(self.conf_path, skip=self.own_conf)

    def _steps(self) -> list[Step]:
        return self._file_steps() + self._record_steps()

    def _file_steps(self) -> list[Step]:
        steps = [self.files.step(path, data, mode) for path, (data, mode) in self.hook_texts().items()]
        steps.append(self._spank())
        steps.append(self.files.step(self.fragment, self._fragment_text(), 0o644))
        steps.append(self._plugstack())
        steps.extend(self._slurm_conf())
        if self.is_controller():
            steps.append(self._job_submit())
        if self._launches():
            steps.append(accounts.step(self._settings.daemon, rights.commands(self._slurm), self.files))
        return steps

    def _record_steps(self) -> list[Step]:
        if not self.is_controller():
            return []
        if self._included() and not self.own_conf.exists():
            return self.records.unasked(f"Slurm's commands fail until {self.own_conf} is there")
        return self.records.steps()

    def _launches(self) -> bool:
        """Whether a launcher starts Slurm's commands on this host: the controller's, or the daemon's own."""
        daemon = self._settings.daemon
        return bool(daemon.launcher) and (self.is_controller() or daemon.launcher_config.exists())

    def _included(self) -> bool:
        site = self.site_conf()
        return site is not None and self.own_conf in site.included

    def _undo_steps(self) -> list[Step]:
        steps = self.records.removals() + self.files.removals()
        site = self.site_conf()
        named = [key for key, value in site.pairs if str(self.hooks) in value] if site else []
        if not self._included() and not named:
            return steps
        detail = f"remove from it: include {self.own_conf}" if not named else f"remove its lines {', '.join(named)}"
        title = f"{self.conf_path} does without qtandem"
        manual = Step(
            Change(f"line:{self.conf_path}", title, ChangeState.MANUAL, f"{detail}\nthen: scontrol reconfigure")
        )
        return [manual, *(_blocked(step, f"{self.conf_path} still needs it") for step in steps)]

    def _fragment_text(self) -> bytes:
        return f"{HEAD}optional {self.hooks}/spank_qpu.so\n".encode()

    def _spank(self) -> Step:
        source = SOURCE / "spank" / "spank_qpu.c"
        target, note = self.hooks / "spank_qpu.so", self.hooks / "spank_qpu.built"
        identity, title = f"build:{target}", f"build {target} (the option --qpu)"
        headers = next((place for place in HEADERS if (place / "slurm/spank.h").exists()), None)
        of_source = f"source {digest(source)}\n"
        stamp = of_source + (f"headers {digest(headers / 'slurm/slurm_version.h')}\n" if headers else "")
        if self.files.owns(target) and note.exists() and note.read_text().startswith(stamp):
            return Step(Change(identity, title, ChangeState.DONE))
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or headers is None:
            here = f"The file that is there is used as it is.\n{NO_COMPILER}" if target.exists() else NO_COMPILER
            return Step(Change(identity, title, ChangeState.BLOCKED, here, optional=target.exists()))

        def build() -> None:
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch) / "spank_qpu.so"
                argv = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(made), str(source)]
                commands.run_sync(argv, timeout_s=BUILD_S)
                self.files.write(target, made.read_bytes(), 0o755)
            self.files.write(note, stamp.encode(), 0o644)

        return Step(Change(identity, title, ChangeState.TODO), build)

    def _plugstack(self) -> Step:
        real = self.plugstack
        line = f"include {self.fragment.parent}/*.conf"
        identity = f"line:{self.plugstack}"
        if not real.exists() or self.files.owns(real):
            return self.files.step(self.plugstack, f"{line}\n".encode(), 0o644)
        title = f"{self.plugstack} includes {self.fragment}"
        if conf.includes_plugstack(real.read_text(errors="replace"), self.fragment):
            return Step(Change(identity, title, ChangeState.DONE))
        return Step(Change(identity, title, ChangeState.MANUAL, f"add the line: {line}"))

    def _slurm_conf(self) -> Iterable[Step]:
        site = self.site_conf()
        text = HEAD + "".join(f"{line}\n" for line in conf.own_lines(site, self.hooks))
        yield self.files.step(self.own_conf, text.encode(), 0o644)
        title, identity = f"{self.conf_path} includes {self.own_conf}", f"line:{self.conf_path}"
        if site is None:
            title = f"no {self.conf_path} here: it comes from the controller (if not: options.conf says where it is)"
            yield Step(Change(identity, title, ChangeState.DONE))
            return
        if self.own_conf in site.included:
            yield Step(Change(identity, title, ChangeState.DONE))
        else:
            detail = f"add the line on all hosts, then: scontrol reconfigure\ninclude {self.own_conf}"
            yield Step(Change(identity, title, ChangeState.MANUAL, detail))
        for key, line in conf.site_lines(site, self.hooks):
            yield Step(Change(f"line:{key}", f"{key} of the site serves qtandem too", ChangeState.MANUAL, line))

    def _job_submit(self) -> Step:
        real = self.job_submit
        if not real.exists() or self.files.owns(real):
            text = (SOURCE / "hooks" / "job_submit.lua").read_text().replace(str(HOOKS), str(self.hooks))
            stamp = hashlib.sha256(b"".join(self._lua().values())).hexdigest()[:16]
            return self.files.step(self.job_submit, text.replace("qtandem:stamp", stamp).encode(), 0o644)
        identity, title = f"line:{self.job_submit}", f"{self.job_submit} calls {self.hooks}/qtandem.lua"
        if f"{self.hooks}/qtandem.lua" not in real.read_text(errors="replace"):
            return Step(Change(identity, title, ChangeState.MANUAL, "\n".join(conf.job_submit_lines(self.hooks))))
        if self.lua_is_stale():
            detail = f"when all else is made: touch {real}\nUntil then slurmctld goes on with the older qtandem.lua."
            return Step(Change(identity, title, ChangeState.MANUAL, detail))
        return Step(Change(identity, title, ChangeState.DONE))

    def lua_is_stale(self) -> bool:
        """Whether slurmctld may have read our Lua before it became what it is to be.

        It reads job_submit.lua again when that file changes (Slurm 24.11), and what that file includes with it.
        """
        read = self.job_submit.stat().st_mtime
        return any(
            not path.exists() or path.read_bytes() != data or path.stat().st_mtime > read
            for path, data in self._lua().items()
        )

    def _lua(self) -> dict[Path, bytes]:
        return {path: data for path, (data, _) in self.hook_texts().items() if path.suffix == ".lua"}

    def _constants(self) -> dict[str, str | int | float | Iterable[str]]:
        daemon, timing = self._settings.daemon, self._settings.timing
        return {
            "CLUSTER": self._slurm.cluster,
            "SERVER": self._slurm.server,
            "SOCKET": str(daemon.socket),
            "NAMES": str(daemon.runtime_dir / "names"),
            "RUNS": str(daemon.runtime_dir / "runs"),
            "HOOKS": str(self.hooks),
            "PYTHON": _python(),
            "SCONTROL": self._scontrol(),
            "SLURM_CONF": self._slurm.options.get("conf", ""),
            "DEADLINE_MS": round(timing.submit_ms),
            "TRUSTED_UIDS": trusted_uids(self._slurm.service_users),
            "CALL_S": 10,
            "DAEMON_DOWN_S": 10,
            "NO_REQUEUE_S": round(timing.no_requeue_wait_s),
            "TOTAL_S": round(2 * max(timing.no_requeue_wait_s, timing.releasing_wait_s)) + 60,
        }

    def _scontrol(self) -> str:
        if self._slurm.bin_dir:
            return str(Path(self._slurm.bin_dir) / "scontrol")
        return shutil.which("scontrol") or "scontrol"


def _blocked(step: Step, reason: str) -> Step:
    return Step(replace(step.change, state=ChangeState.BLOCKED, detail=reason))


def trusted_uids(users: Iterable[str]) -> list[str]:
    """Uids that may change a job's licences without a verdict: root, the manager's service users, the daemon's."""
    found = {0}
    for user in (*users, accounts.DAEMON, accounts.PUBLISHER):
        try:
            found.add(pwd.getpwnam(user).pw_uid)
        except KeyError:
            continue
    return [str(uid) for uid in sorted(found)]


def _python() -> str:
    """The system's interpreter: hooks must not depend on an environment of ours."""
    for path in ("/usr/bin/python3", "/usr/libexec/platform-python"):
        if Path(path).exists():
            return path
    return shutil.which("python3") or "/usr/bin/python3"

"""Installs Slurm's side on one host: hook files, the `--qpu` option, our lines for slurm.conf, licences.

Site files are never edited: what they need is shown. A manifest records what was done, so that it can be undone.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from qtandem.core import accounts, commands, installers
from qtandem.core.hosts import among
from qtandem.core.installing import Change, ChangeState, Step, blocked, digest
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.slurm import conf, rights
from qtandem.slurm.commands import Client
from qtandem.slurm.records import Records

SOURCE = Path(__file__).parent
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


class Installer(installers.Installer):
    """Slurm's installer on this host."""

    manager = "slurm"
    absent = "Add it, with slurm.conf's ClusterName."
    source = SOURCE / "hooks"
    hook_files = HOOK_FILES

    def __init__(self, settings: Settings, catalog: Catalog, *, host: str = "") -> None:
        super().__init__(settings, catalog, host=host)
        self.client = Client(self.section)
        self.records = Records(self.section, catalog, self.client, self.files, accounts.publisher(settings.daemon))
        options = self.section.options
        self.conf_path = Path(options.get("conf") or os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
        self.own_conf = self.conf_path.parent / "qtandem.conf"
        self.plugstack = self.conf_path.parent / "plugstack.conf"
        self.fragment = self.conf_path.parent / "plugstack.conf.d" / "qtandem.conf"
        self.job_submit = self.conf_path.parent / "job_submit.lua"

    def is_controller(self) -> bool:
        """Whether slurmctld runs on this host, by slurm.conf or by the configuration's control_hosts."""
        site = self.site_conf()
        known = [*(site.control_hosts() if site else ()), *self.section.control_hosts]
        return among(self.host, known)

    def site_conf(self) -> conf.SlurmConf | None:
        return conf.read(self.conf_path, skip=self.own_conf)

    def launched(self) -> accounts.Commands:
        return rights.commands(self.section)

    def _steps(self) -> Iterator[Step]:
        # Slurm's commands read slurm.conf, which may include a file that is written here.
        yield from self._file_steps()
        yield from self._record_steps()

    def _file_steps(self) -> list[Step]:
        steps = self._hook_file_steps()
        steps.append(self._spank())
        steps.append(self.files.step(self.fragment, self._fragment_text(), 0o644))
        steps.append(self._plugstack())
        steps.extend(self._slurm_conf())
        if self.is_controller():
            steps.append(self._job_submit())
        return steps + self._launcher_steps()

    def _record_steps(self) -> list[Step]:
        if not self.is_controller():
            return []
        if self._included() and not self.own_conf.exists():
            return self.records.unasked(f"Slurm's commands fail until {self.own_conf} is there")
        return self.records.steps()

    def _has_daemon(self) -> bool:
        """The controller has it, if nothing else is known."""
        return self.is_controller()

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
        return [manual, *blocked(steps, f"{self.conf_path} still needs it")]

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
            text = self._hook_text("job_submit.lua")
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
        return super()._constants() | {
            "SERVER": self.section.server,
            "SCONTROL": self._scontrol(),
            "SLURM_CONF": self.section.options.get("conf", ""),
            "TRUSTED_UIDS": trusted_uids(self.section.service_users),
            "DAEMON_DOWN_S": 10,
            "NO_REQUEUE_S": round(self.settings.timing.no_requeue_wait_s),
        }

    def _scontrol(self) -> str:
        if self.section.bin_dir:
            return str(Path(self.section.bin_dir) / "scontrol")
        return shutil.which("scontrol") or "scontrol"


def trusted_uids(users: Iterable[str]) -> list[str]:
    """Uids that may change a job's licences without a verdict: root, the manager's service users, the daemon's."""
    found = {0}
    for user in (*users, accounts.DAEMON, accounts.PUBLISHER):
        try:
            found.add(pwd.getpwnam(user).pw_uid)
        except KeyError:
            continue
    return [str(uid) for uid in sorted(found)]

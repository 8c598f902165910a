"""Is Slurm's side of qtandem as it must be on this host? Reads and asks only."""

from __future__ import annotations

import asyncio
import difflib
import glob
from collections.abc import Iterator
from pathlib import Path

from qtandem.core import doctoring
from qtandem.core.installing import Check, digest
from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import Settings
from qtandem.slurm import conf, control, licences
from qtandem.slurm.install import Installer

OLDEST = (24, 11, 0)


def check(settings: Settings, catalog: Catalog) -> list[Check]:
    """All checks for this host, in the order in which an admin would mend them."""
    return _Doctor(Installer(settings, catalog)).checks()


class _Doctor(doctoring.Doctor[Installer]):
    def questions(self) -> list[doctoring.Question]:
        everywhere = [self._version, self._hooks, self._option, self._daemon]
        if not self._installer.is_controller():
            return everywhere
        here = [self._lua, self._controller, self._reach, self._accounting, self._licences, self._users]
        return [*everywhere, *here]

    def _version(self) -> Iterator[Check]:
        text = self._client.run_sync("scontrol", "--version").stdout.strip()
        found = conf.version(text)
        if found is None or found < OLDEST:
            yield Check("version", False, f"{text}; 24.11 is the oldest that is known to work", "Upgrade Slurm.")
        elif conf.loses_licences_on_requeue(found):
            detail = f"{text}: a requeued job loses its licences, and so runs without its QPU"
            yield Check("version", False, detail, "Upgrade Slurm to 25.11.7 or later.")
        else:
            yield Check("version", True, text)

    def _option(self) -> Iterator[Check]:
        shown = "--qpu" in self._client.run_sync("srun", "--help").stdout
        library = self._installer.hooks / "spank_qpu.so"
        detail = "sbatch, salloc and srun take --qpu here" if shown else "the option --qpu is not there on this host"
        look = f"see that {self._installer.plugstack} includes plugstack.conf.d/*.conf"
        fix = "" if shown else f"{self._install}; then {look}"
        yield Check("option --qpu", shown, detail, fix)
        fault = doctoring.file_fault(library, digest(library) or "", 0o755)
        yield Check("plug-in file", not fault, fault or str(library), self._install if fault else "")

    def _lua(self) -> Iterator[Check]:
        places = [
            f"{root}/lua/5.*/socket/unix.so" for root in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/*")
        ]
        found = sorted(name for place in places for name in glob.glob(place))
        fix = "" if found else "Install LuaSocket for the Lua that Slurm uses (Debian: lua-socket)."
        yield Check("LuaSocket", bool(found), found[0] if found else "socket/unix.so is not there", fix)
        script, wanted = self._installer.job_submit, f"{self._installer.hooks}/qtandem.lua"
        calls = conf.calls(script, wanted)
        fix = "" if calls else f"{self._install} shows the lines to add"
        if calls and self._installer.lua_is_stale():
            detail = f"slurmctld may still use an older {wanted}: {script} has not changed since"
            yield Check("job_submit.lua", False, detail, f"{self._install}; then: touch {script}")
            return
        yield Check("job_submit.lua", calls, f"{script} {'calls' if calls else 'does not call'} {wanted}", fix)

    def _controller(self) -> Iterator[Check]:
        shown = conf.show_config(self._client.run_sync("scontrol", "show", "config").stdout)
        hooks = self._installer.hooks
        cluster = shown.get("ClusterName", "")
        fix = "" if cluster == self._section.cluster else f'Set cluster = "{cluster}" in [managers.slurm].'
        yield Check("cluster", cluster == self._section.cluster, f"Slurm calls itself {cluster!r}", fix)
        include = f"Add to {self._installer.conf_path}: include {self._installer.own_conf}"
        for key, word in (
            ("JobSubmitPlugins", "lua"),
            ("EpilogSlurmctld", f"{hooks}/epilog_slurmctld"),
            ("Prolog", f"{hooks}/prolog"),
            ("Epilog", f"{hooks}/epilog"),
        ):
            ok = word in _parts(shown.get(key, ""))
            yield Check(key, ok, f"{key}={shown.get(key, '')}", "" if ok else include)
        prologs = [path for path in _parts(shown.get("PrologSlurmctld", "")) if path]
        ok = conf.waits_for(prologs, f"{hooks}/prolog_slurmctld")
        fix = "" if ok else conf.chained(prologs, hooks) if prologs else include
        yield Check("PrologSlurmctld", ok, f"PrologSlurmctld={','.join(prologs)}", fix)
        task = shown.get("TaskProlog", "")
        ok = bool(task) and conf.calls(Path(task), f"{hooks}/task_prolog")
        yield Check(
            "TaskProlog", ok, f"TaskProlog={task}", "" if ok else f"{include}, or call {hooks}/task_prolog in it"
        )
        flags = shown.get("PrologFlags", "")
        ok = any(flag.lower() in ("alloc", "contain", "x11", "runinjob") for flag in _parts(flags))
        yield Check("PrologFlags", ok, f"PrologFlags={flags}", "" if ok else include)
        storage = shown.get("AccountingStorageType", "")
        ok = storage.endswith("slurmdbd")
        fix = (
            ""
            if ok
            else "QPUs are licences of the accounting database: AccountingStorageType=accounting_storage/slurmdbd"
        )
        yield Check("AccountingStorageType", ok, storage or "none", fix)

    def _reach(self) -> Iterator[Check]:
        """Are the partitions and nodes of `reachable_from` Slurm's?"""
        used, lack = asyncio.run(control.choose(self._section))
        yield Check("pyslurm", None if lack else True, f"{lack}; scontrol --json does its part" if lack else "it fits")
        nodes = asyncio.run(used.nodes())
        partitions = {name for node in nodes.values() for name in node.partitions}
        for resource in self._catalog.resources.values():
            yield from _reached(resource, "partitions", resource.reach.partitions, partitions)
            yield from _reached(resource, "nodes", resource.reach.nodes, set(nodes))

    def _accounting(self) -> Iterator[Check]:
        user = self._installer.records.user
        level = self._installer.records.admin_level()
        if level is None:
            yield Check("right to set licences", None, f"there is no user {user} on this host")
            return
        ok = level.startswith(("operator", "admin"))
        fix = "" if ok else f"{self._install}, or: sacctmgr modify user {user} set adminlevel=operator"
        yield Check("right to set licences", ok, f"user {user} has adminlevel {level or 'none'}", fix)

    def _licences(self) -> Iterator[Check]:
        shown = licences.read_show(self._client.run_sync("scontrol", "-o", "show", "lic").stdout, self._section.server)
        for resource in self._catalog.resources.values():
            name = f"{resource.native}@{self._section.server}"
            licence = shown.get(resource.native)
            if licence is None or licence.total != resource.slots:
                detail = (
                    f"{name} has {licence.total} slots, not {resource.slots}" if licence else f"{name} is not there"
                )
                yield Check(f"licence {name}", False, detail, f"As root: {self._install}")
            else:
                yield Check(f"licence {name}", True, f"{licence.open} of {licence.total} open")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _reached(resource: Resource, kind: str, asked: frozenset[str], known: set[str]) -> Iterator[Check]:
    strange = sorted(asked - known)
    name = f"reach of {resource.name}"
    if strange:
        near = difflib.get_close_matches(strange[0], known, 1)
        fix = f"Mend reachable_from.{kind} of {resource.name}." + (f" Did you mean {near[0]}?" if near else "")
        yield Check(name, False, f"no {kind} of Slurm: {', '.join(strange)}", fix)
    elif asked:
        yield Check(name, True, f"{kind} {', '.join(sorted(asked))}")

"""Is PBS's side of qtandem as it must be on this host? Reads and asks only."""

from __future__ import annotations

from collections.abc import Iterator

from qtandem.core import doctoring
from qtandem.core.installing import Check
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.pbs import ifl, records, site
from qtandem.pbs.install import PBS_HOOKS, TEXTS, Installer
from qtandem.pbs.port import FLAGS


def check(settings: Settings, catalog: Catalog) -> list[Check]:
    """All checks for this host, in the order in which an admin would mend them."""
    return _Doctor(Installer(settings, catalog)).checks()


class _Doctor(doctoring.Doctor[Installer]):
    def questions(self) -> list[doctoring.Question]:
        mine = [self._users] if self._installer.launches() else []
        if not self._installer.is_server():
            return [self._daemon, *mine]
        asked = [self._library, self._files, self._hooks, self._resources, self._counts, self._scheduler]
        return [self._server, self._daemon, *mine, *asked]

    def _server(self) -> Iterator[Check]:
        version = self._installer.server_attribute("pbs_version")
        yield Check("server", bool(version), f"PBS {version}" if version else "it tells no version")
        scheduling = self._installer.server_attribute("scheduling").lower() in ("true", "1")
        fix = "" if scheduling else "qmgr -c 'set server scheduling = true'"
        yield Check("scheduling", scheduling, "on" if scheduling else "off: no job starts", fix)
        have = site.words(self._installer.server_attribute("managers"))
        missing = [who for who in self._installer.managers() if who not in have]
        detail = (
            f"not managers: {', '.join(missing)}" if missing else f"managers: {', '.join(self._installer.managers())}"
        )
        yield Check("right to set resources", not missing, detail, self._install if missing else "")

    def _library(self) -> Iterator[Check]:
        options = self._section.options
        if options.get("access") == "commands":
            yield Check("libpbs", None, "the configuration says to use the commands")
            return
        path = ifl.find(options.get("exec", ""))
        try:
            said = f"{path} is used" if path and ifl.Library(path) else "not there: the commands are used"
            yield Check("libpbs", True if path else None, said)
        except OSError as error:
            yield Check("libpbs", False, str(error), 'Set options.access = "commands" in [managers.pbs].')

    def _files(self) -> Iterator[Check]:
        yield from doctoring.files(self._installer.hook_texts(), "file", self._install)

    def _hooks(self) -> Iterator[Check]:
        have = self._installer.pbs_hooks()
        for hook in PBS_HOOKS:
            fault = self._installer.hook_fault(hook, have.get(hook.name))
            yield Check(f"hook {hook.name}", not fault, fault or "as installed", self._install if fault else "")
            events = site.words(have.get(hook.name, {}).get("event", ""))
            missing = [event for event in hook.later if events and event not in events]
            if missing:
                yield Check(f"events of {hook.name}", None, f"this PBS has no {', '.join(missing)}")
        others = [name for name in have if name not in {hook.name for hook in PBS_HOOKS}]
        for name in others:
            order = have[name].get("order", "")
            if order.isdigit() and int(order) > 900:
                detail = (
                    f"the site's hook {name} comes after ours (order {order}); what it refuses we have reserved for"
                )
                yield Check(f"order of {name}", None, detail)

    def _resources(self) -> Iterator[Check]:
        known = self._installer.resources()
        for name in TEXTS:
            ok = name in known
            yield Check(f"resource {name}", ok, "is there" if ok else "is not there", "" if ok else self._install)
        for one in self._catalog.resources.values():
            name = records.resource(one.native)
            shown = known.get(name)
            flags, kind = (shown.get("flag", ""), shown.get("type", "")) if shown else ("", "")
            # qmgr shows a type by name or by number.
            ok = shown is not None and set(FLAGS) <= set(flags) and kind in ("long", "2", "")
            detail = f"type {kind}, flag {flags}" if shown is not None else "is not there"
            yield Check(f"resource {name}", ok, detail, "" if ok else self._install)

    def _counts(self) -> Iterator[Check]:
        """What PBS takes for used though no job has it, it does not give to any."""
        server = self._installer.server()
        for name in self._installer.natives():
            used = server.get(f"resources_assigned.{name}")
            if used not in ("", "0") and not self._installer.with_qpu(name, "BERSTU"):
                detail = f"PBS counts {used} as used, and no job runs with it: a reservation, or a job that it has lost"
                yield Check(f"count of {name}", None, f"{detail} (pbs/README.md)")

    def _scheduler(self) -> Iterator[Check]:
        path = self._installer.sched_config
        try:
            text = path.read_text(errors="replace")
        except OSError:
            yield Check("sched_config", None, f"{path} cannot be read here")
            return
        missing = [name for name in self._installer.natives() if name not in site.scheduled(text)]
        detail = f"it does not look at {', '.join(missing)}" if missing else "the scheduler looks at all QPUs"
        fix = f"have in {path}: {site.scheduled_line(text, missing)}; then HUP pbs_sched" if missing else ""
        yield Check("sched_config", not missing, detail, fix)

"""Is Grid Engine's side of qtandem as it must be on this host? Reads and asks only."""

from __future__ import annotations

from collections.abc import Iterator

from qtandem.core import doctoring
from qtandem.core.installing import ChangeState, Check
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.gridengine import complexes
from qtandem.gridengine.install import Installer
from qtandem.gridengine.records import parsed


def check(settings: Settings, catalog: Catalog) -> list[Check]:
    """All checks for this host, in the order in which an admin would mend them."""
    return _Doctor(Installer(settings, catalog)).checks()


class _Doctor(doctoring.Doctor[Installer]):
    def questions(self) -> list[doctoring.Question]:
        here = [self._version, self._hooks, self._daemon]
        if self._installer.launches():
            here.append(self._users)
        return [*here, self._cell, self._jsv, self._sensors] if self._installer.is_master() else here

    def _version(self) -> Iterator[Check]:
        text = self._client.run_sync("qconf", "-help").stdout.splitlines()
        yield Check("version", bool(text), text[0].strip() if text else "qconf says nothing", "Install the client.")

    def _cell(self) -> Iterator[Check]:
        """What the installer would still do, as faults."""
        for change in self._installer.changes():
            if change.id.startswith("file:"):
                continue
            ok = change.state is ChangeState.DONE
            detail = "" if ok else change.detail
            yield Check(change.title, ok, detail, "" if ok else self._install)

    def _jsv(self) -> Iterator[Check]:
        shown = complexes.attributes(self._client.run_sync("qconf", "-sconf").stdout)
        letters = {letter.strip() for letter in shown.get("jsv_allowed_mod", "").split(",")}
        open_ones = sorted(letters & {"l", "l_hard", "v", "V", "q", "jsv"})
        detail = (
            f"qalter may change {', '.join(open_ones)} of a job, which no JSV sees" if open_ones else "closed to -l"
        )
        yield Check("jsv_allowed_mod", not open_ones, detail, "Take them out of jsv_allowed_mod." if open_ones else "")

    def _sensors(self) -> Iterator[Check]:
        names = [complexes.name(one.native) for one in self._catalog.resources.values()]
        if not names:
            return
        root = parsed(self._client.run_sync("qhost", "-F", ",".join(names), "-xml").stdout)
        shown = {value.get("name") for value in root.iterfind("host[@name='global']/resourcevalue")}
        missing = sorted(set(names) - shown)
        detail = f"not published: {', '.join(missing)}" if missing else f"{len(names)} QPUs are published"
        yield Check("capacities", not missing, detail, "See `qtandem resources` and qtandemd's log." if missing else "")
        interval = complexes.attributes(self._client.run_sync("qconf", "-sconf").stdout).get("load_report_time", "")
        yield Check("load_report_time", None, f"{interval}: hosts close within two of these when the daemon is gone")

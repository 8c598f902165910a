"""Is LSF's side of qtandem as it must be on this host? Reads and asks only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qtandem.core import doctoring
from qtandem.core.installing import ChangeState, Check
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.lsf import records
from qtandem.lsf.install import Installer

# What pre_exec ends with when a job has to wait.
AGAIN = 75


def check(settings: Settings, catalog: Catalog) -> list[Check]:
    """All checks for this host, in the order in which an admin would mend them."""
    return _Doctor(Installer(settings, catalog)).checks()


class _Doctor(doctoring.Doctor[Installer]):
    def questions(self) -> list[doctoring.Question]:
        everywhere = [self._version, self._hooks, self._daemon]
        if not self._installer.is_master():
            return everywhere
        return [*everywhere, self._users, self._files_of_lsf, self._indices, self._parameters]

    def _version(self) -> Iterator[Check]:
        said = self._client.run_sync("lsid").stdout.strip().splitlines()
        cluster = next((line.rpartition(" ")[2] for line in said if "My cluster name is" in line), "")
        yield Check("version", bool(said), said[0] if said else "lsid says nothing", "" if said else "Start LIM.")
        own = self._section.options.get("lsf_cluster") or self._section.cluster
        if cluster:
            detail = f"LSF calls it {cluster}" if cluster != own else cluster
            yield Check(
                "cluster", cluster == own, detail, "" if cluster == own else f'options.lsf_cluster = "{cluster}"'
            )

    def _hooks(self) -> Iterator[Check]:
        yield from super()._hooks()
        yield from doctoring.files(self._installer.server_texts(), "in LSF_SERVERDIR:", self._install)

    def _files_of_lsf(self) -> Iterator[Check]:
        """What the installer would still show, as faults."""
        for change in self._installer.site_changes():
            ok = change.state is ChangeState.DONE
            yield Check(change.title, ok or (None if change.optional else False), "" if ok else change.detail)

    def _indices(self) -> Iterator[Check]:
        natives = [one.native for one in self._catalog.resources.values()]
        if not natives:
            return
        shown = records.shared_values(self._client.run_sync("lsload", "-s").stdout, natives)
        missing = sorted(set(natives) - set(shown))
        detail = f"LIM has no value for {', '.join(missing)}" if missing else f"LIM has values for {len(shown)} QPUs"
        fix = "Does elim.qpu run on the master? LIM's log says why not." if missing else ""
        yield Check("indices", not missing, detail, fix)

    def _parameters(self) -> Iterator[Check]:
        """Settings of LSF that would make of a refused start more than a job that waits."""
        said = self._client.run_sync("bparams", "-a", check=False).stdout
        told = {key: value.split()[0] for key, value in re.findall(r"^\s*([A-Z_]+) = (\S.*)$", said, re.MULTILINE)}
        open_to_users = told.get("ENABLE_USER_RESUME", "").upper().startswith("Y")
        detail = "users can resume jobs that we stopped" if open_to_users else "only administrators resume what we stop"
        fix = "Set ENABLE_USER_RESUME = N in lsb.params." if open_to_users else ""
        yield Check("ENABLE_USER_RESUME", not open_to_users, detail, fix)
        refusals = self._settings.timing.refusals
        for key in ("LOCAL_MAX_PREEXEC_RETRY", "MAX_PREEXEC_RETRY"):
            count = told.get(key, "")
            if count.isdigit():
                ok = int(count) > refusals
                detail = (
                    f"{count}: after so many refused starts LSF itself stops the job; qtandem does after {refusals}"
                )
                yield Check(key, ok, detail, "" if ok else f"Have more than {refusals} in lsb.params.")
        excluded = " ".join(re.findall(r"PREEXEC_EXCLUDE_HOST_EXIT_VALUES = (.*)", said)).split()
        hit = str(AGAIN) in excluded or ("all" in excluded and f"~{AGAIN}" not in excluded)
        detail = f"a host that refused a job once is never tried again for it ({' '.join(excluded)})"
        fix = f"Take {AGAIN} out: all ~{AGAIN}"
        yield Check("PREEXEC_EXCLUDE_HOST_EXIT_VALUES", not hit, detail if hit else f"not {AGAIN}", fix if hit else "")

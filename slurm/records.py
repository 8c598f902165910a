"""What Slurm's accounting database must hold: a licence for each resource, and the right to set them."""

from __future__ import annotations

import pwd
from collections.abc import Mapping

from qtandem.core.errors import QtandemError
from qtandem.core.installing import Change, ChangeState, HostFiles, Step
from qtandem.core.resources import Catalog
from qtandem.slurm import licences
from qtandem.slurm.commands import Client, SlurmSettings

ASK_AGAIN = (
    "Install again when it does. QPUs are licences of its database: slurm.conf needs "
    "AccountingStorageType=accounting_storage/slurmdbd"
)


class Records:
    """Installs and removes records in slurmdbd; those that were made are noted in the host's manifest.

    `user` is who runs Slurm's commands for the daemon.
    """

    def __init__(self, settings: SlurmSettings, catalog: Catalog, client: Client, files: HostFiles, user: str) -> None:
        self._server, self._cluster = settings.server, settings.cluster
        self._catalog, self._client, self._files = catalog, client, files
        self.user = user
        self._may = f"user {user} may set licences and hold jobs (adminlevel operator)"

    def steps(self) -> list[Step]:
        title = f"licences of server {self._server} in slurmdbd"
        try:
            return [self._licences(title), *self._operator()]
        except QtandemError as error:
            detail = f"slurmdbd does not answer: {error.said()}\n{ASK_AGAIN}"
            return [Step(Change("licences", title, ChangeState.BLOCKED, detail, optional=True))]

    def unasked(self, reason: str) -> list[Step]:
        """The steps while slurmdbd cannot be asked for a reason that goes away by itself."""
        titles = {"licences": f"licences of server {self._server} in slurmdbd", "operator": self._may}
        return [Step(Change(key, title, ChangeState.BLOCKED, reason, optional=True)) for key, title in titles.items()]

    def removals(self) -> list[Step]:
        return [self._removal(record) for record in self._files.manifest.records]

    def missing(self) -> dict[str, int]:
        """Natives without a licence for this cluster, with their slots. Raises what `Client.run` does."""
        listed = self._client.run_sync(
            "sacctmgr", "-nP", "show", "resource", "withclusters", "format=name,server,cluster"
        )
        present = {tuple(line.split("|")[:3]) for line in listed.stdout.splitlines()}
        return {
            resource.native: resource.slots
            for resource in self._catalog.resources.values()
            if (resource.native, self._server, self._cluster) not in present
        }

    def admin_level(self) -> str | None:
        """That user's admin level in lower case, '' if Slurm does not know the user; None without such a user."""
        try:
            pwd.getpwnam(self.user)
        except KeyError:
            return None
        listed = self._client.run_sync(
            "sacctmgr", "-nP", "show", "user", "where", f"name={self.user}", "format=user,adminlevel"
        )
        return listed.stdout.strip().partition("|")[2].lower()

    def _licences(self, title: str) -> Step:
        missing = self.missing()
        if not missing:
            return Step(Change("licences", title, ChangeState.DONE))
        detail = ", ".join(f"{native}@{self._server}:{slots}" for native, slots in sorted(missing.items()))
        change = Change("licences", title, ChangeState.TODO, f"add, closed at first: {detail}")
        return Step(change, lambda: self._add(missing))

    def _add(self, missing: Mapping[str, int]) -> None:
        groups: dict[int, list[str]] = {}
        for native, slots in sorted(missing.items()):
            groups.setdefault(slots, []).append(native)
        for slots, names in groups.items():
            self._client.run_sync("sacctmgr", *licences.add(names, slots, 2 * slots, self._server, self._cluster))
            self._files.note(f"resource {native}@{self._server}" for native in names)

    def _operator(self) -> list[Step]:
        level = self.admin_level()
        if level is None:
            return []
        if level.startswith(("operator", "admin")):
            return [Step(Change("operator", self._may, ChangeState.DONE))]
        if level:
            detail = f"sacctmgr modify user {self.user} set adminlevel=operator"
            return [Step(Change("operator", self._may, ChangeState.MANUAL, detail))]
        return [Step(Change("operator", self._may, ChangeState.TODO), self._add_operator)]

    def _add_operator(self) -> None:
        cluster = f"cluster={self._cluster}"
        self._client.run_sync(
            "sacctmgr", "-i", "add", "user", self.user, "account=root", "adminlevel=operator", cluster
        )
        self._files.note([f"user {self.user}"])

    def _removal(self, record: str) -> Step:
        kind, _, name = record.partition(" ")

        def remove() -> None:
            if kind == "resource":
                native, _, server = name.rpartition("@")
                arguments = licences.remove([native], server)
            else:
                arguments = ["-iQ", "delete", "user", "where", f"name={name}", f"cluster={self._cluster}"]
            self._client.run_sync("sacctmgr", *arguments)
            self._files.forget(record)

        return Step(Change(f"record:{record}", f"delete {kind} {name} from slurmdbd", ChangeState.TODO), remove)

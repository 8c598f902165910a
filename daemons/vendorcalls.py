"""The daemon's calls to providers: which credential each of them goes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease
from qtandem.core.providers.worker import Sink
from qtandem.core.resources import Resource
from qtandem.daemons.looks import Looks
from qtandem.daemons.userkeys import UserKeys


class Pool(Protocol):
    """The part of `Workers` that is called."""

    async def call(
        self,
        resource: str,
        method: str,
        *args: object,
        purpose: Literal["observe", "execute"] = "observe",
        secrets: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> object: ...


class Leases(Protocol):
    """The part of the lease service that tells whose a lease is."""

    def lease(self, id: str) -> Lease | None: ...

    def leases(self) -> list[Lease]: ...


class Calls(Protocol):
    """The part of `VendorCalls` that polls and executes."""

    async def call(
        self,
        resource: str,
        method: str,
        *args: object,
        purpose: Literal["observe", "execute"] = "observe",
        uid: int | None = None,
        sink: Sink | None = None,
    ) -> object: ...


class VendorCalls:
    """Polls go with the site's credential, what executes for a uid with the one that its resource says.

    Meets the lease service's `Vendor`; `leases` is set once that is there, and `due`, which is told of a resource and
    its vendor's task that has ended as far as is known.
    """

    def __init__(self, pool: Pool, keys: UserKeys, resource: Callable[[str], Resource | None]) -> None:
        self._pool, self.keys, self._resource = pool, keys, resource
        self.leases: Leases | None = None
        self.due: Callable[[str, str], None] = lambda _resource, _task: None
        self._looks = Looks(self._statuses, lambda resource, task: self.due(resource, task))

    async def call(
        self,
        resource: str,
        method: str,
        *args: object,
        purpose: Literal["observe", "execute"] = "observe",
        uid: int | None = None,
        sink: Sink | None = None,
    ) -> object:
        """As `Workers.call`; `uid` is for whom it executes. Raises `no-credential` where that user has none."""
        secrets = self.secrets(resource, uid) if purpose == "execute" and uid is not None else None
        if method == "task_status" and purpose == "execute":
            return await self._looks.report(resource, str(args[0]), secrets)
        return await self._call(resource, method, args, purpose, secrets, sink)

    async def _statuses(
        self, resource: str, tasks: Sequence[str], others: Sequence[str], secrets: Mapping[str, str] | None
    ) -> object:
        return await self._call(resource, "task_statuses", (list(tasks), list(others)), "execute", secrets)

    async def _call(
        self,
        resource: str,
        method: str,
        args: tuple[object, ...],
        purpose: Literal["observe", "execute"],
        secrets: Mapping[str, str] | None,
        sink: Sink | None = None,
    ) -> object:
        return await self._pool.call(resource, method, *args, purpose=purpose, secrets=secrets, sink=sink)

    def secrets(self, resource: str, uid: int) -> Mapping[str, str] | None:
        """A user's own credential, None where the site's is used."""
        found = self._resource(resource)
        if found is not None and found.owner == "site":
            return None
        key = self.keys.find(uid, resource)
        if key is not None:
            return key.values
        if found is not None and found.owner == "user":
            raise QtandemError("no-credential", f"{resource} executes with your own key, and you have registered none")
        return None

    async def acquire(self, resource: str, key: str, slots: int) -> str:
        token = str(await self.call(resource, "acquire", key, slots, purpose="execute", uid=self._uid(key)))
        if self._anothers(key, token):
            raise QtandemError("not-available", f"{resource} gave the session of another lease", retry_after=1.0)
        return token

    async def release(self, resource: str, token: str) -> None:
        await self.call(resource, "release", token, purpose="execute", uid=self._holder(resource, token))

    async def find_session(self, resource: str, key: str) -> str | None:
        found = await self.call(resource, "find_session", key, purpose="execute", uid=self._uid(key))
        return None if found is None or self._anothers(key, str(found)) else str(found)

    def _anothers(self, lease: str, token: str) -> bool:
        """Whether another open lease has this session: a vendor without a mark of ours may take one for the other."""
        leases = self.leases.leases() if self.leases is not None else []
        return any(each.token == token and each.id != lease for each in leases)

    def _uid(self, lease: str) -> int | None:
        found = self.leases.lease(lease) if self.leases is not None else None
        return None if found is None else found.uid

    def _holder(self, resource: str, token: str) -> int | None:
        """A vendor without sessions has the lease's id for a token."""
        leases = self.leases.leases() if self.leases is not None else []
        held = (lease for lease in leases if lease.resource == resource and token in (lease.token, lease.id))
        return next((lease.uid for lease in held), None)

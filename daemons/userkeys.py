"""Vendors' keys that users registered for their own runs: sealed by the master key, used for nobody else.

Whose key a lease lives with must not change while it lives: the first registration and the removal of a key are
refused while its user has an open lease on the resource. A key in place of another, of the same account, is taken at
once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.files import disk
from qtandem.core.leases.cipher import Cipher
from qtandem.core.resources import Resource
from qtandem.daemons.logs import log, masker

LONGEST = 8192
_WHOSE = "The key's"


@dataclass(frozen=True, slots=True)
class UserKey:
    """One user's credential at one resource; `values` by the provider's keys."""

    uid: int
    resource: str
    added_at: float
    values: Mapping[str, str] = field(repr=False)


class UserKeys:
    """All of them in memory, each in a private file of the state directory. `open` first.

    `leased` tells whether a uid has an open lease on a resource.
    """

    def __init__(self, state_dir: Path, cipher: Cipher, leased: Callable[[int, str], bool]) -> None:
        self._folder, self._cipher, self._leased = state_dir / "credentials", cipher, leased
        self._keys: dict[tuple[int, str], UserKey] = {}

    def open(self) -> None:
        """Read what is there. A file that cannot be read costs that key, and its user is told to register again."""
        with disk(_WHOSE, "made"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._folder.iterdir()):
            if path.suffix:
                path.unlink(missing_ok=True)
                continue
            try:
                key = UserKey(**json.loads(self._cipher.unseal(path.read_bytes(), path.name)))
            except (QtandemError, OSError, ValueError, TypeError) as error:
                log("userkeys").error("registered key not read", file=path.name, why=type(error).__name__)
                continue
            self._take(key)

    def find(self, uid: int, resource: str) -> UserKey | None:
        return self._keys.get((uid, resource))

    def of(self, uid: int) -> list[UserKey]:
        return [key for key in self._keys.values() if key.uid == uid]

    def resources(self, uid: int) -> frozenset[str]:
        """The resources for which a user has registered a key."""
        return frozenset(resource for owner, resource in self._keys if owner == uid)

    async def add(self, uid: int, resource: Resource, values: Mapping[str, str], now: float) -> UserKey | None:
        """Register, and return what was there before. Raises `not-allowed`, `bad-request`, `in-use`."""
        key = UserKey(uid, resource.name, now, _checked(resource, values))
        name = _name(uid, resource.name)
        draft = self._folder / f"{name}.{secrets.token_hex(4)}"
        await asyncio.to_thread(_write, draft, self._cipher.seal(json.dumps(asdict(key)), name))
        # From here to the end nothing else runs: no lease can begin between the look and the change.
        before = self.find(uid, resource.name)
        with disk(_WHOSE, "written"):
            if before is None and self._leased(uid, resource.name):
                draft.unlink()
                raise _in_use(resource.name)
            draft.replace(self._folder / name)
        self._take(key)
        return before

    def remove(self, uid: int, resource: str) -> UserKey:
        """Forget, and return what was there. Raises `no-credential`, `in-use`."""
        key = self.find(uid, resource)
        if key is None:
            raise QtandemError("no-credential", f"You have registered no key for {resource[:64]}")
        if self._leased(uid, resource):
            raise _in_use(resource)
        with disk(_WHOSE, "removed"):
            (self._folder / _name(uid, resource)).unlink(missing_ok=True)
        del self._keys[uid, resource]
        return key

    def _take(self, key: UserKey) -> None:
        masker.know_of((key.uid, key.resource), key.values.values())
        self._keys[key.uid, key.resource] = key


def _checked(resource: Resource, values: Mapping[str, str]) -> dict[str, str]:
    wanted = resource.registered_keys()
    if not wanted:
        raise QtandemError(
            "not-allowed",
            f"{resource.name} takes no keys of users: the site's own is used",
            remedy="You need none: submit your job.",
        )
    if set(values) != set(wanted):
        raise QtandemError("bad-request", f"{resource.name} needs {', '.join(wanted)}: all of them and nothing else")
    out = {name: value.strip() for name, value in values.items()}
    for name, value in out.items():
        if not value or len(value) > LONGEST or not value.isprintable():
            raise QtandemError("bad-request", f"The value of {name} is not one line of 1 to {LONGEST} characters")
    return out


def _name(uid: int, resource: str) -> str:
    return f"{uid}-{hashlib.sha256(resource.encode()).hexdigest()[:32]}"


def _write(path: Path, data: bytes) -> None:
    with disk(_WHOSE, "written"):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _in_use(resource: str) -> QtandemError:
    return QtandemError("in-use", f"You have an open lease on {resource}, which lives with the key that it began with")

"""User names of uids, looked up off the event loop: a directory service may be slow."""

from __future__ import annotations

import asyncio
import pwd
import time

KEEP_S = 600.0
_known: dict[int, tuple[float, str]] = {}


async def user_name(uid: int) -> str:
    """The user's name, or the uid as text where it has none."""
    known = _known.get(uid)
    if known is not None and time.monotonic() < known[0]:
        return known[1]
    name = await asyncio.to_thread(_look_up, uid)
    if len(_known) > 10_000:
        _known.clear()
    _known[uid] = (time.monotonic() + KEEP_S, name)
    return name


def _look_up(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

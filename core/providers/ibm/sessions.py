"""Finding our own sessions again.

IBM's sessions carry no tag and no name. What their maker chooses, and what IBM tells again, is the longest life in
seconds (`max_ttl`): the lease's key decides by how much less than the site's limit it is, at most an eighth. A
session is ours when it was made with our credential, is open, has our mode and has this very life.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from qtandem.core.providers.ibm.settings import BATCH

_SHARE = 8
_MOST_SPREAD_S = 3600
_PAGE = 50
_MOST_PAGES = 20


def life_s(key: str, limit_s: int) -> int:
    """The life of the session for a key: the same for the same key, from 7/8 of the limit up to it."""
    spread = min(max(limit_s // _SHARE, 1), _MOST_SPREAD_S)
    return limit_s - int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % spread


def is_open(session: Mapping[str, Any]) -> bool:
    """Whether it takes jobs; what the vendor does not say counts as yes."""
    return session.get("state") != "closed" and session.get("accepting_jobs") is not False


def is_ours(session: Mapping[str, Any], mode: str, backend: str, life: int) -> bool:
    named = session.get("backend_name")
    return (
        is_open(session) and session.get("max_ttl") == life and session.get("mode") == mode and named in (None, backend)
    )


def listed(workloads: Callable[..., dict[str, Any]], mode: str, backend: str) -> Iterator[str]:
    """The ids of our credential's sessions that have not ended, newest first, over all pages of the listing."""
    query = {
        "user": "me",
        "sort": "-createdAt",
        "limit": _PAGE,
        "backend": backend,
        "status": ["pending", "in_progress"],
        "mode": BATCH if mode == BATCH else "session",
    }
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        answer = workloads(**query, next=cursor)
        rows = answer.get("workloads")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("id"), str) and row.get("accepting_jobs") is not False:
                yield row["id"]
        cursor = _next(answer)
        if cursor is None:
            return


def _next(answer: Mapping[str, Any]) -> str | None:
    link = answer.get("next")
    href = link.get("href") if isinstance(link, dict) else None
    if not isinstance(href, str):
        return None
    return next(iter(parse_qs(urlsplit(href).query).get("next", [])), None)

"""Structured logs: one JSON object a line on standard error, and never a secret in it."""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from qtandem.core.errors import QtandemError

MASK = "***"
# Shorter values would mask ordinary words ("main", "8080") all over the log.
MIN_SECRET = 6
_SENSITIVE = re.compile(r"(?i)(api_?key|secret|token|passw|credential|authorization|private_key|crn)")


class Masker:
    """A structlog processor that replaces every known secret, wherever it stands in an event.

    Also masks values under keys that are secret by their name, so that one we were never told of stays out.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._users: dict[object, deque[frozenset[str]]] = {}
        self._pattern: re.Pattern[str] | None = None

    def know(self, secrets: Iterable[str]) -> None:
        """Add secrets; those that were known stay known (an old key may still turn up in an error)."""
        fresh = {secret for secret in secrets if len(secret) >= MIN_SECRET} - self._known
        if fresh:
            self._known |= fresh
            self._compile()

    def know_of(self, owner: object, secrets: Iterable[str]) -> None:
        """Know what somebody registered, and what they had before it: more would let users fill our memory."""
        kept = self._users.setdefault(owner, deque(maxlen=2))
        mine = frozenset(secret for secret in secrets if len(secret) >= MIN_SECRET)
        if mine not in kept:
            kept.append(mine)
            self._compile()

    def _compile(self) -> None:
        every = self._known.union(*(secrets for kept in self._users.values() for secrets in kept))
        longest_first = sorted(every, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if every else None

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {key: MASK if _SENSITIVE.search(key) else self.clean(value) for key, value in event.items()}

    def clean(self, value: Any) -> Any:
        """The value without known secrets; containers are copied, other objects become text."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {
                str(key): MASK if _SENSITIVE.search(str(key)) else self.clean(inner) for key, inner in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self.clean(inner) for inner in value]
        text = str(value)
        return self._pattern.sub(MASK, text) if self._pattern else text


masker = Masker()


def setup(level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers to one stream as JSON lines."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        masker,
        structlog.processors.JSONRenderer(default=str),
    ]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=final))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("aiohttp.access", "alembic", "asyncio", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def log(room: str) -> Any:
    """The logger of one part of the daemon."""
    return structlog.stdlib.get_logger(f"qtandem.{room}")


def ended(command: str, error: QtandemError) -> int:
    """Say on standard error why one of our commands cannot go on; returns its exit status."""
    for line in error.lines():
        print(f"{command}: {line}", file=sys.stderr)
    return error.kind.exit_code

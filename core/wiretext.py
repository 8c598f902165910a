"""The plain-text form of calls and answers, so that Lua and shells need no JSON parser.

One `key=percent-encoded` a line, nested keys joined by dots.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from qtandem.core.errors import QtandemError

# What stands as it is in a value of the text form, besides letters, digits and `_.-~`.
TEXT_SAFE = "/:@,+"


def encode_text(values: Mapping[str, object]) -> str:
    """The text form of a (nested) mapping. None is left out, booleans are true/false, lists comma-joined."""
    lines: list[str] = []
    _flatten("", values, lines)
    return "".join(f"{line}\n" for line in lines)


def decode_text(text: str) -> dict[str, str]:
    """The flat mapping in a text body; raises `bad-request` for a malformed or repeated line."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or not key or key in out:
            raise QtandemError("bad-request", f"{line[:80]!r} is not a new key=value line")
        try:
            out[key] = unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise QtandemError("bad-request", f"The value of {key[:80]!r} is not UTF-8") from None
    return out


def _flatten(prefix: str, values: Mapping[str, object], lines: list[str]) -> None:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(f"{path}.", value, lines)
        elif value is not None:
            lines.append(f"{path}={quote(_plain(value), safe=TEXT_SAFE)}")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(_plain(part) for part in value)
    return str(value)

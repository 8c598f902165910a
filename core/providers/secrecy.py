"""Settings that may be secrets: told apart without being kept, and taken out of what is shown."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

_SECRET_KEY = re.compile(r"key|token|secret|passw|credential|auth|crn", re.IGNORECASE)
_ADDRESS_KEY = re.compile(r"endpoint|url$", re.IGNORECASE)


def redact(text: str, settings: Mapping[str, str]) -> str:
    """The text without any value of the settings that is, or may be, a secret."""
    for key, value in settings.items():
        if value and _may_be_secret(key, value):
            text = text.replace(value, "***")
    return text


def credential(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that say whose account is used, wherever that is asked."""
    return {key: value for key, value in settings.items() if _SECRET_KEY.search(key) and not _ADDRESS_KEY.search(key)}


def _may_be_secret(key: str, value: str) -> bool:
    if _SECRET_KEY.search(key):
        return True
    return len(value) >= 16 and not value.startswith("/") and ("://" not in value or "@" in value)


def digest(settings: Mapping[str, str]) -> str:
    """Tells settings apart without keeping a secret as a key."""
    return hashlib.sha256(json.dumps(sorted(settings.items())).encode()).hexdigest()

"""Parts of what a vendor said, as the type that they should have: what is absent or of another type is empty."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any


def object_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def median_of(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None

"""Counts out of a vendor's result text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from qtandem.core.client.errors import InvalidInputError


def counts(result: str) -> dict[str, int]:
    """Bit strings and how often each was measured, of a result with one set of counts.

    Reads the simulator's `{"counts": ...}`, `{"counter": ...}` and `measurement_counts` of others, and the samples
    of one register in IBM's plain form. Raises InvalidInputError where the result holds no counts.
    """
    try:
        document = json.loads(result)
    except ValueError as error:
        raise InvalidInputError("The result is not JSON") from error
    found = _counts(document)
    if found is None:
        raise InvalidInputError("The result holds no counts")
    return found


def _counts(document: Any) -> dict[str, int] | None:
    if isinstance(document, list):
        return _counts(document[0]) if len(document) == 1 else None
    if not isinstance(document, Mapping):
        return None
    for key in ("counts", "counter", "measurement_counts"):
        inner = document.get(key)
        if isinstance(inner, Mapping) and all(isinstance(value, int) for value in inner.values()):
            return {str(bits): int(number) for bits, number in inner.items()}
        if isinstance(inner, list):
            return _counts(inner)
    return _sampled(document.get("results"))


def _sampled(results: Any) -> dict[str, int] | None:
    """Counts of `[{"data": {REGISTER: {"samples": ["0x3", ...], "num_bits": 2}}}]`."""
    try:
        (result,) = results
        (register,) = result["data"].values()
        width, samples = int(register["num_bits"]), [int(sample, 16) for sample in register["samples"]]
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return dict(Counter(format(sample, f"0{width}b") for sample in samples))

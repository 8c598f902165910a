"""Host names written as `c[1-4,07],gpu7`, read with a bound: the text may be a user's own.

Libraries for node sets also run a site's commands for `@group`, and need minutes for some texts of a few kilobytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product

MOST = 100_000
_PARTS = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_PIECES = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expand(text: str, most: int = MOST) -> tuple[str, ...]:
    """The names in order, each once; raises ValueError for another form, and for more than `most` names."""
    names: dict[str, None] = {}
    left = most
    at = 0
    while at < len(text):
        part = _PARTS.match(text, at)
        if part is None or text[part.end() : part.end() + 1] not in ("", ","):
            raise ValueError(f"not a list of hosts at {text[at : at + 20]!r}")
        pieces = [_piece(ranges, plain) for ranges, plain in _PIECES.findall(part[0].strip())]
        left -= math.prod(map(len, pieces))
        if left < 0:
            raise ValueError(f"more than {most} hosts")
        names.update(dict.fromkeys("".join(name) for name in product(*pieces)))
        at = part.end() + 1
    return tuple(names)


class _Numbers:
    """The numbers of one pair of brackets, with their leading zeros."""

    def __init__(self, text: str) -> None:
        self._ranges: list[tuple[int, int, int]] = []
        for one in text.split(","):
            match = _RANGE.fullmatch(one.strip())
            if match is None or int(match[2] or match[1]) < int(match[1]):
                raise ValueError(f"{one[:20]!r} is not a range")
            self._ranges.append((int(match[1]), int(match[2] or match[1]), len(match[1])))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last, _ in self._ranges)

    def __iter__(self) -> Iterator[str]:
        for first, last, width in self._ranges:
            yield from (f"{number:0{width}d}" for number in range(first, last + 1))


def _piece(ranges: str, plain: str) -> _Numbers | tuple[str]:
    return (plain,) if plain else _Numbers(ranges)

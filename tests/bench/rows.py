"""What a bench reports: rows with a bound, and the peer that was measured in the same run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One measured figure.

    `bound` is read with `sense`: the figure must be at most (or at least) it. `of` says which figure: the
    `value`, or the `ratio` to the peer. A missed `required` row fails the run; a missed `target` row is shown.
    """

    name: str
    value: float
    unit: str
    bound: float | None = None
    sense: Literal["most", "least"] = "most"
    of: Literal["value", "ratio"] = "value"
    kind: Literal["required", "target", "info"] = "info"
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None

    @property
    def holds(self) -> bool | None:
        """None where there is no bound."""
        figure = self.value if self.of == "value" else self.ratio
        if self.bound is None or figure is None:
            return None
        return figure <= self.bound if self.sense == "most" else figure >= self.bound

"""What an engine answers: who runs where, how good that is, and how good it could be at best."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a workload is not admitted: a constraint, and the smallest set of workloads or nodes found with it."""

    workload: str
    constraint: str
    involved: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a solve: how long it took, and incumbent and bound after it."""

    name: str
    seconds: float
    cost: int | None
    bound: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known after so many seconds; one a change of incumbent or bound."""

    seconds: float
    admitted: int
    admission_bound: int
    cost: int
    cost_bound: int

    @property
    def admission_gap(self) -> float:
        return _gap(self.admission_bound, self.admitted, self.admission_bound)

    @property
    def gap(self) -> float:
        """The admission gap while there is one, else the gap on cost."""
        return self.admission_gap or _gap(self.cost, self.cost_bound, self.cost)


@dataclass(frozen=True)
class Plan:
    """A placement with its certificate.

    `placement` maps workload to node, `backends` quantum workload to backend; who is in neither is rejected.
    `admitted` and `admission_bound` are sums of pi_i. `cost` is everything else of the objective, and
    `cost_bound` a proven lower bound on it over all plans that admit as much. `proven`: both gaps are zero.
    """

    engine: str
    objective: str
    placement: dict[str, str]
    backends: dict[str, str]
    admitted: int
    admission_bound: int
    cost: int
    cost_bound: int
    seconds: float
    first_s: float | None = None
    moved: int = 0
    phases: tuple[Phase, ...] = ()
    history: tuple[Moment, ...] = ()
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def admission_gap(self) -> float:
        return _gap(self.admission_bound, self.admitted, self.admission_bound)

    @property
    def cost_gap(self) -> float:
        return _gap(self.cost, self.cost_bound, self.cost)

    @property
    def gap(self) -> float:
        """The admission gap while there is one, else the gap on cost."""
        return self.admission_gap or self.cost_gap

    @property
    def proven(self) -> bool:
        return self.admitted >= self.admission_bound and self.cost <= self.cost_bound

    def proven_at(self) -> float | None:
        """When the proof was there."""
        return self.history[-1].seconds if self.proven and self.history else None


def _gap(high: int, low: int, whole: int) -> float:
    return max(0.0, (high - low) / whole) if whole > 0 else 0.0

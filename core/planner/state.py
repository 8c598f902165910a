"""An assignment in the making, and how it becomes a plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from qtandem.core.planner.deadline import Deadline
from qtandem.core.planner.plan import Cause, Moment, Phase, Plan
from qtandem.core.planner.problem import Ints, Problem


@dataclass
class Search:
    """The incumbent and the bounds of one solve, and the time line of its phases."""

    problem: Problem
    deadline: Deadline
    engine: str
    assign: Ints = field(init=False)
    backend: Ints = field(init=False)
    admission_bound: int = field(init=False)
    cost_bound: int = 0
    first_s: float | None = None
    phases: list[Phase] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.problem.demand)
        self.assign = np.full(count, -1, dtype=np.int64)
        self.backend = np.full(count, -1, dtype=np.int64)
        self.admission_bound = self.problem.total_priority
        self.history: list[Moment] = []
        self._value: tuple[int, int] | None = None

    @property
    def admitted(self) -> int:
        return -1 if self._value is None else -self._value[0]

    @property
    def cost(self) -> int | None:
        return None if self._value is None else self._value[1]

    @property
    def complete(self) -> bool:
        return self.admitted == self.problem.total_priority

    @property
    def proven(self) -> bool:
        return self._value is not None and self.admitted >= self.admission_bound and self._value[1] <= self.cost_bound

    def offer(self, assign: Ints, backend: Ints) -> bool:
        """Take this assignment if it is better; it must be feasible."""
        p = self.problem
        value = (-p.admitted(assign), p.cost(assign, backend))
        if self._value is not None and value >= self._value:
            return False
        if self.first_s is None or (value[0] == -p.total_priority and not self.complete):
            self.first_s = self.deadline.spent()
        self._value = value
        self.assign, self.backend = assign.copy(), backend.copy()
        self._note()
        return True

    def _note(self) -> None:
        if self._value is None:
            return
        bound = min(self._value[1], self.cost_bound)
        moment = Moment(self.deadline.spent(), self.admitted, self.admission_bound, self._value[1], bound)
        last = self.history[-1] if self.history else None
        if last is None or replace(moment, seconds=last.seconds) != last:
            self.history.append(moment)

    def inherit(self, other: Search, began: float, extra: int) -> None:
        """The time line of a search over a part of this one, where it is better; `extra` is what the rest costs."""
        for moment in other.history:
            value = (-moment.admitted, moment.cost + extra)
            if self._value is None or value < self._value:
                bound = moment.cost_bound + extra
                seconds = began + moment.seconds
                self.history.append(replace(moment, seconds=seconds, cost=moment.cost + extra, cost_bound=bound))
        if other.first_s is not None and other.admitted > self.admitted:
            self.first_s = began + other.first_s

    def raise_bound(self, cost: int) -> None:
        """A proven bound on cost, for plans that admit as much as the incumbent will."""
        if cost > self.cost_bound:
            self.cost_bound = cost
            self._note()

    def mark(self, name: str) -> None:
        self._note()
        self.phases.append(Phase(name, round(self.deadline.spent(), 4), self.cost, self.cost_bound))

    def plan(self) -> Plan:
        p, names = self.problem, self.problem.instance
        cost = self.cost or 0
        return Plan(
            engine=self.engine,
            objective=p.goal.name,
            placement={
                w.name: names.nodes[j].name for w, j in zip(names.workloads, self.assign, strict=True) if j >= 0
            },
            backends={
                w.name: names.backends[b].name for w, b in zip(names.workloads, self.backend, strict=True) if b >= 0
            },
            admitted=max(0, self.admitted),
            admission_bound=max(self.admission_bound, self.admitted),
            cost=cost,
            cost_bound=min(cost, self.cost_bound),
            seconds=self.deadline.spent(),
            first_s=self.first_s,
            moved=p.moved(self.assign),
            phases=tuple(self.phases),
            history=tuple(self.history),
            causes=tuple(self.causes),
            notes=tuple(self.notes),
        )

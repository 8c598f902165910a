"""The planner's process: answers a parent over a pipe, so that no solver ever runs in the daemon.

Messages are frames as in `core.providers.frames`. `plan` answers with a proposal; `look` takes up a situation for
look-ups, `ask` answers one, `took` tells that a job has started.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from qtandem.core.errors import QtandemError
from qtandem.core.inventory import Shape
from qtandem.core.managers import Grant
from qtandem.core.planner import live, proposal
from qtandem.core.planner.instance import Workload
from qtandem.core.planner.live import Situation
from qtandem.core.planner.lookup import Lookup
from qtandem.core.planner.objective import objective
from qtandem.core.planner.prepare import prepare
from qtandem.core.planner.proposal import Proposal
from qtandem.core.providers import frames

_SITUATION: TypeAdapter[Situation] = TypeAdapter(Situation)
_PROPOSAL: TypeAdapter[Proposal] = TypeAdapter(Proposal)
_SHAPE: TypeAdapter[Shape] = TypeAdapter(Shape)


def main() -> None:
    """Answer until the parent goes."""
    frames.die_with_parent()
    channel = frames.Channel.claim_stdio()
    first = channel.read()
    if first is None:
        return
    frames.confine(int(first[0]["memory"]))
    service = Service()
    while (message := channel.read()) is not None:
        channel.write(service.answer(message[0]))


class Service:
    """One parent's planner. Its look-ups are from the last situation that was taken up."""

    def __init__(self) -> None:
        self._lookup: Lookup | None = None
        self._memory = True
        self._kept: dict[str, tuple[Workload, str]] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message, with the wire form of an error that a user can mend."""
        try:
            return {"ok": True, "value": getattr(self, f"do_{message['do']}")(message)}
        except QtandemError as error:
            return {"ok": False, "error": error.to_wire()}

    def do_warm(self, _: dict[str, Any]) -> None:
        """Compile what is compiled at first use."""
        prepare()

    def do_plan(self, message: dict[str, Any]) -> Any:
        found = proposal.propose(
            _SITUATION.validate_json(message["situation"]),
            message["objective"],
            message["limit_s"],
            rolling=message["rolling"],
            workers=message["workers"],
        )
        return _PROPOSAL.dump_python(found, mode="json")

    def do_look(self, message: dict[str, Any]) -> None:
        """Take up a situation; `placement` is where pending jobs are about to go, and what room is kept for them."""
        situation = _SITUATION.validate_json(message["situation"])
        built = live.build(situation)
        placement = {name: node for name, node in message["placement"].items() if name in built.members}
        self._memory = situation.inventory.memory
        workloads = {workload.name: workload for workload in built.instance.workloads}
        self._kept = {name: (workloads[name], node) for name, node in placement.items()}
        self._lookup = Lookup(built.instance, objective(message["objective"]), placement, {})

    def do_ask(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Node, backend and cost for a job of this shape, and the nodes that cost more; None if it fits nowhere now."""
        lookup = self._lookup
        if lookup is None:
            return None
        workload = self._workload(message)
        permitted = lookup.names(frozenset(message["permitted"]))
        own = self._kept.get(message["job"])
        if own is not None:
            lookup.leave(*own, None)
        choice = lookup.ask(workload, permitted)
        dearer = lookup.dearer(workload, permitted, choice) if choice is not None and message["dearer"] else []
        if own is not None:
            lookup.take(*own, None)
        if choice is None:
            return None
        return {"node": choice.node, "backend": choice.backend, "cost": choice.cost, "dearer": dearer}

    def do_took(self, message: dict[str, Any]) -> None:
        """A job has started there; what is not known of the node comes with the next situation."""
        own = self._kept.pop(message["job"], None)
        if self._lookup is None:
            return
        if own is not None:
            self._lookup.leave(*own, None)
        if message["node"] in self._lookup.instance.node_index:
            self._lookup.take(self._workload(message), message["node"], None)

    def _workload(self, message: dict[str, Any]) -> Workload:
        shape = _SHAPE.validate_python(message["shape"])
        known = self._lookup.instance.backend_index if self._lookup is not None else {}
        grants = tuple(Grant(*grant) for grant in message["grants"] if grant[0] in known)
        return Workload("asked", live.demand(shape, self._memory), quantum=live.quantum(grants))

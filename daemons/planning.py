"""The planner in the daemon: look-ups at submission and start, plans of the whole cluster, what is applied of them.

The cluster is read every `refresh_s` while look-ups are enabled, or something of ours is to be taken back in time.
Solvers run in the planner's own process (`planners.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from qtandem.core.background import Background
from qtandem.core.errors import QtandemError
from qtandem.core.inventory import Inventory, Placed, Placer, Shape, Waiting
from qtandem.core.managers import Grant, Manager
from qtandem.core.runs import Run
from qtandem.core.settings import PlannerSettings
from qtandem.core.wire import PlanAnswer, PlanDecision, SubmitCall
from qtandem.daemons import hostlist
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log
from qtandem.daemons.placements import Placement, Placements, pinned_by_hook
from qtandem.daemons.planners import Launch, Planners
from qtandem.daemons.steady import every

IDLE_S = 5.0
# Of nodes that a submission excludes: reading more would hold up the daemon, and few characters can name them.
MOST_EXCLUDED = 10_000
_INVENTORY: TypeAdapter[Inventory] = TypeAdapter(Inventory)
_SHAPE: TypeAdapter[Shape] = TypeAdapter(Shape)


@dataclass(frozen=True, slots=True)
class Advice:
    """What a look-up comes to for one submission: attributes for the hook to write, and a note to keep with the job."""

    native: dict[str, str]
    note: str


def asked(call: SubmitCall, manager: Placer, required: tuple[str, ...]) -> Shape | None:
    """The shape of a submission; None for a hook that did not send it, or a list of nodes that cannot be read."""
    if not call.min_cpus and not call.tasks:
        return None
    try:
        excluded = hostlist.expand(call.excluded, MOST_EXCLUDED)
    except ValueError:
        return None
    nodes = max(1, call.min_nodes)
    cpus = -(-max(call.min_cpus, call.tasks * max(1, call.cpus_per_task)) // nodes)
    gpus, gpu_type = manager.gpus(call.gres)
    return Shape(
        cpus=cpus,
        memory_mb=call.memory_node_mb or call.memory_cpu_mb * cpus,
        gpus=gpus,
        gpu_type=gpu_type,
        nodes=nodes,
        exclusive=call.exclusive,
        partitions=tuple(word.strip() for word in call.partition.split(",") if word.strip()),
        account=call.account,
        qos=call.qos,
        features=call.features,
        reservation=call.reservation,
        time_limit_s=call.time_limit * 60 or None,
        required=required,
        excluded=excluded,
    )


class Planning:
    """One daemon's planner. `last` is the newest plan of each manager, by name."""

    def __init__(self, context: Context, launch: Launch, file: Path | None = None) -> None:
        self._context = context
        self._planners = Planners(launch)
        self._placements = Placements(file or context.settings.daemon.state_dir / "placements.json")
        self._inventories: dict[str, Inventory] = {}
        self._applying = asyncio.Lock()
        self._background = Background()
        self._loops: list[asyncio.Task[None]] = []
        self._planned_at = 0.0
        self.last: dict[str, PlanAnswer] = {}

    def open(self) -> None:
        self._loops = [every("planning", self._period_s, self.tick)]

    async def close(self) -> None:
        for task in (*self._loops, *self._background):
            task.cancel()
        await asyncio.gather(*self._loops, *self._background, return_exceptions=True)
        await self._planners.close()

    @property
    def _settings(self) -> PlannerSettings:
        return self._context.settings.planner

    # ---- submission and start
    async def advise(
        self, manager: Manager, call: SubmitCall, required: tuple[str, ...], grants: Sequence[Grant]
    ) -> Advice | None:
        """What to do at a submission; None where there is nothing, or no answer in time. Never raises."""
        settings = self._settings
        if not settings.enabled or not isinstance(manager, Placer) or call.job:
            return None
        shape = asked(call, manager, required)
        message = self._question(manager, shape, grants) if shape is not None and shape.nodes == 1 else None
        if shape is None or message is None:
            return None
        policy = "advise" if shape.required else settings.at_submit
        message["dearer"] = policy == "exclude"
        permitted = frozenset(message["permitted"])
        answer = await self._planners.ask(message, settings.lookup_ms / 1000)
        self._context.metrics.lookups.labels("submit", "found" if answer else "none").inc()
        if answer is None:
            return None
        named = answer.get("dearer") if policy == "exclude" else [answer.get("node")]
        nodes = tuple(named) if isinstance(named, list) else ()
        if not nodes or not all(isinstance(node, str) and node in permitted for node in nodes):
            return None
        if policy != "advise":
            self._background.spawn(self._placements.expect(self._context.clock() + 2 * settings.pin_s))
        native, note = manager.native_placement(Placed(policy, nodes), shape)
        log("planning").info("advised", policy=policy, node=answer.get("node"), adds=answer.get("cost"), of=len(nodes))
        return Advice(native, note)

    def started(self, manager: Manager, run: Run, grants: Sequence[Grant]) -> None:
        """A run has its nodes: the look-up is asked again, for the record, and told. Nothing waits for it."""
        inventory = self._inventories.get(manager.name)
        job = next((each for each in inventory.waiting if each.id == run.id.job), None) if inventory else None
        if self._settings.enabled and job is not None and isinstance(manager, Placer) and len(run.nodes) == 1:
            self._background.spawn(self._started(manager, run, replace(job, grants=tuple(grants))))

    async def _started(self, manager: Placer, run: Run, job: Waiting) -> None:
        message = self._question(manager, replace(job.shape, required=()), job.grants)
        if message is None:
            return
        message["job"] = str(job.id)
        answer = await self._planners.ask(message, IDLE_S)
        as_advised = answer is not None and run.nodes[0] == answer.get("node")
        self._context.metrics.lookups.labels("start", "same" if as_advised else "other" if answer else "none").inc()
        log("planning").info(
            "placed",
            run=str(run.id),
            node=run.nodes[0],
            now_best=answer and answer.get("node"),
            adds=answer and answer.get("cost"),
        )
        await self._planners.took({**message, "node": run.nodes[0]})

    def _question(self, manager: Placer, shape: Shape, grants: Sequence[Grant]) -> dict[str, Any] | None:
        permitted = manager.permitted(shape, self._context.clock())
        if permitted is None:
            return None
        for grant in grants:
            reach = self._reach(grant.resource)
            permitted = permitted if reach is None else permitted & reach
        situation = self._context.situation()
        catalog = self._context.catalog
        open_now = [g for g in grants if (found := catalog.find(g.resource)) and situation.openness(found).open]
        return {
            "shape": _SHAPE.dump_python(shape, mode="json"),
            "permitted": sorted(permitted),
            "grants": [[grant.resource, grant.slots] for grant in open_now],
            "dearer": False,
            "job": "",
        }

    # ---- plans
    async def plan(
        self, manager: Manager, *, objective: str = "", limit_s: float | None = None, apply: bool = False,
        rolling: bool = False,
    ) -> PlanAnswer:  # fmt: skip
        """Plan the cluster as it is now, and apply that if asked to. Raises `no-planner` and what managers do."""
        if not isinstance(manager, Placer):
            raise QtandemError("no-planner", f"{manager.name} cannot show its nodes to the planner")
        settings, limit = self._settings, limit_s or self._settings.limit_s
        async with self._applying:
            inventory = await self._read(manager.name, manager)
            terms = {"objective": objective or settings.objective, "limit_s": limit, "workers": settings.workers}
            answer = await self._planners.plan(
                {"situation": await self._situation(inventory), "rolling": rolling, **terms}, limit
            )
            found = _answer(manager.name, inventory, answer)
            if apply and any(each.release or each.pin or each.nice is not None for each in found.decisions):
                found = await self._apply(manager, inventory, found)
        self.last[manager.name] = found
        await self._look(manager.name, inventory, answer.get("placement", {}))
        log("planning").info(
            "planned", manager=manager.name, engine=found.engine, seconds=round(found.seconds, 2), gap=found.gap,
            worth=found.worth, starts=found.planned.jobs, applied=found.applied,
        )  # fmt: skip
        return found

    async def _apply(self, manager: Placer, inventory: Inventory, found: PlanAnswer) -> PlanAnswer:
        """Releases first, then pins that a tested submission does not refuse, then the order; each job for itself."""
        waiting = {str(job.id): job for job in inventory.waiting}
        chosen = [each for each in found.decisions if each.release or each.pin or each.nice is not None]
        chosen = sorted(chosen, key=lambda each: not each.release)[: self._settings.changes]
        pins = {waiting[each.job].id: each.nodes for each in chosen if each.pin}
        trials = await manager.trials(pins)
        did: dict[str, str] = {}
        for each in chosen:
            job = waiting[each.job]
            refused = trials[job.id].refused if job.id in trials else ""
            did[each.job] = f"not pinned: {refused}" if refused else await self._done(manager, job, each)
            outcome = "refused" if did[each.job].startswith("not ") else "done"
            self._context.metrics.placements.labels(outcome).inc()
            log("planning").info("applied", job=each.job, nodes=each.nodes, did=did[each.job])
        decisions = [each.model_copy(update={"did": did.get(each.job, "")}) for each in found.decisions]
        return found.model_copy(update={"applied": True, "decisions": decisions})

    async def _done(self, manager: Placer, job: Waiting, decision: PlanDecision) -> str:
        """Do what the plan has for one job; what was done, in words."""
        try:
            if decision.release:
                return "released" if await self._placements.release(manager, job) else "nothing to release"
            before = self._placements.get(decision.job)
            placement = Placement(
                decision.job,
                self._context.clock(),
                tuple(decision.nodes) if decision.pin else before.nodes if before else (),
                decision.nice if decision.nice is not None else before.nice if before else None,
                before.nice_before if before and before.nice is not None else job.nice,
            )
            await self._placements.note([placement])
            words = []
            if decision.pin:
                await manager.place(job.id, decision.nodes)
                words.append(f"pinned to {','.join(decision.nodes)}")
            if decision.nice is not None:
                await manager.reorder(job.id, decision.nice)
                words.append("put in front")
            return " and ".join(words)
        except QtandemError as error:
            return f"not done: {error.one_line()}"

    # ---- the loop
    async def tick(self) -> None:
        """Read the cluster if anything depends on it, take back what is overdue, plan again at the horizon."""
        now, settings = self._context.clock(), self._settings
        if settings.enabled or self._placements.expecting(now):
            for manager in list(self._context.managers.values()):
                if isinstance(manager, Placer):
                    await self._refresh(manager.name, manager, now)
        due = settings.horizon_s and now - self._planned_at >= settings.horizon_s
        if due and not self._applying.locked():
            self._planned_at = now
            self._background.spawn(self._horizon())

    async def _refresh(self, name: str, manager: Placer, now: float) -> None:
        try:
            async with self._applying:
                inventory = await self._read(name, manager)
                await self._placements.withdraw(manager, inventory.waiting, now, self._settings.pin_s)
            if self._settings.enabled:
                await self._look(name, inventory, {})
        except QtandemError as error:
            log("planning").warning("cluster not read", manager=name, why=error.one_line())

    async def _horizon(self) -> None:
        for name, manager in list(self._context.managers.items()):
            if isinstance(manager, Placer):
                try:
                    await self.plan(manager, apply=self._settings.horizon_apply, rolling=True)
                except QtandemError as error:
                    log("planning").warning("not planned", manager=name, why=error.one_line())

    def _period_s(self) -> float:
        settings = self._settings
        return min(settings.refresh_s, settings.pin_s / 4, settings.horizon_s or settings.refresh_s)

    async def _read(self, name: str, manager: Placer) -> Inventory:
        inventory = await manager.inventory(self._context.clock(), self._placements.nodes)
        self._inventories[name] = inventory
        return inventory

    async def _look(self, name: str, inventory: Inventory, placement: dict[str, str]) -> None:
        """Have look-ups know the cluster, and where pending jobs are about to go by the newest plan."""
        if not self._settings.enabled:
            return
        last = self.last.get(name)
        fresh = last is not None and inventory.at - last.at < 2 * (self._settings.horizon_s or self._settings.refresh_s)
        planned = {each.job: each.nodes[0] for each in last.decisions if len(each.nodes) == 1} if last and fresh else {}
        try:
            await self._planners.look(
                {
                    "situation": await self._situation(inventory),
                    "objective": self._settings.objective,
                    "placement": placement or planned,
                }
            )
        except QtandemError as error:
            log("planning").warning("no look-ups", why=error.one_line())

    async def _situation(self, inventory: Inventory) -> str:
        """What a plan is made from, as JSON; written in a thread, since it may be megabytes."""
        settings, context = self._settings, self._context
        known = context.situation()
        free = {
            name: room.free for name, each in context.catalog.resources.items() if (room := known.openness(each)).open
        }
        pins = {str(job.id): node for job in inventory.waiting if (node := pinned_by_hook(job))}
        body = {
            "free": free,
            "reach": {name: sorted(reach) for name in free if (reach := self._reach(name)) is not None},
            "pins": {**pins, **self._placements.pins},
            "prices": {
                "core_h": settings.cost_core_h, "gpu_h": settings.cost_gpu_h, "node_w": settings.watts_node,
                "core_w": settings.watts_core, "gpu_w": settings.watts_gpu,
            },
            "move_budget": settings.moves,
        }  # fmt: skip
        return await asyncio.to_thread(_written, inventory, body)

    def _reach(self, resource: str) -> frozenset[str] | None:
        found = self._context.catalog.find(resource)
        return frozenset(found.reach.nodes) if found is not None and found.reach.nodes else None


def _written(inventory: Inventory, body: dict[str, object]) -> str:
    return json.dumps({"inventory": _INVENTORY.dump_python(inventory, mode="json"), **body})


def _answer(manager: str, inventory: Inventory, proposal: dict[str, Any]) -> PlanAnswer:
    """The plan of the planner's process, which runs as a user of less right than the daemon: it may name no job that
    does not wait, and no node that the manager has not permitted. Raises `internal`."""
    try:
        skipped = [{"job": job, "why": why} for job, why in proposal["skipped"]]
        found = PlanAnswer.model_validate({**proposal, "manager": manager, "skipped": skipped})
    except (KeyError, TypeError, ValueError) as error:
        raise QtandemError("internal", "The planner's process gave no plan that can be read") from error
    waiting = {str(job.id): job for job in inventory.waiting}
    for each in found.decisions:
        job = waiting.get(each.job)
        permitted = inventory.masks[job.mask] if job is not None and not job.skipped else frozenset()
        if job is None or not permitted.issuperset(each.nodes) or (each.pin and (job.fixed or len(each.nodes) != 1)):
            raise QtandemError("internal", f"The planner's process has for {each.job[:80]!r} what it may not have")
    return found

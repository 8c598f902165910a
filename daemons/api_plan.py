"""The call that plans a cluster, and applies the plan."""

from __future__ import annotations

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.inventory import Placer
from qtandem.core.managers import Manager
from qtandem.core.wire import PlanCall
from qtandem.daemons.api import CALLER, CONTEXT, raw_json, read
from qtandem.daemons.authority import Event
from qtandem.daemons.context import Context


async def plan(request: web.Request) -> web.Response:
    """A plan shows everybody's jobs, so that seeing one needs the same right as applying it."""
    context = request.app[CONTEXT]
    call = await read(request, PlanCall)
    manager = _manager(context, call.manager)
    context.authority.require(Event.PLAN, request[CALLER], manager=manager.name)
    found = await context.planning.plan(manager, objective=call.objective, limit_s=call.limit_s, apply=call.apply)
    return raw_json(found.model_dump_json().encode())


async def last(request: web.Request) -> web.Response:
    """The newest plans, by manager, without making one."""
    context = request.app[CONTEXT]
    context.authority.require(Event.PLAN, request[CALLER])
    plans = ",".join(found.model_dump_json() for found in context.planning.last.values())
    return raw_json(f'{{"plans":[{plans}]}}'.encode())


def _manager(context: Context, name: str) -> Manager:
    """The one that is named, or the only one that can show its nodes."""
    if name:
        return context.manager(name)
    able = [each for each in context.managers.values() if isinstance(each, Placer)]
    if len(able) != 1:
        if not able:
            remedy = "Plans can be seen through on Slurm; qtandem plan solve FILE needs no manager."
            raise QtandemError("no-planner", "None of the configured managers can be planned", remedy=remedy)
        names = ", ".join(each.name for each in able)
        raise QtandemError("no-planner", f"Several managers can be planned: {names}", remedy="Name one: --manager")
    return able[0]

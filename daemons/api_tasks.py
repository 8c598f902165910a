"""Calls of jobs and users: tasks on a held lease, and claims."""

from __future__ import annotations

import asyncio

from aiohttp import web

from qtandem.core import requests, verdicts
from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Claim, Task
from qtandem.core.leases.queries import Filter
from qtandem.core.runs import RunId
from qtandem.core.verdicts import Admit, Asker
from qtandem.core.wire import JSON, MAX_BODY, TEXT, ClaimCall, EnvironmentAnswer, TaskCall, TextAnswer
from qtandem.daemons import people
from qtandem.daemons.answers import claim_answer, task_answer
from qtandem.daemons.api import CALLER, CONTEXT, SMALL_BODY, number, raw_json, read, reply, rows, streamed, wants_text
from qtandem.daemons.authority import ROOT, Event
from qtandem.daemons.context import Context
from qtandem.daemons.environment import claim_environment
from qtandem.daemons.lifecycle import END_CALL_S
from qtandem.daemons.results import as_answer

LONGEST_WAIT_S = 60.0
MOST_ROWS = 1000


async def start(request: web.Request) -> web.Response:
    context, caller = request.app[CONTEXT], request[CALLER]
    everybody = caller.uid == ROOT and caller.local
    call = await read(request, TaskCall, _largest(request, everybody))
    resource = context.catalog.get(call.resource).name if call.resource else ""
    lease = context.tasks.choose_lease(caller.uid, call.lease, resource, call.claim, everybody=everybody)
    context.authority.require(Event.TASK, caller, owner=lease.uid, nodes=_nodes(context, lease.owner))
    task = await context.tasks.start(lease, lease.uid, call.payload, call.key)
    return reply(request, task_answer(task), status=200)


async def listing(request: web.Request) -> web.Response:
    """The newest tasks of a lease, or of the caller."""
    context, caller = request.app[CONTEXT], request[CALLER]
    everybody = context.authority.sees_all(caller)
    id = request.query.get("lease", "")
    lease = context.leases.lease(id) if id else None
    owner = lease.owner if lease is not None else None
    where = Filter(uid=None if everybody else caller.uid, owner=owner, limit=MOST_ROWS)
    tasks = await context.tasks.of(where)
    return raw_json(rows("tasks", [task_answer(task) for task in tasks if id in ("", task.lease)]))


async def show(request: web.Request) -> web.Response:
    task = await _own(request)
    wait = number(request, "wait", 0.0, LONGEST_WAIT_S)
    if wait and not task.state.final:
        task = await request.app[CONTEXT].tasks.wait(task.id, wait)
    return reply(request, task_answer(task))


async def result(request: web.Request) -> web.StreamResponse:
    task = await _own(request)
    with await request.app[CONTEXT].tasks.result(task.id) as file:
        text = wants_text(request)
        pieces = as_answer(file, text=text)
        return await streamed(request, pieces, TEXT if text else JSON)


async def logs(request: web.Request) -> web.Response:
    task = await _own(request)
    return reply(request, TextAnswer(text=await request.app[CONTEXT].tasks.logs(task.id)))


async def stop(request: web.Request) -> web.Response:
    task = await _own(request)
    return reply(request, task_answer(await request.app[CONTEXT].tasks.stop(task.id)))


async def claim(request: web.Request) -> web.Response:
    """Lease outside a job, for the caller's own uid. Only what is open now can be claimed."""
    context, caller = request.app[CONTEXT], request[CALLER]
    context.authority.require(Event.CLAIM, caller, owner=caller.uid)
    call = await read(request, ClaimCall)
    user = await people.user_name(caller.uid)
    registered = context.keys.resources(caller.uid)
    asker = Asker(caller.uid, user, registered=registered, spelling="qtandem claim make {}")
    admitted = verdicts.submit(requests.parse(call.request), (), asker, context.catalog, context.situation())
    assert admitted is not None
    mine = context.leases.claims(caller.uid)
    if not any(call.name and each.name == call.name for each in mine):
        _all_open(context, admitted)
    made = await context.leases.claim(caller.uid, user, admitted.grants, call.ttl_s, call.name)
    return reply(request, claim_answer(made))


async def claims(request: web.Request) -> web.Response:
    context, caller = request.app[CONTEXT], request[CALLER]
    uid = None if context.authority.sees_all(caller) else caller.uid
    return raw_json(rows("claims", [claim_answer(each) for each in context.leases.claims(uid)]))


async def claim_env(request: web.Request) -> web.Response:
    """What a job needs to execute on the claim; never a vendor's key, since a claim has no node to keep it on."""
    context, known = _claim(request)
    env = claim_environment(context.catalog, known, context.settings.daemon.socket, context.clock())
    return reply(request, EnvironmentAnswer(run="", uid=known.uid, env=env))


async def end_claim(request: web.Request) -> web.Response:
    context, known = _claim(request)
    id = known.id
    await context.tasks.stop_owners({f"claim {id}"}, "the claim ended")
    ending = asyncio.create_task(context.leases.end_claim(id, None))
    await asyncio.wait({ending}, timeout=END_CALL_S)
    ended = ending.result() if ending.done() else True
    return reply(request, {"ended": ended})


def _largest(request: web.Request, everybody: bool) -> int:
    """Who can execute nothing cannot have us read large payloads either; raises `no-lease`."""
    uid = request[CALLER].uid
    if everybody or any(lease.uid == uid for lease in request.app[CONTEXT].leases.leases()):
        return MAX_BODY
    if (request.content_length or 0) > SMALL_BODY:
        raise QtandemError("no-lease", "You hold no lease")
    return SMALL_BODY


def _claim(request: web.Request) -> tuple[Context, Claim]:
    """The open claim of a call, for its owner."""
    context, id = request.app[CONTEXT], request.match_info["id"]
    known = next((each for each in context.leases.claims() if each.id == id), None)
    if known is None:
        raise QtandemError("no-such-run", f"There is no open claim {id[:64]!r}", remedy="See: qtandem claim list")
    context.authority.require(Event.CLAIM, request[CALLER], owner=known.uid)
    return context, known


def _all_open(context: Context, admitted: Admit) -> None:
    situation = context.situation()
    for grant in admitted.grants:
        room = situation.openness(context.catalog.get(grant.resource))
        if room.free < grant.slots:
            raise QtandemError(
                "not-available",
                f"{grant.resource} cannot be claimed: {room.reason}",
                remedy="A claim does not wait: make it again when it is open, or submit a job, which does.",
                retry_after=5.0,
            )


async def _own(request: web.Request) -> Task:
    context = request.app[CONTEXT]
    task = await context.tasks.get(request.match_info["id"])
    context.authority.require(Event.TASK, request[CALLER], owner=task.uid, nodes=_nodes(context, task.owner))
    return task


def _nodes(context: Context, owner: str) -> tuple[str, ...] | None:
    """The nodes of the run that owns a lease, none once it has ended; None for a claim, which has no place."""
    if not owner.startswith("run "):
        return None
    run = context.leases.run(RunId.parse(owner.removeprefix("run ")))
    return run.nodes if run else ()

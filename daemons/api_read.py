"""Calls that only read: resources, facts, leases, explain, usage, health, names, and a vendor's description."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Lease, Usage
from qtandem.core.leases.queries import Filter
from qtandem.core.wire import TextAnswer, UsageRow
from qtandem.daemons.answers import health, lease_answer, resource_answer
from qtandem.daemons.api import CALLER, CONTEXT, raw_json, reply, rows, wants_text
from qtandem.daemons.context import Context
from qtandem.daemons.explain import Explainer
from qtandem.daemons.heartbeat import names_text

EXPLAINER: web.AppKey[Explainer] = web.AppKey("explainer", Explainer)
# What many clients poll is written once for all of them, and again at the latest after this time.
FRESH_S = 0.25
TARGET_S = 60.0
MOST_ROWS, FEW = 10_000, 200


class Pages:
    """Bodies that do not depend on the caller, each made at most every `FRESH_S` seconds or at a change."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, tuple[float, bytes]] = {}

    def forget(self) -> None:
        self._made.clear()

    def get(self, key: str, make: Callable[[Context], bytes]) -> bytes:
        now = self._context.clock()
        made = self._made.get(key)
        if made is None or not 0 <= now - made[0] < FRESH_S:
            made = self._made[key] = (now, make(self._context))
        return made[1]


PAGES: web.AppKey[Pages] = web.AppKey("pages", Pages)


async def resources(request: web.Request) -> web.Response:
    if wants_text(request):
        context = request.app[CONTEXT]
        situation = context.situation()
        all_of_them = [resource_answer(each, situation) for each in context.catalog.resources.values()]
        return reply(request, {each.native: each.model_dump() for each in all_of_them})
    return raw_json(request.app[PAGES].get("resources", _resources))


async def discovered(request: web.Request) -> web.Response:
    """What vendors list for dynamic resources; `?now` has an admin ask them again."""
    context = request.app[CONTEXT]
    now = "now" in request.query and context.authority.sees_all(request[CALLER])
    return raw_json(rows("devices", await context.upkeep.discovered(now=now)))


async def facts(request: web.Request) -> web.Response:
    return raw_json(request.app[PAGES].get("facts", _facts))


async def healthz(request: web.Request) -> web.Response:
    if wants_text(request):
        return reply(request, health(request.app[CONTEXT]))
    return raw_json(request.app[PAGES].get("healthz", lambda context: health(context).model_dump_json().encode()))


async def names(request: web.Request) -> web.Response:
    return web.Response(text=names_text(request.app[CONTEXT].catalog.resources.values()))


async def leases(request: web.Request) -> web.Response:
    """The caller's own; all for root, service users and admins."""
    context, caller = request.app[CONTEXT], request[CALLER]
    if context.authority.sees_all(caller) and "mine" not in request.query:
        seen = context.leases.leases()
    else:
        seen = [lease for lease in context.leases.leases() if lease.uid == caller.uid]
    # Ten thousand leases take long to write: that must not hold up everybody else's calls.
    return raw_json(_leases(seen) if len(seen) <= FEW else await asyncio.to_thread(_leases, seen))


async def explain(request: web.Request) -> web.Response:
    answer = await request.app[EXPLAINER].explain(request.match_info["job"], request[CALLER])
    return reply(request, answer)


async def usage(request: web.Request) -> web.Response:
    """`?since=&until=` (Unix times), `&user=&account=&resource=&run=`; one row a run and resource, oldest first."""
    context, caller = request.app[CONTEXT], request[CALLER]
    query = request.query
    run = query.get("run")
    where = Filter(
        uid=None if context.authority.sees_all(caller) else caller.uid,
        user=query.get("user"),
        account=query.get("account"),
        resource=query.get("resource"),
        owner=None if run is None else run if " " in run else f"run {run}",
        since=_time(query.get("since")),
        until=_time(query.get("until")),
        limit=None,
    )
    await context.tasks.written()
    used = await context.records.usage(where, context.clock())
    body = await asyncio.to_thread(rows, "usage", [_usage_row(row) for row in used[-MOST_ROWS:]])
    return raw_json(body)


async def target(request: web.Request) -> web.Response:
    return reply(request, TextAnswer(text=str(await _described(request, "target"))))


async def metadata(request: web.Request) -> web.Response:
    found = await _described(request, "metadata")
    return reply(request, dict(found) if isinstance(found, dict) else {})


class Descriptions:
    """A vendor's description of a device, asked for once a minute however many programs want it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked: dict[tuple[str, str], tuple[float, asyncio.Task[object]]] = {}

    async def get(self, resource: str, method: str) -> object:
        now = self._context.clock()
        known = self._asked.get((resource, method))
        failed = known is not None and known[1].done() and (known[1].cancelled() or known[1].exception() is not None)
        if known is None or failed or not 0 <= now - known[0] < TARGET_S:
            task = asyncio.create_task(self._context.workers.call(resource, method, purpose="observe"))
            known = self._asked[resource, method] = (now, task)
        return await asyncio.shield(known[1])


DESCRIPTIONS: web.AppKey[Descriptions] = web.AppKey("descriptions", Descriptions)


async def _described(request: web.Request, method: str) -> object:
    resource = request.app[CONTEXT].catalog.get(request.match_info["name"])
    return await request.app[DESCRIPTIONS].get(resource.name, method)


def _resources(context: Context) -> bytes:
    situation = context.situation()
    return rows("resources", (resource_answer(each, situation) for each in context.catalog.resources.values()))


def _facts(context: Context) -> bytes:
    """With each fact's age at the time of writing, and whether it is stale."""
    now = context.clock()
    out = [
        {**fact.model_dump(mode="json"), "age_s": round(fact.age_s(now), 3), "stale": fact.stale(now)}
        for fact in context.observer.facts.values()
    ]
    return json.dumps({"facts": out}).encode()


def _leases(leases: Sequence[Lease]) -> bytes:
    return rows("leases", map(lease_answer, leases))


def _usage_row(row: Usage) -> UsageRow:
    currencies = list(row.cost)
    single = currencies[0] if len(currencies) == 1 else ""
    return UsageRow(
        run=row.owner.removeprefix("run "),
        user=row.user,
        account=row.account,
        resource=row.resource,
        slots=row.slots,
        started_at=row.started_at,
        ended_at=row.ended_at,
        held_s=row.held_s,
        tasks=row.tasks,
        shots=row.shots,
        usage_s=row.usage_s,
        cost=row.cost[single] if len(currencies) == 1 else None,
        currency=single,
    )


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise QtandemError("bad-request", f"{text[:40]!r} is not a Unix time") from None

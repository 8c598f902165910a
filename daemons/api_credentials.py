"""Calls of users about their own vendors' keys. No answer ever holds a key."""

from __future__ import annotations

from aiohttp import web

from qtandem.core.wire import CredentialAnswer, CredentialCall
from qtandem.daemons.api import CALLER, CONTEXT, raw_json, read, reply, rows
from qtandem.daemons.authority import Caller, Event
from qtandem.daemons.context import Context
from qtandem.daemons.logs import log
from qtandem.daemons.userkeys import UserKey


async def add(request: web.Request) -> web.Response:
    context, caller = _own(request)
    call = await read(request, CredentialCall)
    resource = context.catalog.get(call.resource)
    before = await context.keys.add(caller.uid, resource, call.values, context.clock())
    log("userkeys").info("registered", uid=caller.uid, resource=resource.name, replaced=before is not None)
    if before is not None:
        await context.workers.forget(before.values)
    key = context.keys.find(caller.uid, resource.name)
    assert key is not None
    return reply(request, _answer(context, key))


async def listing(request: web.Request) -> web.Response:
    context, caller = _own(request)
    return raw_json(rows("credentials", (_answer(context, key) for key in context.keys.of(caller.uid))))


async def remove(request: web.Request) -> web.Response:
    context, caller = _own(request)
    name = request.match_info["name"]
    # A resource that the site has dropped must not keep the user's key for ever.
    found = context.catalog.find(name)
    key = context.keys.remove(caller.uid, found.name if found else name)
    log("userkeys").info("removed", uid=caller.uid, resource=key.resource)
    await context.workers.forget(key.values)
    return reply(request, {"removed": key.resource})


def _own(request: web.Request) -> tuple[Context, Caller]:
    """A relay is believed about a key's owner only where it is about all things: a key decides who pays."""
    context, caller = request.app[CONTEXT], request[CALLER]
    context.authority.require(Event.CREDENTIAL, caller, owner=caller.uid, nodes=())
    return context, caller


def _answer(context: Context, key: UserKey) -> CredentialAnswer:
    resource = context.catalog.resources.get(key.resource)
    return CredentialAnswer(
        resource=key.resource,
        keys=sorted(key.values),
        added_at=key.added_at,
        used=resource is not None and resource.owner != "site",
    )

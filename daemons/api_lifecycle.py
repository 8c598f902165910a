"""Calls of the managers' hooks: submit, start, end, and a run's environment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aiohttp import web

from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant, Manager
from qtandem.core.runs import JobId, Run
from qtandem.core.verdicts import Asker
from qtandem.core.wire import (
    EndAnswer,
    EndCall,
    EnvironmentAnswer,
    StartCall,
    SubmitAnswer,
    SubmitCall,
)
from qtandem.daemons import hostlist, people
from qtandem.daemons.api import CALLER, CONTEXT, read, reply
from qtandem.daemons.authority import Event, Right
from qtandem.daemons.environment import find_run, run_environment
from qtandem.daemons.lifecycle import users_fault

# Nodes that whoever asks what would become of a job may name: nothing else is done while a list is read.
MOST_ASKED = 4096


async def submit(request: web.Request) -> web.Response:
    """A reject is an answer like any other, so that a hook needs one parser."""
    context = request.app[CONTEXT]
    call = await read(request, SubmitCall)
    manager = context.manager(call.manager, call.cluster)
    right = context.authority.require(Event.SUBMIT, request[CALLER], manager=call.manager, owner=call.uid)
    try:
        asker = await _asker(call, right, context.keys.resources(call.uid), manager.capabilities.spelling)
        answer = await _submitted(request, manager, call, asker, advised=right is Right.SERVICE)
    except QtandemError as error:
        if not users_fault(error):
            raise
        answer = SubmitAnswer(verdict="reject", request=call.request, code=error.code, message=_said(error))
    context.metrics.verdicts.labels("submit", answer.verdict).inc()
    return reply(request, answer)


async def start(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    call = await read(request, StartCall)
    manager = context.manager(call.manager, call.cluster)
    job = _job(manager, call.job, call.index)
    if manager.capabilities.hooks_on_nodes:
        run, grants = await context.reported.start(manager, job, request[CALLER], call.attempt)
        return await _start(request, manager, run, grants)
    context.authority.require(Event.START, request[CALLER], manager=call.manager)
    return await _start(request, manager, await _run(job, call), manager.read_native(call.native))


async def reserve(request: web.Request) -> web.Response:
    """For managers that ask before the run is on its nodes; what they say is their own word, wherever hooks run."""
    context = request.app[CONTEXT]
    call = await read(request, StartCall)
    manager = context.manager(call.manager, call.cluster)
    context.authority.require(Event.START, request[CALLER], manager=call.manager)
    run = await _run(_job(manager, call.job, call.index), call)
    answer = await context.lifecycle.reserve(manager, run, manager.read_native(call.native))
    context.metrics.verdicts.labels("reserve", answer.verdict).inc()
    return reply(request, answer)


async def _run(job: JobId, call: StartCall) -> Run:
    return Run(
        id=job.run(call.attempt),
        uid=call.uid,
        user=call.user or await people.user_name(call.uid),
        account=call.account or None,
        partition=call.partition or None,
        nodes=_nodes(call.nodes),
        time_limit_s=call.time_limit_s,
        can_requeue=call.can_requeue,
    )


async def end(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    call = await read(request, EndCall)
    manager = context.manager(call.manager, call.cluster)
    job = _job(manager, call.job, call.index)
    if manager.capabilities.hooks_on_nodes:
        ended = await context.reported.end(manager, job, request[CALLER], call.attempt, call.exit_code)
        return reply(request, EndAnswer(ended=ended))
    context.authority.require(Event.END, request[CALLER], manager=call.manager)
    ended = await context.lifecycle.end(job, call.attempt, "the manager reported its end", call.exit_code)
    return reply(request, EndAnswer(ended=ended))


async def environment(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    run = find_run(context.leases, request.match_info["run"])
    manager = run.id.job.manager
    caller = request[CALLER]
    context.authority.require(Event.ENVIRONMENT, caller, manager=manager, owner=run.uid, nodes=run.nodes)
    leases, socket = context.leases.held(run.id), context.settings.daemon.socket
    own = partial(context.calls.secrets, uid=run.uid)
    env, secret = run_environment(context.catalog, run, leases, socket, own, context.proxy.variables)
    return reply(request, EnvironmentAnswer(run=str(run.id), uid=run.uid, env=env, secret=secret))


async def _start(request: web.Request, manager: Manager, run: Run, grants: Sequence[Grant]) -> web.Response:
    context = request.app[CONTEXT]
    answer = await context.lifecycle.start(manager, run, grants)
    if answer.verdict == "admit" and answer.run:
        context.planning.started(manager, run, grants)
    context.metrics.verdicts.labels("start", answer.verdict).inc()
    return reply(request, answer)


async def _submitted(
    request: web.Request, manager: Manager, call: SubmitCall, asker: Asker, *, advised: bool
) -> SubmitAnswer:
    """`advised`: the planner is asked too. Its one process is for submissions, not for whoever asks what if."""
    context = request.app[CONTEXT]
    admitted = context.lifecycle.submit(manager, call.request, call.native, asker)
    if admitted is None:
        return SubmitAnswer(verdict="none")
    if call.job and advised:
        context.lifecycle.altered(manager, admitted.grants)
    native = manager.native_request(admitted.grants)
    choices = admitted.canonical if admitted.movable else ""
    advice = await context.planning.advise(manager, call, asker.nodes, admitted.grants) if advised else None
    placed = advice.note if advice else ""
    return SubmitAnswer(
        verdict="admit",
        request=admitted.canonical,
        choices=choices,
        placed=placed,
        native=native | (advice.native if advice else {}),
        message=admitted.warning,
    )


async def _asker(call: SubmitCall, right: Right, registered: frozenset[str], spelling: str) -> Asker:
    """An ordinary caller's own words on who it is count for nothing: its uid does."""
    service = right is Right.SERVICE
    user = call.user if service and call.user else await people.user_name(call.uid)
    nodes = _nodes(call.nodes, hostlist.MOST if service else MOST_ASKED)
    return Asker(call.uid, user, call.account or None, _words(call.partition), nodes, registered, spelling)


def _job(manager: Manager, job: str, index: int | None) -> JobId:
    """Checked by reading it back, so that no other id can be smuggled into one."""
    wanted = JobId(manager.name, manager.cluster, job, index)
    if JobId.parse(str(wanted)) != wanted:
        raise QtandemError("bad-request", f"{job[:80]!r} is not a job id of {manager.name}")
    return wanted


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _nodes(text: str, most: int = hostlist.MOST) -> tuple[str, ...]:
    try:
        return hostlist.expand(text, most)
    except ValueError as error:
        raise QtandemError("bad-request", f"nodes={text[:80]!r}: {error}") from None


def _said(error: QtandemError) -> str:
    return f"{error.message}. {error.remedy}" if error.remedy else error.message

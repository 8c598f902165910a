"""The wire reference from the routes of the daemon and the models of its calls."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from qtandem.core import wire
from qtandem.daemons.api import SMALL_BODY
from qtandem.daemons.app import ROUTES

# What a route takes and gives; a list stands below the key that is named. Routes that are not here fail the build.
CALLS: dict[str, tuple[type[BaseModel] | None, type[BaseModel] | tuple[str, type[BaseModel]] | str]] = {
    "POST /v1/submit": (wire.SubmitCall, wire.SubmitAnswer),
    "POST /v1/reserve": (wire.StartCall, wire.StartAnswer),
    "POST /v1/start": (wire.StartCall, wire.StartAnswer),
    "POST /v1/end": (wire.EndCall, wire.EndAnswer),
    "GET /v1/runs/{run}/environment": (None, wire.EnvironmentAnswer),
    "GET /v1/resources": (None, ("resources", wire.ResourceAnswer)),
    "GET /v1/resources/{name}/target": (None, wire.TextAnswer),
    "GET /v1/resources/{name}/metadata": (None, "an object of texts"),
    "GET /v1/discovered": (None, ("devices", wire.DiscoveredAnswer)),
    "GET /v1/facts": (None, "`facts`: a list of the newest readings, each with `age_s` and `stale`"),
    "GET /v1/leases": (None, ("leases", wire.LeaseAnswer)),
    "GET /v1/explain/{job}": (None, wire.ExplainAnswer),
    "GET /v1/usage": (None, ("usage", wire.UsageRow)),
    "GET /v1/healthz": (None, wire.Health),
    "GET /v1/names": (None, "text, one `NAME<TAB>NATIVE<TAB>SLOTS` a line"),
    "POST /v1/tasks": (wire.TaskCall, wire.TaskAnswer),
    "GET /v1/tasks": (None, ("tasks", wire.TaskAnswer)),
    "GET /v1/tasks/{id}": (None, wire.TaskAnswer),
    "GET /v1/tasks/{id}/result": (None, wire.TextAnswer),
    "GET /v1/tasks/{id}/logs": (None, wire.TextAnswer),
    "POST /v1/tasks/{id}/stop": (None, wire.TaskAnswer),
    "POST /v1/claims": (wire.ClaimCall, wire.ClaimAnswer),
    "GET /v1/claims": (None, ("claims", wire.ClaimAnswer)),
    "GET /v1/claims/{id}/environment": (None, wire.EnvironmentAnswer),
    "POST /v1/credentials": (wire.CredentialCall, wire.CredentialAnswer),
    "GET /v1/credentials": (None, ("credentials", wire.CredentialAnswer)),
    "DELETE /v1/credentials/{name}": (None, "`removed`: the resource"),
    "GET /v1/plan": (None, ("plans", wire.PlanAnswer)),
    "POST /v1/plan": (wire.PlanCall, wire.PlanAnswer),
    "DELETE /v1/claims/{id}": (None, "`ended`: true, or false if it was over already"),
}
QUERIES = {
    "GET /v1/leases": "`mine`: only the caller's own, for a caller who sees all",
    "GET /v1/usage": "`since`, `until` (Unix times), `user`, `account`, `resource`, `run`",
    "GET /v1/tasks": "`lease`: only of this lease",
    "GET /v1/tasks/{id}": "`wait`: seconds, at most 60, that the answer may wait for the task to end",
}
INTRODUCTION = f"""
HTTP over the unix socket `/run/qtandem/qtandem.sock`, on every host; `curl --unix-socket` is enough to look inside:

    curl --unix-socket /run/qtandem/qtandem.sock http://localhost/v1/healthz

- **Version.** `/v1`. Calls refuse unknown keys; answers may get new ones, which clients ignore.
- **Form.** JSON. Calls and answers of hooks are also taken and given as `text/plain`, one `key=percent-encoded` a
  line, nested keys joined by dots, for Lua and shells without a JSON parser.
- **Who calls** is what the kernel says of the socket's other end. Who may say what is a table in
  [ARCHITECTURE.md](../ARCHITECTURE.md).
- **Errors** have the HTTP status of their code ([errors.md](errors.md)) and the body `ErrorBody` below. A submission
  that is rejected is no error: it has status 200 and the verdict `reject`.
- **Repetition.** Every call may be made again: a start of an open run gives the same lease, an end of an ended run
  ends nothing, a task with the same `key` on the same lease is the same task.
- **Limits.** A task has at most {wire.MAX_BODY // 2**20} MiB, every other call {SMALL_BODY // 1024} KiB. \
Large tasks of one user are read one at a time.
"""


def page() -> Iterator[str]:
    yield INTRODUCTION.strip()
    yield "\n## Calls\n\n| call | what it does | takes | gives |\n|---|---|---|---|"
    shown: list[type[BaseModel]] = []
    for route in ROUTES:
        name = f"{route.method} {route.path}"
        call, answer = CALLS[name]
        takes = [_link(call)] if call else []
        takes += [QUERIES[name]] if name in QUERIES else []
        shown += [model for model in (call, answer[1] if isinstance(answer, tuple) else answer) if _is_model(model)]
        yield f"| `{name}` | {WHAT[name]} | {'; '.join(takes)} | {_answer(answer)} |"
    for model in dict.fromkeys(
        [*shown, wire.PlanTotals, wire.PlanDecision, wire.PlanSkipped, wire.LeaseAnswer, wire.ErrorBody]
    ):
        yield from _model(model)


WHAT = {
    "POST /v1/submit": "a verdict on a job at submission, or on one that is modified",
    "POST /v1/reserve": "take the slots of a job that is about to start, without asking a vendor",
    "POST /v1/start": "reserve and acquire for a job whose nodes are allocated",
    "POST /v1/end": "release what a job holds",
    "GET /v1/runs/{run}/environment": "the environment of a run; secrets only where its QPU is `direct`",
    "GET /v1/resources": "all resources with their newest facts",
    "GET /v1/resources/{name}/target": "the vendor's description of the device",
    "GET /v1/resources/{name}/metadata": "the vendor's own names and versions",
    "GET /v1/discovered": "what vendors list for dynamic resources, and what became of each device",
    "GET /v1/facts": "the newest readings as they are",
    "GET /v1/leases": "open leases: the caller's own; all for root, service users and admins",
    "GET /v1/explain/{job}": "why a job is where it is",
    "GET /v1/usage": "accounting, one row a run and resource, oldest first",
    "GET /v1/healthz": "whether sensors are kept current",
    "GET /v1/names": "the table of names that submit hooks keep",
    "POST /v1/tasks": "start a task on a held lease",
    "GET /v1/tasks": "the newest tasks of the caller or of a lease",
    "GET /v1/tasks/{id}": "one task",
    "GET /v1/tasks/{id}/result": "the vendor's result",
    "GET /v1/tasks/{id}/logs": "the vendor's log",
    "POST /v1/tasks/{id}/stop": "cancel a task if that is still possible",
    "GET /v1/plan": "the newest plan of each manager, without making one",
    "POST /v1/plan": "plan the cluster, and apply the plan if that is asked for",
    "POST /v1/claims": "lease outside a job what is open now",
    "GET /v1/claims": "open claims",
    "DELETE /v1/claims/{id}": "end a claim",
    "GET /v1/claims/{id}/environment": "the environment of a job that executes on the caller's claim; no keys",
    "POST /v1/credentials": "register the caller's own key at a vendor, for the caller's own runs",
    "GET /v1/credentials": "for which resources the caller has registered a key",
    "DELETE /v1/credentials/{name}": "forget the caller's key",
}


def _is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _answer(answer: object) -> str:
    if isinstance(answer, tuple):
        return f"`{answer[0]}`: a list of {_link(answer[1])}"
    return answer if isinstance(answer, str) else _link(answer)


def _link(model: Any) -> str:
    return f"[{model.__name__}](#{model.__name__.lower()})"


def _model(model: type[BaseModel]) -> Iterator[str]:
    own = model.__doc__ if model.__doc__ not in (wire.Call.__doc__, wire.Answer.__doc__) else ""
    yield f"\n## {model.__name__}\n"
    if own:
        yield " ".join(inspect.cleandoc(own).split()) + "\n"
    yield "| field | type | default |\n|---|---|---|"
    hints = get_type_hints(model)
    for name, info in model.model_fields.items():
        default = "required" if info.is_required() else _default(info.get_default(call_default_factory=True))
        yield f"| `{name}` | {_type(hints[name])} | {default} |"


def _default(value: object) -> str:
    if value is None or value == "" or isinstance(value, list | dict):
        return "none" if value is None else "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(hint: Any) -> str:
    """A type in plain words, the same on every version of Python."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "object"
    if _is_model(hint):
        return _link(hint)
    return {str: "text", int: "integer", float: "number", bool: "boolean"}[hint]

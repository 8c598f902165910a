"""The child side of a worker: constructs providers and answers one call at a time, until its pipe ends."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Observation
from qtandem.core.providers.base import EXTRAS, PROVIDERS, Capabilities, Provider, ProviderSpec, TaskReport
from qtandem.core.providers.frames import Channel, FrameError, confine, die_with_parent

METHODS = frozenset(
    {
        "observe", "acquire", "release", "find_session", "target", "task_start", "find_task", "task_status",
        "task_statuses", "task_usage", "task_send", "task_result", "task_logs", "task_stop", "metadata", "discover",
        "forward",
    }
)  # fmt: skip
ENTRY_POINTS = "qtandem.providers"
# States of many tasks are asked for one after the other for so long; the rest in the next call.
STATUSES_S = 4.0
# Errors that are about no task in particular.
_FOR_ALL = ("vendor-timeout", "not-available", "bad-credentials", "policy")


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel.claim_stdio()
    first = channel.read()
    if first is None:
        return
    confine(int(first[0]["memory"]))
    # The launcher names the one type that it has started this process for.
    status = _serve(channel, Providers(sys.argv[4] if len(sys.argv) > 4 else None))
    sys.stderr.flush()
    # Threads of an SDK must not keep a worker alive that nobody listens to.
    os._exit(status)


def load(type_: str) -> type[Provider]:
    """The provider class of a type: the in-tree table first, then entry points; raises `no-provider`."""
    path = PROVIDERS.get(type_) or _entry_point(type_)
    if path is None:
        raise QtandemError("no-provider", f"There is no provider for the type {type_!r}")
    module, _, name = path.partition(":")
    try:
        found: type[Provider] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        extra = EXTRAS.get(type_)
        remedy = f"Beside the daemon: pip install 'qtandem[{extra}]'" if extra else None
        what = f"needs qtandem's extra {extra}, which is not installed" if extra else "cannot be loaded"
        raise QtandemError(
            "no-provider", f"The provider for {type_!r} {what}", remedy=remedy, cause=str(error)
        ) from error
    return found


class Providers:
    """The providers of this process, by resource; of the type `only`, if it is given."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self._providers: dict[str, Provider] = {}

    def has(self, resource: str | None) -> bool:
        return resource in self._providers

    def call(self, message: dict[str, Any]) -> object:
        """What the called method returns; a message with a `spec` (re)opens its resource first."""
        if message.get("spec") is not None:
            self._open(ProviderSpec(**message["spec"]))
        method = message["method"]
        if method == "ping":
            return None
        provider = self._providers[message["resource"]]
        if method == "capabilities":
            return provider.capabilities
        if method not in METHODS:
            raise QtandemError("unsupported", f"Providers have no method {method!r}")
        if method == "task_statuses":
            return _statuses(provider, *message["args"])
        if method == "task_send" and not hasattr(provider, method):
            method = "task_start"
        if not hasattr(provider, method):
            raise QtandemError("unsupported", f"{type(provider).__name__} cannot {method}")
        return getattr(provider, method)(*message["args"])

    def _open(self, spec: ProviderSpec) -> None:
        self._providers.pop(spec.resource, None)
        if self._only not in (None, spec.type):
            raise QtandemError("unsupported", f"This process serves {self._only} only, not {spec.type}")
        # The protocol says nothing of constructors.
        make: Any = load(spec.type)
        self._providers[spec.resource] = make(spec)

    def busy(self) -> bool:
        """Whether a provider works in the background, so that this process should not be chosen to end."""
        return any(getattr(provider, "busy", False) for provider in self._providers.values())


def _serve(channel: Channel, providers: Providers) -> int:
    while True:
        try:
            request = channel.read()
        except FrameError:
            return 1
        if request is None:
            return 0
        try:
            answer, text = _answer(providers, request[0])
            answer |= {"busy": providers.busy(), "opened": providers.has(request[0].get("resource"))}
            channel.write(answer, text)
        except BrokenPipeError:
            return 0
        except (MemoryError, FrameError) as error:
            channel.write({"ok": False, "last": True, "error": _too_big(error)})
            return 3


def _answer(providers: Providers, message: dict[str, Any]) -> tuple[dict[str, object], str | None]:
    try:
        value = providers.call(message)
    except QtandemError as error:
        return {"ok": False, "error": error.to_wire()}, None
    except MemoryError:
        raise
    except Exception as error:
        return {"ok": False, "error": _fault(error).to_wire()}, None
    if isinstance(value, str):
        return {"ok": True}, value
    return {"ok": True, "value": _plain(value)}, None


def _statuses(provider: Provider, tasks: Sequence[str], others: Sequence[str] = ()) -> dict[str, dict[str, object]]:
    """Reports or errors on the tasks, in one answer where the vendor can; on fewer than asked for if it is slow.

    Of the others, on those that this one answer says have ended.
    """
    ends = time.monotonic() + STATUSES_S
    listed = _listed(provider, [*tasks, *others])
    answers: dict[str, dict[str, object]] = {
        task: {"report": asdict(listed[task])} for task in others if task in listed and listed[task].state.final
    }
    for count, task in enumerate(tasks):
        if count and time.monotonic() > ends:
            break
        try:
            answers[task] = {"report": asdict(listed.get(task) or provider.task_status(task))}
        except QtandemError as error:
            answers[task] = {"error": error.to_wire()}
        except MemoryError:
            raise
        except Exception as error:
            # What is wrong with one task must not hide those of other users.
            answers[task] = {"error": _fault(error).to_wire()}
    return answers


def _listed(provider: Provider, tasks: Sequence[str]) -> Mapping[str, TaskReport]:
    """What the vendor tells in one answer; nothing where one of the tasks spoils it, so that each is asked for."""
    if not hasattr(provider, "task_statuses"):
        return {}
    try:
        found: Mapping[str, TaskReport] = provider.task_statuses(tasks)
    except QtandemError as error:
        if error.code in _FOR_ALL or error.retry_after is not None:
            raise
        return {}
    except MemoryError:
        raise
    except Exception as error:
        _fault(error)
        return {}
    return found


def _fault(error: Exception) -> QtandemError:
    """Anything but our own errors is the provider's fault, says the port; the trace goes to the bounded stderr."""
    traceback.print_exception(error)
    return QtandemError("vendor-error", "The provider failed", cause=f"{type(error).__name__}: {error}")


def _plain(value: object) -> object:
    if isinstance(value, Observation):
        return value.model_dump(mode="json")
    if isinstance(value, TaskReport):
        return asdict(value)
    if isinstance(value, Capabilities):
        return asdict(value) | {"payloads": sorted(value.payloads)}
    return value


def _too_big(error: Exception) -> dict[str, object]:
    why = "ran out of memory" if isinstance(error, MemoryError) else f"answered too much: {error}"
    return QtandemError("vendor-error", f"The provider {why}").to_wire()


def _entry_point(type_: str) -> str | None:
    from importlib.metadata import entry_points

    found = entry_points(group=ENTRY_POINTS, name=type_)
    return next((point.value for point in found), None)

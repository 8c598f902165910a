"""The qrmi library's resource, with its many errors as ours.

The library gives a failure as a sentence, whose forms are read here. It prints whole payloads, panics on answers
that it did not expect, and has no time-outs; the worker's deadline holds whatever it does.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import qrmi

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import TaskState
from qtandem.core.providers.classify import Call, failed, unanswered, unreadable

_STATUS = re.compile(r"(?:status code|Status:|response body:) (\d{3})[^,{]*(?:, Fail )?(.*)", re.DOTALL)
_NO_TOKEN = re.compile(r"Token request failed: (\d{3})[^{]*(.*)", re.DOTALL)
_REFUSED = {400, 401, 403}
_BROKEN = re.compile(r"missing field|invalid type|error in serde|invalid JSON|expected .* at line|EOF while parsing")
_UNSENT = re.compile(r"error sending request|error in reqwest|connection (?:closed|reset)", re.IGNORECASE)
_LATE = re.compile(r"timed? ?out", re.IGNORECASE)
# Errors of these kinds leave no doubt that nothing was made at the vendor.
_NOTHING_MADE = frozenset(
    {"bad-payload", "bad-credentials", "bad-config", "policy", "not-available", "unsupported", "too-large"}
)
_STATES = {
    "Queued": TaskState.QUEUED,
    "Running": TaskState.RUNNING,
    "Completed": TaskState.COMPLETED,
    "Failed": TaskState.FAILED,
    "Cancelled": TaskState.CANCELLED,
}


class Wheel:
    """One resource of the library, made from settings and never from the environment."""

    def __init__(self, vendor: str, kind: str, name: str, config: Mapping[str, str]) -> None:
        type_ = getattr(qrmi.ResourceType, kind)
        call = Call(vendor, "be set up")
        self._resource = _translated(call, lambda: qrmi.QuantumResource.from_config(name, type_, dict(config)))
        self.vendor = vendor

    def acquire(self) -> str:
        return str(self._ask(Call(self.vendor, "open a session"), "acquire"))

    def release(self, token: str) -> None:
        self._ask(Call(self.vendor, "close a session"), "release", token)

    def target(self, missing: str = "bad-config") -> str:
        """`missing` is the code for a part that is not there."""
        call = Call(self.vendor, "describe the device", missing=missing)
        return str(self._ask(call, "target").value)

    def start(self, payload: Any) -> str:
        call = Call(self.vendor, "start a task", submits=True, missing="bad-config", conflict="policy")
        return str(self._ask(call, "task_start", payload))

    def status(self, task: str) -> TaskState:
        call = Call(self.vendor, "tell the state of a task")
        word = str(self._ask(call, "task_status", task)).rpartition(".")[2]
        if word not in _STATES:
            raise unreadable(call, f"the state is {word[:40]!r}")
        return _STATES[word]

    def result(self, task: str) -> str:
        return str(self._ask(Call(self.vendor, "give a result"), "task_result", task).value)

    def logs(self, task: str) -> str:
        return str(self._ask(Call(self.vendor, "give the log of a task"), "task_logs", task))

    def stop(self, task: str) -> None:
        self._ask(Call(self.vendor, "stop a task", conflict="task-failed"), "task_stop", task)

    def _ask(self, call: Call, method: str, *args: Any) -> Any:
        return _translated(call, lambda: getattr(self._resource, method)(*args))


def nothing_made(error: QtandemError) -> bool:
    """Whether a failed submission surely made nothing."""
    return error.code in _NOTHING_MADE


def use_munge(library: str) -> None:
    """Load MUNGE's library from a place of its own, where the qrmi library finds it by its name."""
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise QtandemError("bad-config", f"munge_library = {library!r} cannot be loaded", cause=str(error)) from error


def _translated(call: Call, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except qrmi.QrmiError as error:
        raise _read(call, error) from error
    except BaseException as error:
        # A panic of the library is no Exception, so that nobody takes it for an error that can be handled.
        if type(error).__name__ != "PanicException":
            raise
        raise unreadable(call, f"the qrmi library gave up: {error}") from None


def _read(call: Call, error: Exception) -> QtandemError:
    words, kind = str(error), type(error).__name__
    body = words[words.index("{") :] if "{" in words else words.partition(": ")[2] or words
    match kind:
        case "UnsupportedPayloadError":
            # Its words are the whole payload.
            return QtandemError("bad-payload", f"{call.vendor} does not take this kind of payload")
        case "UnsupportedFunctionError":
            return QtandemError("unsupported", f"{call.vendor} cannot {call.what}")
        case "EnvVarNotSetError" | "ConfigError" | "UnsupportedResourceTypeError":
            return QtandemError("bad-config", f"{call.vendor} cannot {call.what}", cause=words)
        case "TaskNotReadyError":
            return QtandemError("task-not-ready", "The result is not there yet", cause=words, retry_after=1.0)
        case "AuthenticationFailedError":
            return failed(call, 401, body)
        case "ResourceNotFoundError":
            return failed(call, 404, body)
        case "TaskNotFoundError":
            return failed(replace(call, missing="no-such-run"), 404, body)
        case "InvalidInputError" if not words.startswith("invalid JSON"):
            return failed(call, 400, body)
    return _sentence(call, words)


def _sentence(call: Call, words: str) -> QtandemError:
    """A failure of which the library knows no more than what it says."""
    token = _NO_TOKEN.search(words)
    if token:
        # Whatever a token service calls it, it does not know the credential.
        status = int(token[1])
        return failed(replace(call, what="give an access token"), 401 if status in _REFUSED else status, token[2])
    if "auth token is missing" in words:
        return QtandemError("bad-credentials", f"{call.vendor} did not {call.what}", cause=words)
    found = _STATUS.search(words)
    if found:
        return failed(call, int(found[1]), found[2].strip())
    if "munge" in words.lower():
        return QtandemError(
            "bad-config",
            f"{call.vendor} wants a credential of MUNGE, and there is none",
            remedy="Install libmunge and start munged on the daemon's host; munge_library names one elsewhere.",
            cause=words,
        )
    if _UNSENT.search(words):
        return unanswered(call, RuntimeError(words), timeout=_LATE.search(words) is not None)
    if _BROKEN.search(words):
        return unreadable(call, words)
    return QtandemError("vendor-error", f"{call.vendor} did not {call.what}", cause=words[:400])

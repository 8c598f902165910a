"""QRMI's exceptions, by QRMI's names, with the words of our own errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from qtandem.core.errors import QtandemError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class QrmiError(RuntimeError):
    """Base of all; `code`, `remedy` and `retryable` are those of the `QtandemError` behind it, if any.

    From `task_start`, any subclass means that no task was created; the bare class leaves that open.
    """

    def __init__(self, message: str = "", *, origin: QtandemError | None = None) -> None:
        self.code = origin.code if origin else None
        self.remedy = origin.remedy if origin else None
        self.retryable = origin.retryable if origin else False
        super().__init__(message)


class EnvVarNotSetError(QrmiError):
    """A variable of the job's environment is missing."""


class ConfigError(QrmiError):
    """The configuration, or the job's environment, contradicts itself."""


class UnsupportedResourceTypeError(QrmiError):
    """No provider for the resource's type."""


class UnsupportedPayloadError(QrmiError):
    """The resource does not take this kind of payload."""


class UnsupportedFunctionError(QrmiError):
    """The vendor has no such function."""


class TaskNotReadyError(QrmiError):
    """The task has no result yet."""


class InvalidInputError(QrmiError):
    """The payload or an argument is wrong."""


class ResourceNotFoundError(QrmiError):
    """No such resource."""


class TaskNotFoundError(QrmiError):
    """No such task."""


class AuthenticationFailedError(QrmiError):
    """The vendor refused the credential."""


_BY_CODE: dict[str, type[QrmiError]] = {
    "bad-request": InvalidInputError,
    "too-large": InvalidInputError,
    "bad-payload": UnsupportedPayloadError,
    "bad-config": ConfigError,
    "no-provider": UnsupportedResourceTypeError,
    "unsupported": UnsupportedFunctionError,
    "unknown-resource": ResourceNotFoundError,
    "task-not-ready": TaskNotReadyError,
    "bad-credentials": AuthenticationFailedError,
}


def from_qtandem(error: QtandemError, *, about_task: bool = False) -> QrmiError:
    """The QRMI exception for one of ours; `about_task` for a call that named a task."""
    kind = _BY_CODE.get(error.code, QrmiError)
    if about_task and error.code == "no-such-run":
        kind = TaskNotFoundError
    cause = f" ({error.cause})" if error.cause else ""
    return kind(f"{error.message}{cause}", origin=error)


@contextmanager
def as_qrmi(*, about_task: bool = False) -> Iterator[None]:
    """Decorator or block: `QtandemError` leaves it as `QrmiError`."""
    try:
        yield
    except QtandemError as error:
        raise from_qtandem(error, about_task=about_task) from error


def async_as_qrmi(
    *, about_task: bool = False
) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
    """The same for coroutine functions."""

    def decorate(function: Callable[_P, Awaitable[_R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
        @wraps(function)
        async def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with as_qrmi(about_task=about_task):
                return await function(*args, **kwargs)

        return call

    return decorate

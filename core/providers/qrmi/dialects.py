"""What differs from vendor to vendor below the qrmi library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.base import TaskReport
from qtandem.core.providers.combine import Signals
from qtandem.core.providers.qrmi.wheel import Wheel


class Dialect(Protocol):
    """One vendor: made from the settings of a resource, it opens nothing before it is asked."""

    wheel: Wheel

    def signals(self) -> Signals:
        """Status and queue; raises `policy` where the account may not use the device."""

    def calibration(self) -> Calibration | None: ...

    def payload(self, payload: Mapping[str, object], key: str) -> Any:
        """The library's payload; raises `bad-payload`."""

    def report(self, task: str) -> TaskReport: ...

    def stop(self, task: str) -> None:
        """Cancel a task that has not ended."""

    def result(self, task: str) -> str:
        """The result of a completed task, JSON text."""

    def logs(self, task: str) -> str: ...

    def metadata(self) -> dict[str, str]: ...


class Keys:
    """The settings of a resource by QRMI's names."""

    def __init__(self, settings: Mapping[str, str], *required: str) -> None:
        self._settings = settings
        for key in required:
            if not self.get(key):
                raise QtandemError("bad-config", f"{key} is missing")

    def get(self, key: str, default: str = "") -> str:
        return self._settings.get(key, "").strip() or default

    def only(self, *names: str) -> dict[str, str]:
        """Those that are set."""
        return {name: self.get(name) for name in names if self.get(name)}


def text(payload: Mapping[str, object], key: str) -> str:
    """JSON text of a field that users give as text or as an object; raises `bad-payload`."""
    value = payload.get(key)
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    if not isinstance(value, str):
        raise QtandemError("bad-payload", f"{key} is neither JSON nor its text")
    try:
        json.loads(value)
    except ValueError as error:
        raise QtandemError("bad-payload", f"{key} is not JSON", cause=str(error)) from error
    return value


def must_be(payload: Mapping[str, object], kind: str, vendor: str) -> None:
    """Raises `bad-payload` for another kind."""
    if payload.get("kind") != kind:
        raise QtandemError("bad-payload", f"{vendor} takes {kind}, not {payload.get('kind')!r}")

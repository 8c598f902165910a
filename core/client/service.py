"""QRMI's ways to find resources: those of the job, and those of one type that a filter picks."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from qtandem.core.client.calls import as_rows
from qtandem.core.client.environment import get_job_qpu_resources_and_types
from qtandem.core.client.errors import InvalidInputError, QrmiError, as_qrmi
from qtandem.core.client.resource import QuantumResource
from qtandem.core.client.transport import Daemon
from qtandem.core.client.types import ResourceType


class QRMIService:
    """The QPUs of this job that are online."""

    def __init__(self) -> None:
        names, types = get_job_qpu_resources_and_types()
        self._resources: dict[str, QuantumResource] = {}
        for name, kind in zip(names, types, strict=True):
            with suppress(QrmiError):
                resource = QuantumResource(name, kind)
                if resource.is_accessible():
                    self._resources[name] = resource

    def resources(self) -> list[QuantumResource]:
        return list(self._resources.values())

    def resource(self, resource_id: str) -> QuantumResource | None:
        return self._resources.get(resource_id)


class ResourceProvider:
    """The site's resources of one type; keys and endpoints in `environment` are the daemon's affair."""

    def __init__(
        self,
        resource_type: ResourceType | str,
        environment: Mapping[str, str] | None = None,  # noqa: ARG002
        *,
        daemon: Daemon | None = None,
    ) -> None:
        self._type = ResourceType.of(resource_type)
        self._daemon = daemon or Daemon()

    @as_qrmi()
    def resources(self, filters: str | None = None) -> list[QuantumResource]:
        """Those that QRMI's filter `k=v&k=v` picks, shortest queue first; simulators only when it names them.

        Raises InvalidInputError for a filter that cannot be read.
        """
        accepts = _filter(filters or "", self._type)
        rows = [row for row in as_rows(self._daemon.get("resources"), "resources") if row["type"] == self._type.text]
        picked = sorted((row for row in rows if accepts(row)), key=_queue)
        return [QuantumResource(str(row["name"]), self._type, daemon=self._daemon) for row in picked]

    def least_busy(self, filters: str | None = None) -> QuantumResource | None:
        return next(iter(self.resources(filters)), None)


def _queue(row: Mapping[str, Any]) -> float:
    return float("inf") if row["queue"] is None else float(row["queue"])


def _filter(text: str, kind: ResourceType) -> Callable[[Mapping[str, Any]], bool]:
    wanted: dict[str, str] = {}
    for part in filter(None, text.split("&")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InvalidInputError(f"{part!r} in the filter is not key=value")
        wanted[key] = value
    qubits = _number(wanted.get("num_qubits", "0"))
    simulator = wanted.get("is_simulator", "true" if kind is ResourceType.Simulator else "false")
    if simulator not in ("true", "false"):
        raise InvalidInputError(f"is_simulator={simulator} in the filter: true or false is needed")
    if wanted.get("status", "online") != "online":
        raise InvalidInputError("status in the filter can be online only")

    def accepts(row: Mapping[str, Any]) -> bool:
        return (
            (row["qubits"] or 0) >= qubits
            and fnmatch.fnmatchcase(str(row["name"]), wanted.get("name", "*"))
            and row["simulator"] is (simulator == "true")
            and (row["availability"] == "online" or "status" not in wanted)
        )

    return accepts


def _number(text: str) -> int:
    if not text.isdigit():
        raise InvalidInputError(f"num_qubits={text} in the filter: a whole number is needed")
    return int(text)


class _CallbackHandler(logging.Handler):
    def __init__(self, callback: Callable[[str, str, str], object]) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        self._callback(record.levelname, record.name, record.getMessage())


def set_log_callback(callback: Callable[[str, str, str], object] | None) -> None:
    """Have what the client logs sent to `callback(level, target, message)`; None ends that."""
    logger = logging.getLogger("qtandem.client")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _CallbackHandler)]:
        logger.removeHandler(handler)
    if callback is not None:
        logger.addHandler(_CallbackHandler(callback))

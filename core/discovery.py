"""From what a vendor lists to resources of the catalog. Pure: the listing comes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qtandem.core import requests
from qtandem.core.errors import QtandemError
from qtandem.core.requests import NAME, RESERVED, Constraint, Value

if TYPE_CHECKING:
    from qtandem.core.resources import Resource

# What one device may be asked for; the rest changes with time, and a resource is no less one while it is busy.
KEYS = ("name", "qubits", "shots", "simulator")


@dataclass(frozen=True, slots=True)
class Device:
    """One device as its vendor lists it; None is what it does not say."""

    name: str
    qubits: int | None = None
    simulator: bool | None = None
    max_shots: int | None = None
    queue: int | None = None
    status: str = ""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Device | None:
        """None for a row without a name that can be used."""
        name, simulator, status = row.get("name"), row.get("simulator"), row.get("status")
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
            return None
        return cls(
            name,
            _count(row.get("qubits")),
            simulator if isinstance(simulator, bool) else None,
            _count(row.get("max_shots")),
            _count(row.get("queue")),
            status[:40] if isinstance(status, str) else "",
        )


def parsed(filter: str) -> tuple[Constraint, ...]:
    """The conditions of a dynamic resource's filter, ours or QRMI's; raises `bad-request`.

    `status=online` changes nothing: a device that is offline stays a resource, which is closed.
    """
    text = filter.strip().lstrip(":&")
    [item] = requests.parse(f"any:{text}" if text else "any").items
    wrong = [constraint.key for constraint in item.constraints if constraint.key not in KEYS]
    if wrong or item.by or item.slots != 1:
        raise QtandemError("bad-request", f"The filter {filter!r} may name {', '.join(KEYS)} only")
    return item.constraints


def needs_details(filter: str) -> bool:
    """Whether the filter asks for what takes a call for each device."""
    return any(constraint.key == "shots" for constraint in parsed(filter))


def refusal(filter: str, device: Device) -> str:
    """Why the filter does not take a device; empty if it does. What the vendor does not say is not taken."""
    constraints = parsed(filter)
    values: dict[str, Value | None] = {
        "name": device.name,
        "qubits": device.qubits,
        "shots": device.max_shots,
        "simulator": device.simulator,
    }
    for constraint in constraints:
        if not constraint.met_by(values[constraint.key]):
            have = values[constraint.key]
            return f"{constraint.key} is {'not known' if have is None else have}, not {constraint}"
    if device.simulator and not any(constraint.key == "simulator" for constraint in constraints):
        return "is a simulator, which the filter does not name"
    return ""


def devices(rows: Iterable[Mapping[str, Any]]) -> list[Device]:
    """The devices of a listing, each name once, in the vendor's order."""
    found = (Device.read(row) for row in rows)
    return list({device.name: device for device in found if device is not None}.values())


def made_from(template: Resource, device: Device, native: str) -> Resource:
    """The resource of one device: as its template, but for what is the device's own."""

    return replace(
        template,
        name=device.name,
        native=native,
        qubits=device.qubits or template.qubits,
        max_shots=device.max_shots or template.max_shots,
        simulator=bool(device.simulator),
        settings={**template.settings, "backend": device.name},
        template=template.name,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

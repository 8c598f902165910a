"""The settings of a Braket resource."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import ProviderSpec
from qtandem.core.providers.calibrations import unix_time

LOCAL = "local:"
# Where Braket is; a device that is named without a region is looked for in each.
REGIONS = ("us-east-1", "us-west-1", "us-west-2", "eu-west-2", "eu-north-1")
DEFAULT_PREFIX = "qtandem"
_ARN = re.compile(r"arn:aws[a-z-]*:braket:(?P<region>[a-z0-9-]*):[0-9]*:device/\S+")
_RESERVATION = re.compile(r"arn:aws[a-z-]*:braket:\S+:reservation/\S+")


@dataclass(frozen=True, slots=True)
class Keys:
    """Whose account is used. Without a key pair, the profile or the host's own role is."""

    access: str = ""
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Time of a device that AWS has set aside; `start` and `end` (Unix) where the site has told them."""

    arn: str
    start: float | None = None
    end: float | None = None

    def running(self, now: float) -> bool | None:
        """Whether it is under way; None if its times are not known."""
        if self.start is None or self.end is None:
            return None
        return self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class Settings:
    """`device` is an ARN, a device's name, or `local:` and the name of a simulator of the SDK."""

    device: str
    region: str
    bucket: str
    prefix: str
    keys: Keys
    reservation: Reservation | None = None
    endpoint: str | None = None
    s3_endpoint: str | None = None
    task_price: float | None = None

    @classmethod
    def read(cls, spec: ProviderSpec) -> Settings:
        """Raises `bad-config` with the name of the key."""
        values = spec.settings
        device = values.get("device", "").strip() or spec.resource
        if device.startswith("arn:") and not _ARN.fullmatch(device):
            raise _wrong("device", device, "the ARN of a Braket device")
        pair = Keys(
            values.get("aws_access_key_id", "").strip(),
            values.get("aws_secret_access_key", "").strip(),
            values.get("aws_session_token", "").strip(),
            values.get("profile", "").strip(),
        )
        if bool(pair.access) != bool(pair.secret):
            raise QtandemError("bad-config", "aws_access_key_id and aws_secret_access_key go together")
        return cls(
            device=device,
            region=values.get("region", "").strip() or region_of(device),
            bucket=values.get("s3_bucket", "").strip(),
            prefix=values.get("s3_prefix", "").strip("/ ") or DEFAULT_PREFIX,
            keys=pair,
            reservation=_reservation(values),
            endpoint=values.get("endpoint") or None,
            s3_endpoint=values.get("s3_endpoint") or None,
            task_price=_price(values),
        )

    @property
    def local(self) -> bool:
        return self.device.startswith(LOCAL)

    @property
    def on_demand_simulator(self) -> bool:
        return ":device/quantum-simulator/" in self.device


def region_of(arn: str) -> str:
    """The region that an ARN names; "" for none, as simulators' and some devices' have."""
    found = _ARN.fullmatch(arn)
    return found["region"] if found else ""


def _reservation(values: Mapping[str, str]) -> Reservation | None:
    arn = values.get("reservation_arn", "").strip()
    if not arn:
        return None
    if not _RESERVATION.fullmatch(arn):
        raise _wrong("reservation_arn", arn, "the ARN of a Braket reservation")
    start, end = _time(values, "reservation_start"), _time(values, "reservation_end")
    if (start is None) != (end is None) or (start is not None and end is not None and end <= start):
        raise QtandemError("bad-config", "reservation_start and reservation_end go together, in this order")
    return Reservation(arn, start, end)


def _time(values: Mapping[str, str], key: str) -> float | None:
    text = values.get(key, "").strip()
    if not text:
        return None
    at = unix_time(text)
    if at is None:
        raise _wrong(key, text, f"a time such as {datetime(2026, 1, 31, 9, 30).isoformat()}Z")
    return at


def _price(values: Mapping[str, str]) -> float | None:
    text = values.get("task_price", "").strip()
    if not text:
        return None
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e6:
        raise _wrong("task_price", text, "a price in US dollars")
    return price


def _wrong(key: str, value: str, what: str) -> QtandemError:
    return QtandemError("bad-config", f"{key} = {value!r} is not {what}")

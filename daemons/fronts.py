"""How programs that speak a vendor's own protocol are led to the proxy, vendor by vendor.

Each front makes the variables that name the proxy in place of the vendor, finds the lease's token in what a program
sends, and answers in the vendor's place what needs no vendor: access tokens, and what is public.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.leases.model import Lease
from qtandem.core.resources import Resource

TOKEN_LIFE_S = 3600
FORM_BYTES = 4096
_MOST_TOKEN = 2048
# In place of the site's: libraries want one, and only send it as a header.
CRN = "crn:v1:bluemix:public:quantum-computing:us-east:a/qtandem:qtandem::"


class Front(Protocol):
    def variables(self, resource: Resource, lease: Lease, base: str, token: str) -> dict[str, str]:
        """Without the resource's name before them; none where this resource cannot be led here."""

    def token(self, authorization: str) -> str:
        """The lease's token in a header; empty for anything else."""

    def path(self, tail: str) -> str:
        """The path at the vendor; raises `not-allowed` for what is never passed on."""

    def key(self, method: str, tail: str, form: str) -> str | None:
        """The key in a call for an access token; None for any other call."""

    def public(self, method: str, tail: str, seen: Availability) -> dict[str, object] | None:
        """The answer to a call that needs no credential; None for any other call."""


@dataclass(frozen=True, slots=True)
class Ibm:
    """IBM's compute service, and Cloud IAM before it."""

    prefix: str

    def variables(self, resource: Resource, lease: Lease, base: str, token: str) -> dict[str, str]:
        if lease.token is None:
            return {}
        # Settings that a program may see as they are.
        named = [self.prefix + key for key in ("SESSION_MODE", "SESSION_MAX_TTL", "TIMEOUT_SECONDS")]
        shown = {key: resource.settings[key] for key in named if key in resource.settings}
        return shown | {
            f"{self.prefix}ENDPOINT": f"{base}/v1",
            f"{self.prefix}IAM_ENDPOINT": base,
            f"{self.prefix}IAM_APIKEY": token,
            f"{self.prefix}SERVICE_CRN": CRN,
            # As in direct mode: the program names the session itself.
            "QRMI_JOB_ACQUISITION_TOKEN": lease.token,
        }

    def token(self, authorization: str) -> str:
        return undressed(_bearer(authorization))

    def path(self, tail: str) -> str:
        head, _, path = tail.partition("/")
        if head != "v1" or not path:
            raise QtandemError("not-allowed", "Only version 1 of the vendor's interface is passed on")
        return path

    def key(self, method: str, tail: str, form: str) -> str | None:
        return _field(form, "apikey") if (method, tail) == ("POST", "identity/token") else None

    def public(self, method: str, tail: str, seen: Availability) -> dict[str, object] | None:  # noqa: ARG002
        return None


class Iqm:
    """IQM Server, whose programs send their token as it is."""

    def variables(self, resource: Resource, lease: Lease, base: str, token: str) -> dict[str, str]:  # noqa: ARG002
        return {"QRMI_IQM_ISA_ENDPOINT": base, "QRMI_IQM_ISA_TOKEN": token}

    def token(self, authorization: str) -> str:
        return _bearer(authorization)

    def path(self, tail: str) -> str:
        return tail

    def key(self, method: str, tail: str, form: str) -> str | None:  # noqa: ARG002
        return None

    def public(self, method: str, tail: str, seen: Availability) -> dict[str, object] | None:  # noqa: ARG002
        return None


class Felis(Iqm):
    """Felis, whose key is a user and a password."""

    def variables(self, resource: Resource, lease: Lease, base: str, token: str) -> dict[str, str]:  # noqa: ARG002
        key = base64.b64encode(f"qtandem:{token}".encode()).decode()
        return {"QRMI_AB_FELIS_BASE_ENDPOINT": base, "QRMI_AB_FELIS_API_KEY": key}

    def token(self, authorization: str) -> str:
        kind, _, sent = authorization.partition(" ")
        if kind.lower() != "basic" or len(sent) > _MOST_TOKEN:
            return ""
        return _decoded(sent, "+/").partition(":")[2]


class Pasqal(Iqm):
    """Pasqal's cloud, and its token service before it. Its list of devices is read without a credential."""

    _PREFIX = "QRMI_PASQAL_CLOUD_"
    _DEVICES = "core-fast/api/v1/devices"

    def variables(self, resource: Resource, lease: Lease, base: str, token: str) -> dict[str, str]:  # noqa: ARG002
        if not any(resource.settings.get(self._PREFIX + key) for key in ("CLIENT_SECRET", "AUTH_TOKEN")):
            return {}
        led = {
            "BASE_URL": base,
            "AUTH_ENDPOINT": f"{base}/oauth/token",
            "PROJECT_ID": "qtandem",
            "CLIENT_ID": "qtandem",
            "CLIENT_SECRET": token,
        }
        return {self._PREFIX + key: value for key, value in led.items()}

    def token(self, authorization: str) -> str:
        return undressed(_bearer(authorization))

    def key(self, method: str, tail: str, form: str) -> str | None:
        return _field(form, "client_secret") if (method, tail) == ("POST", "oauth/token") else None

    def public(self, method: str, tail: str, seen: Availability) -> dict[str, object] | None:
        if (method, tail) != ("GET", self._DEVICES):
            return None
        up = seen is Availability.ONLINE
        return {"data": [{"status": "UP" if up else "DOWN", "availability": "ACTIVE" if up else "INACTIVE"}]}


FRONTS: Mapping[str, Front] = {
    "ibm-quantum-compute-service": Ibm("QRMI_IBM_QCS_"),
    "qiskit-runtime-service": Ibm("QRMI_IBM_QRS_"),
    "iqm-server": Iqm(),
    "alice-bob-felis": Felis(),
    "pasqal-cloud": Pasqal(),
}


def dressed(token: str, now: int) -> dict[str, object]:
    """The lease's token as an access token, as token services give it."""
    claims = {"iat": now, "exp": now + TOKEN_LIFE_S, "qtandem": token}
    access = ".".join(_b64(part) for part in ({"alg": "none", "typ": "JWT"}, claims, {}))
    answer = {"access_token": access, "refresh_token": "not_supported", "token_type": "Bearer"}
    return answer | {"expires_in": TOKEN_LIFE_S, "expiration": now + TOKEN_LIFE_S, "scope": "ibm openid"}


def undressed(access: str) -> str:
    """The lease's token in an access token of ours; empty for anything else, however it is made to hurt a parser."""
    parts = access.split(".")
    if len(parts) != 3:
        return ""
    try:
        claims = json.loads(_decoded(parts[1], "-_"))
    except (ValueError, RecursionError):
        return ""
    token = claims.get("qtandem") if isinstance(claims, dict) else None
    return token if isinstance(token, str) else ""


def _bearer(authorization: str) -> str:
    kind, _, sent = authorization.partition(" ")
    return sent if kind.lower() == "bearer" and len(sent) <= _MOST_TOKEN else ""


def _field(form: str, name: str) -> str:
    try:
        return parse_qs(form, max_num_fields=10).get(name, [""])[0]
    except ValueError:
        return ""


def _decoded(text: str, signs: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9+/_\-]*=*", text):
        return ""
    try:
        raw = base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), signs.encode(), validate=True)
        return raw.decode()
    except (binascii.Error, ValueError):
        return ""


def _b64(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

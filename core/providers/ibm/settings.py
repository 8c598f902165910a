"""The settings of IBM's resources: QRMI's keys, as `qrmi_config.json` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import ProviderSpec

DEDICATED, BATCH = "dedicated", "batch"
MAX_TTL_S = 28_800
# Presigned URLs last a week at most, and QRMI uses one number for both.
MAX_TIMEOUT_S = 604_800
DEFAULT_TIMEOUT_S = 86_400
JOB_TIMEOUT = "QRMI_JOB_TIMEOUT_SECONDS"


@dataclass(frozen=True, slots=True)
class Account:
    """Where the interface and the token service are, and whose key is used."""

    endpoint: str
    iam_endpoint: str
    crn: str
    apikey: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Object storage. `vendor_endpoint` is its address as IBM's side sees it."""

    endpoint: str
    vendor_endpoint: str
    name: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)


class Settings:
    """Reads the keys that begin with a prefix; raises `bad-config` with the key's full name."""

    def __init__(self, spec: ProviderSpec, prefix: str) -> None:
        self._values: Mapping[str, str] = spec.settings
        self._prefix = prefix
        self.backend = spec.settings.get("backend") or spec.resource

    def account(self) -> Account:
        return Account(
            endpoint=self._required("ENDPOINT").rstrip("/"),
            iam_endpoint=self._required("IAM_ENDPOINT").rstrip("/"),
            crn=self._required("SERVICE_CRN"),
            apikey=self._required("IAM_APIKEY"),
        )

    def session_mode(self) -> str:
        mode = self._get("SESSION_MODE").lower() or DEDICATED
        if mode not in (DEDICATED, BATCH):
            raise self._wrong("SESSION_MODE", f"{mode!r} is neither {DEDICATED} nor {BATCH}")
        return mode

    def session_ttl_s(self) -> int:
        return self._number("SESSION_MAX_TTL") or MAX_TTL_S

    def job_limit_s(self) -> int | None:
        """The most seconds of one job, if the site sets it."""
        return self._number("TIMEOUT_SECONDS") or self._number(JOB_TIMEOUT, prefixed=False)

    def bucket(self) -> Bucket | None:
        """None unless all five keys are there; QRMI works without storage then, except for tasks."""
        keys = ("S3_ENDPOINT", "S3_BUCKET", "S3_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        endpoint, name, region, access, secret = (self._get(key) for key in keys)
        if not all((endpoint, name, region, access, secret)):
            return None
        return Bucket(endpoint, self._get("S3_ENDPOINT_FOR_QSAPI") or endpoint, name, region, access, secret)

    def missing_for_bucket(self) -> list[str]:
        keys = ("S3_ENDPOINT", "S3_BUCKET", "S3_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        return [self._prefix + key for key in keys if not self._get(key)]

    def _get(self, key: str) -> str:
        return self._values.get(self._prefix + key, "").strip()

    def _required(self, key: str) -> str:
        value = self._get(key)
        if not value:
            raise self._wrong(key, "is missing")
        return value

    def _number(self, key: str, *, prefixed: bool = True) -> int | None:
        name = self._prefix + key if prefixed else key
        text = self._values.get(name, "").strip()
        if not text:
            return None
        try:
            value = int(text)
        except ValueError:
            value = 0
        if value < 1:
            raise QtandemError("bad-config", f"{name} = {text!r} is not a whole number from 1 up")
        return value

    def _wrong(self, key: str, how: str) -> QtandemError:
        return QtandemError("bad-config", f"{self._prefix}{key} {how}")

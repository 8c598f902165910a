"""The site's bucket, through which a Quantum System takes inputs and gives results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import boto3
import botocore.exceptions
from botocore.config import Config

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call, Meaning, failed, unanswered
from qtandem.core.providers.ibm.http import TIMEOUT_S
from qtandem.core.providers.ibm.settings import MAX_TIMEOUT_S, Bucket

T = TypeVar("T")
VENDOR = "The object storage"
_ABSENT = {"NoSuchKey", "404", "NotFound"}
_MEANINGS = {"NoSuchBucket": Meaning("bad-config", "Mend QRMI_IBM_QS_S3_BUCKET, or make the bucket.")} | dict.fromkeys(
    ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"),
    Meaning("bad-credentials", "Renew QRMI_IBM_QS_AWS_ACCESS_KEY_ID and its secret."),
)


class Storage:
    """Objects by key. Presigned addresses are those that the vendor's side reaches."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._here = _client(bucket, bucket.endpoint)
        there = bucket.vendor_endpoint
        self._there = self._here if there == bucket.endpoint else _client(bucket, there)

    def put(self, key: str, content: bytes) -> None:
        self._try("store an object", lambda: self._here.put_object(Bucket=self._bucket.name, Key=key, Body=content))

    def get(self, key: str) -> bytes | None:
        """None where there is no such object."""
        try:
            answer = self._try("give an object", lambda: self._here.get_object(Bucket=self._bucket.name, Key=key))
            content: bytes = self._try("give an object", answer["Body"].read)
        except QtandemError as error:
            if error.code != "no-such-run":
                raise
            return None
        return content

    def has(self, key: str) -> bool:
        try:
            self._try("show an object", lambda: self._here.head_object(Bucket=self._bucket.name, Key=key))
        except QtandemError as error:
            if error.code != "no-such-run":
                raise
            return False
        return True

    def delete(self, key: str) -> None:
        self._try("delete an object", lambda: self._here.delete_object(Bucket=self._bucket.name, Key=key))

    def address(self, method: str, key: str, seconds: int) -> str:
        """An address that lets its holder get or put one object for so long, a week at most."""
        operation = {"GET": "get_object", "PUT": "put_object"}[method]
        url: str = self._there.generate_presigned_url(
            operation, {"Bucket": self._bucket.name, "Key": key}, ExpiresIn=min(seconds, MAX_TIMEOUT_S)
        )
        return url

    def _try(self, what: str, work: Callable[[], T]) -> T:
        call = Call(VENDOR, what, meanings=_MEANINGS)
        try:
            return work()
        except botocore.exceptions.ClientError as error:
            raise _failed(call, error) from error
        except (
            botocore.exceptions.ConnectTimeoutError,
            botocore.exceptions.ReadTimeoutError,
        ) as error:
            raise unanswered(call, error, timeout=True) from error
        except botocore.exceptions.BotoCoreError as error:
            raise unanswered(call, error, timeout=False) from error


def _client(bucket: Bucket, endpoint: str) -> Any:
    """Checksums and virtual hosts are what stores other than Amazon's do not all know."""
    session = boto3.session.Session(
        aws_access_key_id=bucket.access_key, aws_secret_access_key=bucket.secret_key, region_name=bucket.region
    )
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        connect_timeout=TIMEOUT_S[0],
        read_timeout=TIMEOUT_S[1],
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return session.client("s3", endpoint_url=endpoint, config=config)


def _failed(call: Call, error: botocore.exceptions.ClientError) -> QtandemError:
    said = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, message = str(said.get("Code", "")), str(said.get("Message", ""))
    if code in _ABSENT:
        return QtandemError("no-such-run", "There is no such object", cause=message)
    words = f"<Code>{code}</Code><Message>{message}</Message>"
    return failed(call, status, words)

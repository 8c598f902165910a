"""The SDK's session with our key on every submission, bounded retries, and failures as our errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import boto3
import botocore.exceptions as aws
from botocore.config import Config
from botocore.parsers import ResponseParserError
from braket.aws import AwsSession

from qtandem.core.errors import QtandemError
from qtandem.core.providers.braket.settings import Settings
from qtandem.core.providers.classify import Call, Meaning, failed, unanswered, unreadable

T = TypeVar("T")
VENDOR = "Amazon Braket"
# Two tries fit within a worker's usual deadline of 30 s, which holds in any case. A submission that is tried again
# carries the same token, so AWS takes it once.
_CONFIG = Config(
    connect_timeout=5, read_timeout=12, retries={"total_max_attempts": 2, "mode": "standard"}, max_pool_connections=4
)
_KEY = Meaning("bad-credentials")
_OF_KEYS = (
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "ExpiredTokenException",
    "ExpiredToken",
    "SignatureDoesNotMatch",
    "MissingAuthenticationTokenException",
)
MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(_OF_KEYS, _KEY),
    "DeviceOfflineException": Meaning("not-available"),
    "DeviceRetiredException": Meaning("policy", "Choose another device: this one was retired."),
    "ServiceQuotaExceededException": Meaning(
        "not-available", "The account's limit is reached: wait for other tasks, or have AWS raise the limit."
    ),
}
_MISCONFIGURED = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.TokenRetrievalError,
)


class Session(AwsSession):  # type: ignore[misc]  # the SDK has no types
    """A session in one region. `token` goes with the next task that is created, so that a second one is the first."""

    def __init__(self, settings: Settings, region: str) -> None:
        keys = settings.keys
        boto = boto3.Session(
            aws_access_key_id=keys.access or None,
            aws_secret_access_key=keys.secret or None,
            aws_session_token=keys.token or None,
            profile_name=keys.profile or None,
            region_name=region,
        )
        client = boto.client("braket", config=_CONFIG, endpoint_url=settings.endpoint)
        super().__init__(boto_session=boto, braket_client=client)
        self._s3 = boto.client("s3", config=_CONFIG, endpoint_url=settings.s3_endpoint)
        self.token = ""

    def create_quantum_task(self, **arguments: Any) -> str:
        return str(super().create_quantum_task(**arguments, clientToken=self.token))

    def tasks(self, device: str, *filters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The account's tasks on a device that match all filters, newest first as AWS gives them."""
        arguments = {"filters": [{"name": "deviceArn", "operator": "EQUAL", "values": [device]}, *filters]}
        for page in self.braket_client.get_paginator("search_quantum_tasks").paginate(**arguments):
            yield from page["quantumTasks"]

    def result(self, bucket: str, key: str) -> bytes:
        body: bytes = self.s3_client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body


def opened(settings: Settings, region: str) -> Session:
    """A session in a region; raises `bad-config` for a profile that is not there."""
    try:
        return Session(settings, region)
    except aws.BotoCoreError as error:
        raise QtandemError("bad-config", "The AWS settings cannot be used", cause=str(error)) from error
    except ValueError as error:
        raise QtandemError("bad-config", "The endpoint cannot be used", cause=str(error)) from error


def token_of(key: str) -> str:
    """The client token of our key: at most 64 characters, the same for the same key."""
    return hashlib.sha256(key.encode()).hexdigest()


def ask(call: Call, work: Callable[[], T]) -> T:
    """What `work` gives; AWS's errors as ours."""
    call = replace(call, meanings={**MEANINGS, **call.meanings})
    try:
        return work()
    except aws.ClientError as error:
        raise _refused(call, error.response) from error
    except _MISCONFIGURED as error:
        raise QtandemError("bad-credentials", "There are no credentials for AWS", cause=str(error)) from error
    except aws.ParamValidationError as error:
        code = "bad-payload" if call.submits else "internal"
        raise QtandemError(code, f"{VENDOR} cannot {call.what}", cause=str(error)) from error
    except ResponseParserError as error:
        raise unreadable(call, str(error)) from error
    except (aws.HTTPClientError, aws.EndpointConnectionError) as error:
        late = isinstance(error, aws.ReadTimeoutError | aws.ConnectTimeoutError)
        raise unanswered(call, error, timeout=late) from error
    except aws.BotoCoreError as error:
        raise QtandemError("bad-config", f"{VENDOR} cannot {call.what}", cause=str(error)) from error
    except (KeyError, TypeError) as error:
        raise unreadable(call, f"{type(error).__name__}: {error}") from error


def _refused(call: Call, response: Mapping[str, Any]) -> QtandemError:
    error, about = response.get("Error", {}), response.get("ResponseMetadata", {})
    body = json.dumps({"code": error.get("Code", ""), "message": error.get("Message", "")})
    return failed(call, int(about.get("HTTPStatusCode", 0)), body, about.get("HTTPHeaders", {}))

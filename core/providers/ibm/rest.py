"""Calls through IBM's own client, with its many errors as ours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import requests
from qiskit_ibm_runtime.api.exceptions import RequestsApiError
from qiskit_ibm_runtime.exceptions import IBMError

from qtandem.core.providers.classify import Call, failed, unreadable
from qtandem.core.providers.ibm.http import broken, request_error

T = TypeVar("T")
_TAG = 86


def translated(call: Call, work: Callable[[], T]) -> T:
    """What `work` gives; the client's many errors as ours, with the vendor's words and not the client's."""
    try:
        return work()
    except (IBMError, requests.RequestException) as error:
        below = request_error(error)
        if isinstance(below, requests.JSONDecodeError):
            raise unreadable(call, below.doc) from error
        if below is not None and below.response is not None:
            answer = below.response
            raise failed(call, answer.status_code, answer.content, answer.headers) from error
        if below is not None:
            raise broken(call, below) from error
        status = error.status_code if isinstance(error, RequestsApiError) else 0
        raise failed(call, status, str(error)) from error
    except ValueError as error:
        raise unreadable(call, str(error)) from error


def base(endpoint: str) -> str:
    """The address of version 1; QRMI's documents give it with and without."""
    return endpoint if endpoint.rpartition("/")[2] == "v1" else f"{endpoint}/v1"


def tag(key: str) -> str:
    """A key as a tag; what cannot be one is told by its hash."""
    plain = key.isascii() and key.isprintable() and "," not in key and 0 < len(key) <= _TAG
    return key if plain else hashlib.sha256(key.encode()).hexdigest()

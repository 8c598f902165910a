"""Calls to IBM by requests: access tokens, bounded retries, and failures as our errors.

Only what surely did nothing is tried again here: a connection that could not be made, a read that got lost, and a
401 for a token that had run out. What else may be tried again is the daemon's to decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.util.retry import Retry

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call, Meaning, failed, unanswered, unreadable
from qtandem.core.providers.combine import seconds
from qtandem.core.providers.ibm.settings import Account

T = TypeVar("T")
# Connect and read: a GET may be read twice within a worker's usual deadline of 30 s, which holds in any case.
TIMEOUT_S = (5.0, 12.0)
_TOKEN_LIFE_S = 300.0
_GRANT = "urn:ibm:params:oauth:grant-type:apikey"
# IAM answers 400 to a key that it does not know.
_IAM_MEANINGS = {f"BXNIM0{number}E": Meaning("bad-credentials") for number in (109, 121, 415)}
_IAM = Call("IBM Cloud IAM", "give an access token", missing="bad-config", meanings=_IAM_MEANINGS)


def adapter() -> HTTPAdapter:
    """Retries a connection once and a GET that broke off once; every status is given to the caller."""
    retry = Retry(
        total=None,
        connect=1,
        read=1,
        status=0,
        other=0,
        allowed_methods={"GET", "HEAD"},
        backoff_factor=0.1,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    return HTTPAdapter(max_retries=retry)


class IamAuth(AuthBase):
    """Adds an access token of IBM Cloud IAM to requests.

    Its life is counted by our own clock from when it came, so that clocks need not agree. A failure is raised:
    IBM's own client goes on with the bare API key instead.
    """

    def __init__(self, account: Account, clock: Callable[[], float] = time.monotonic) -> None:
        self._account = account
        self._clock = clock
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter())
        self._token = ""
        self._until = 0.0

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._clock() >= self._until:
            self._fetch()
        request.headers["Authorization"] = f"Bearer {self._token}"
        request.headers["Service-CRN"] = self._account.crn
        return request

    def renew(self) -> None:
        """Forget the token, which the vendor refused."""
        self._until = 0.0

    def secrets(self) -> tuple[str, str]:
        """What no answer may hold that somebody else reads."""
        return self._account.apikey, self._token

    def _fetch(self) -> None:
        asked = self._clock()
        form = {"grant_type": _GRANT, "apikey": self._account.apikey}
        url = f"{self._account.iam_endpoint}/identity/token"
        try:
            answer = self._session.post(url, data=form, headers={"Accept": "application/json"}, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise broken(_IAM, error) from error
        document = parsed(_IAM, answer)
        token, life = document.get("access_token"), document.get("expires_in")
        if not isinstance(token, str) or not token:
            raise unreadable(_IAM, "no access_token")
        self._token, self._until = token, asked + 0.8 * (seconds(life) or _TOKEN_LIFE_S)


class Http:
    """One base address. Paths begin with a slash; answers are JSON objects."""

    def __init__(self, vendor: str, base: str, auth: IamAuth) -> None:
        self._vendor, self._base, self._auth = vendor, base, auth
        self._session = requests.Session()
        self._session.auth = auth
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter())

    def call(self, what: Call, method: str, path: str, json: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer's object ({} for an empty answer); raises what `classify` makes of a failure."""
        answer = self._send(what, method, path, json)
        if answer.status_code == 401:
            self._auth.renew()
            answer = self._send(what, method, path, json)
        return parsed(what, answer)

    def _send(self, what: Call, method: str, path: str, json: Mapping[str, Any] | None) -> requests.Response:
        try:
            return self._session.request(method, self._base + path, json=json, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise broken(what, error) from error


def parsed(what: Call, answer: requests.Response) -> dict[str, Any]:
    """The JSON object in an answer, {} for an empty one."""
    if not answer.ok or 300 <= answer.status_code < 400:
        raise failed(what, answer.status_code, answer.content, answer.headers)
    if not answer.content:
        return {}
    try:
        document = answer.json()
    except ValueError:
        raise unreadable(what, answer.content) from None
    if not isinstance(document, dict):
        raise unreadable(what, answer.content)
    return document


def broken(what: Call, error: requests.RequestException) -> QtandemError:
    """The error for a request that got no answer."""
    return unanswered(what, _innermost(error), timeout=isinstance(error, requests.Timeout))


def request_error(error: BaseException | None) -> requests.RequestException | None:
    """The error of requests below the client's own, which drops status and headers of a 503."""
    while error is not None:
        if isinstance(error, requests.RequestException):
            return error
        error = error.__cause__ or error.__context__
    return None


def _innermost(error: BaseException) -> Exception:
    """What the network said, without the addresses of objects that wrappers print."""
    seen = error
    while (below := seen.__cause__ or seen.__context__) is not None:
        seen = below
    return seen if isinstance(seen, Exception) else RuntimeError(str(seen))

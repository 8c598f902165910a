"""Access tokens of Pasqal's cloud, for calls that do not go through the qrmi library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call, failed, unreadable
from qtandem.core.providers.combine import seconds
from qtandem.core.providers.qrmi.reader import Reader

_AUDIENCE = "https://apis.pasqal.cloud/account/api/v1"
_LIFE_S = 300.0


class TokenReader(Reader):
    """Reads and exchanges with a token that is fetched when it is needed, or with one that was given."""

    def __init__(
        self,
        base: str,
        tokens: str,
        client: str,
        secret: str,
        given: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(base, {})
        self._tokens = tokens if "://" in tokens else f"https://{tokens}"
        self._client, self._secret, self._given, self._clock = client, secret, given, clock
        self._token, self._until = "", 0.0

    def headers(self) -> Mapping[str, str]:
        return {**super().headers(), "Authorization": f"Bearer {self._current()}"}

    def secrets(self) -> tuple[str, ...]:
        return self._secret, self._given, self._token

    def exchange(
        self, call: Call, method: str, path: str, body: bytes | None = None, kind: str = ""
    ) -> tuple[int, str, Mapping[str, str]]:
        answer = super().exchange(call, method, path, body, kind)
        if answer[0] == 401 and not self._given:
            # It was refused as a whole: nothing has been done.
            self._until = 0.0
            answer = super().exchange(call, method, path, body, kind)
        return answer

    def _current(self) -> str:
        if self._given:
            return self._given
        if not self._secret:
            raise QtandemError(
                "unsupported",
                "Programs are passed on to Pasqal's cloud with a client's id and secret only, or with a token",
                remedy="Set QRMI_PASQAL_CLOUD_CLIENT_ID and QRMI_PASQAL_CLOUD_CLIENT_SECRET.",
            )
        if self._clock() >= self._until:
            self._fetch()
        return self._token

    def _fetch(self) -> None:
        call, asked = Call("Pasqal's token service", "give an access token", missing="bad-config"), self._clock()
        form = {
            "grant_type": "client_credentials",
            "client_id": self._client,
            "client_secret": self._secret,
            "audience": _AUDIENCE,
        }
        plain = Reader(self._tokens, {})
        kind = "application/x-www-form-urlencoded"
        status, text, headers = plain.exchange(call, "POST", "", urlencode(form).encode(), kind)
        if status != 200:
            # Whatever it says, it does not know the credential.
            raise failed(call, 401 if status in (400, 401, 403) else status, text, headers)
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        token = document.get("access_token") if isinstance(document, dict) else None
        if not isinstance(token, str) or not token:
            raise unreadable(call, "no access_token")
        life = seconds(document.get("expires_in")) or _LIFE_S
        self._token, self._until = token, asked + 0.8 * life

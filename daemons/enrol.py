"""Enrolment of relay nodes: a one-time token and a pinned fingerprint buy a node certificate.

`init`, `issue_token`, `listing` and `revoke` run on the daemon's host, `enrol` on the node; `routes` are the
daemon's side of it. What `qtandem relay init|token|enrol|list|revoke` does is here, without the terminal.
"""

from __future__ import annotations

import asyncio
import http
import http.client
import json
import os
import pwd
import secrets
import ssl
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qtandem.core.errors import QtandemError
from qtandem.core.files import read_private, write_atomic
from qtandem.core.wire import UID_HEADER
from qtandem.daemons import certificates, tls
from qtandem.daemons.certificates import Issuer, Key
from qtandem.daemons.nodes import Node, Nodes

SERVICE_USER = "qtandem"
TOKEN_TTL_S = 3600.0
BODY_S = 10.0
_MAX_CALL = 16 * 1024
_Call = TypeVar("_Call", bound=BaseModel)


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnrolCall(_Wire):
    """A node's first call: its token, its name and a PEM signing request."""

    token: str = Field(max_length=256, repr=False)
    node: str = Field(max_length=128)
    csr: str = Field(max_length=8192)


class RenewCall(_Wire):
    """A node asks for its next certificate over its present one."""

    csr: str = Field(max_length=8192)


class EnrolAnswer(BaseModel):
    """The certificate and the authority's, as PEM."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    node: str
    certificate: str
    ca: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Initialised:
    """`created` is False when everything was there already; nothing is ever made anew by `init`."""

    fingerprint: str
    created: bool


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A node that has its certificate; `expires_at` is a Unix time."""

    node: str
    expires_at: float


def init(tls_dir: Path, hosts: Iterable[str], now: float) -> Initialised:
    """Make the authority and the server certificate on the daemon's host; idempotent.

    `hosts` are extra names and addresses in the certificate. Raises `bad-config` for half of a pair of files.
    """
    _make_directory(tls_dir)
    created = False
    if not (tls_dir / tls.CA_KEY).exists():
        if (tls_dir / tls.CA).exists():
            raise QtandemError(
                "bad-config",
                f"{tls_dir / tls.CA} is there without {tls.CA_KEY}",
                remedy="On a node, enrol instead. On the daemon's host, restore the key from its backup.",
            )
        issuer = certificates.make_authority(now)
        _put(tls_dir / tls.CA_KEY, certificates.key_pem(issuer.key), 0o600, replace=False)
        _put(tls_dir / tls.CA, certificates.certificate_pem(issuer.certificate), 0o644, replace=False)
        created = True
    if not (tls_dir / tls.SERVER).exists():
        _new_server(tls_dir, hosts, now, replace=False)
        created = True
    Nodes(tls_dir / tls.REGISTER).close()
    return Initialised(server_fingerprint(tls_dir), created)


def server_fingerprint(tls_dir: Path) -> str:
    """SHA-256 of the server certificate, which `enrol` on a node must be given out of band."""
    return certificates.fingerprint(_certificate_in(tls_dir / tls.SERVER))


def issue_token(tls_dir: Path, node: str, now: float, ttl_s: float = TOKEN_TTL_S) -> str:
    """A new one-time token for `node`. Only its hash is kept: it cannot be shown again."""
    token = secrets.token_urlsafe(32)
    with _register(tls_dir) as nodes:
        nodes.add_token(token, certificates.node_name(node), now, ttl_s)
    return token


def listing(tls_dir: Path, now: float) -> list[Node]:
    """Every certificate that was issued, by node, oldest first."""
    with _register(tls_dir) as nodes:
        return nodes.certificates(now)


def revoke(tls_dir: Path, node: str, now: float) -> int:
    """Refuse the node from its next call on; returns how many certificates that took.

    Raises `not-enrolled` for a node that was never enrolled.
    """
    with _register(tls_dir) as nodes:
        known = any(row.node == node for row in nodes.certificates(now))
        count = nodes.revoke(node, now)
    if not known:
        raise QtandemError("not-enrolled", f"No node {node!r} was ever enrolled", remedy="See: qtandem relay list")
    return count


def enrol(
    server: str,
    fingerprint: str,
    token: str,
    node: str,
    tls_dir: Path,
    *,
    replace: bool = False,
    timeout_s: float = 10.0,
) -> Enrolled:
    """Get this node's certificate from `server` ("HOST:PORT") and put key and certificate into `tls_dir`.

    Nothing is sent before the server has shown the certificate with this SHA-256 `fingerprint`
    (`wrong-server`). Raises `already-exists` before the token is spent, `daemon-unreachable`, and what the
    daemon answers.
    """
    certificates.node_name(node)
    if (tls_dir / tls.NODE).exists() and not replace:
        message = f"{tls_dir / tls.NODE} is there already; it is not overwritten"
        raise QtandemError("already-exists", message, remedy="To replace it: qtandem relay enrol --replace")
    if (tls_dir / tls.CA_KEY).exists():
        raise QtandemError(
            "already-exists", f"{tls_dir} holds the authority", remedy="The daemon's own host needs no relay."
        )
    _make_directory(tls_dir)
    key = certificates.new_key()
    call = EnrolCall(token=token.strip(), node=node, csr=certificates.make_csr(key, node).decode())
    answer = _call_pinned(server, fingerprint, call, timeout_s)
    store(tls_dir, key, answer, replace=replace)
    return Enrolled(answer.node, answer.expires_at)


def read_token(path: Path) -> str:
    """A token from a file that only its owner reads; raises `bad-config`."""
    return read_private(path).decode(errors="replace").strip()


def store(tls_dir: Path, key: Key, answer: EnrolAnswer, *, replace: bool) -> None:
    """Write a node's authority, then key and certificate together in one file, so that they never disagree."""
    certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
    if certificate.public_key() != key.public_key():
        raise QtandemError("wrong-server", "The certificate that came back is for another key")
    _put(tls_dir / tls.CA, answer.ca.encode(), 0o644, replace=True)
    _put(tls_dir / tls.NODE, certificates.key_pem(key) + answer.certificate.encode(), 0o600, replace=replace)


def own_certificate(tls_dir: Path) -> x509.Certificate:
    """The node's present certificate; raises `bad-config`."""
    return _certificate_in(tls_dir / tls.NODE)


def refresh_server(tls_dir: Path, context: ssl.SSLContext, now: float) -> bool:
    """Renew the server certificate in the last third of its life; for the daemon, at start and once a day.

    Nodes trust the authority, so they notice nothing; only fingerprints for later enrolments change.
    """
    present = _certificate_in(tls_dir / tls.SERVER)
    if not certificates.wants_renewal(present, now):
        return False
    names = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [name for name in names.get_values_for_type(x509.DNSName) if name != certificates.SERVER_NAME]
    hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    _new_server(tls_dir, hosts, now, replace=True)
    tls.reload_server(context, tls_dir)
    return True


class Authority:
    """The daemon's side: turns tokens and present certificates into new ones."""

    def __init__(self, tls_dir: Path, nodes: Nodes, clock: Callable[[], float]) -> None:
        self._issuer = _issuer(tls_dir)
        self._nodes = nodes
        self._clock = clock

    def enrol(self, call: EnrolCall) -> EnrolAnswer:
        """Raises `not-enrolled` for a token that is unknown, used, expired or another node's; `bad-request`."""
        node, public = certificates.node_name(call.node), certificates.read_csr(call.csr)
        now = self._clock()
        with self._nodes.transaction():
            self._nodes.use_token(call.token, node, now)
            return self._issue(node, public, now)

    def renew(self, node: str, call: RenewCall) -> EnrolAnswer:
        public = certificates.read_csr(call.csr)
        with self._nodes.transaction():
            return self._issue(node, public, self._clock())

    def _issue(self, node: str, public: certificates.PublicKey, now: float) -> EnrolAnswer:
        certificate = certificates.issue_node(self._issuer, public, node, now)
        expires_at = certificates.expires_at(certificate)
        mark = certificates.fingerprint(certificate)
        self._nodes.add_certificate(certificates.serial(certificate), node, mark, now, expires_at)
        return EnrolAnswer(
            node=node,
            certificate=certificates.certificate_pem(certificate).decode(),
            ca=certificates.certificate_pem(self._issuer.certificate).decode(),
            expires_at=expires_at,
        )


def routes(authority: Authority, nodes: Nodes, clock: Callable[[], float]) -> list[web.RouteDef]:
    """The enrolment calls, for the application of the TLS listener only. Handlers raise `QtandemError`."""

    async def first(request: web.Request) -> web.Response:
        _first_hand(request)
        return _answer(authority.enrol(await _read(request, EnrolCall)))

    async def renew(request: web.Request) -> web.Response:
        _first_hand(request)
        node = tls.peer_node(request.transport, nodes, clock())
        return _answer(authority.renew(node, await _read(request, RenewCall)))

    return [web.post(tls.ENROL_PATH, first), web.post(tls.RENEW_PATH, renew)]


def _first_hand(request: web.Request) -> None:
    # A relay marks every call that it passes on: a user of a node is not the node.
    if not tls.is_tls(request.transport) or UID_HEADER in request.headers:
        raise QtandemError("not-authorised", "Nodes enrol themselves, on the relays' port")


async def _read(request: web.Request, model: type[_Call]) -> _Call:
    if (request.content_length or _MAX_CALL + 1) > _MAX_CALL:
        raise QtandemError("too-large", "An enrolment call has at most 16 KiB, and says how many")
    try:
        async with asyncio.timeout(BODY_S):
            return model.model_validate_json(await request.read())
    except TimeoutError:
        raise QtandemError("bad-request", f"The body did not arrive within {BODY_S:.0f} s") from None
    except ValidationError as error:
        # The input may hold the token, so it is not shown again.
        raise QtandemError("bad-request", "The enrolment call cannot be read", cause=error.title) from None


def _answer(answer: EnrolAnswer) -> web.Response:
    return web.json_response(text=answer.model_dump_json())


def _call_pinned(server: str, fingerprint: str, call: EnrolCall, timeout_s: float) -> EnrolAnswer:
    host, port = split_address(server)
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_unverified())
    with closing(connection):
        try:
            connection.connect()
            _check_pin(connection, server, fingerprint)
            body = call.model_dump_json()
            connection.request("POST", tls.ENROL_PATH, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return _enrolled(response.status, response.read(_MAX_CALL * 4))
        except (OSError, http.client.HTTPException) as error:
            raise QtandemError(
                "daemon-unreachable", f"qtandemd at {server} cannot be reached", cause=str(error)
            ) from error


def _check_pin(connection: http.client.HTTPSConnection, server: str, fingerprint: str) -> None:
    assert isinstance(connection.sock, ssl.SSLSocket)
    shown = connection.sock.getpeercert(binary_form=True)
    found = certificates.fingerprint(x509.load_der_x509_certificate(shown)) if shown else ""
    if not certificates.same_fingerprint(found, fingerprint):
        raise QtandemError("wrong-server", f"{server} shows the fingerprint {found}, not {fingerprint}")


def _unverified() -> ssl.SSLContext:
    # The pinned fingerprint takes the place of a chain that the node cannot know yet.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _enrolled(status: int, body: bytes) -> EnrolAnswer:
    try:
        if status == http.HTTPStatus.OK:
            return EnrolAnswer.model_validate_json(body)
        raise QtandemError.from_wire(json.loads(body))
    except (ValueError, AttributeError) as error:
        raise QtandemError("wrong-server", f"The server answered {status} with something unknown") from error


def split_address(server: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT"; raises `bad-request`."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise QtandemError("bad-request", f"{server!r} is not HOST:PORT", remedy="Write it as daemon.site:7447.")
    return host.strip("[]"), int(port)


def _register(tls_dir: Path) -> Nodes:
    if not (tls_dir / tls.REGISTER).exists():
        raise QtandemError(
            "bad-config", f"{tls_dir} holds no authority", remedy="On the daemon's host: qtandem relay init"
        )
    return Nodes(tls_dir / tls.REGISTER)


def _issuer(tls_dir: Path) -> Issuer:
    return certificates.read_issuer((tls_dir / tls.CA).read_bytes(), read_private(tls_dir / tls.CA_KEY))


def _new_server(tls_dir: Path, hosts: Iterable[str], now: float, *, replace: bool) -> None:
    key = certificates.new_key()
    certificate = certificates.issue_server(_issuer(tls_dir), key, hosts, now)
    pem = certificates.key_pem(key) + certificates.certificate_pem(certificate)
    _put(tls_dir / tls.SERVER, pem, 0o600, replace=replace)


def _certificate_in(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_private(path))
    except ValueError as error:
        raise QtandemError("bad-config", f"{path} holds no certificate", cause=str(error)) from error


def _make_directory(tls_dir: Path) -> None:
    """Files get the owner of their directory; one that root makes here belongs to the service's user."""
    if tls_dir.is_dir():
        return
    tls_dir.mkdir(mode=0o755, parents=True)
    with suppress(KeyError):
        if os.geteuid() == 0:
            owner = pwd.getpwnam(SERVICE_USER)
            os.chown(tls_dir, owner.pw_uid, owner.pw_gid)


def _put(path: Path, data: bytes, mode: int, *, replace: bool) -> None:
    write_atomic(path, data, mode, replace=replace, like_parent=True)

"""Mutual TLS between relays and the daemon: TLS 1.3 only, and who is at the other end.

One port serves enrolled nodes and those that enrol. A client certificate is therefore optional in the
handshake, and `caller` asks for it on every call but those of enrolment. A second port would be one more hole in
every site's firewall, and would not spare the check of each call: revocation must hold at once, on connections
that are open already too. A certificate that *is* shown but is expired or not of our authority fails the
handshake itself.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aiohttp import web
from cryptography import x509

from qtandem.core.errors import QtandemError
from qtandem.core.files import read_private
from qtandem.core.wire import UID_HEADER
from qtandem.daemons import certificates, sockets
from qtandem.daemons.nodes import Nodes

ENROL_PATH, RENEW_PATH = "/v1/enrol", "/v1/enrol/renew"
CA, CA_KEY, SERVER, NODE, REGISTER = "ca.pem", "ca.key", "server.pem", "node.pem", "nodes.db"
_UID_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a uid, and the node whose relay vouches for it; `node` None is this very host."""

    uid: int
    node: str | None = None


def server_context(tls_dir: Path) -> ssl.SSLContext:
    """The context of the daemon's TLS listener; raises `bad-config` without the files of `enrol.init`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would carry a certificate past its expiry.
    context.num_tickets = 0
    return _harden(context, tls_dir, SERVER)


def reload_server(context: ssl.SSLContext, tls_dir: Path) -> None:
    """Use the server certificate that is on disk now for new connections."""
    _load(context, tls_dir / SERVER)


def client_context(tls_dir: Path) -> ssl.SSLContext:
    """The context of a relay. Connect with `server_hostname=certificates.SERVER_NAME`: the role is the name."""
    return _harden(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls_dir, NODE)


def caller(request: web.BaseRequest, nodes: Nodes | None, now: float) -> Caller:
    """Who makes this call; raises `not-enrolled`, or `bad-request` for a relay that names no uid.

    On the local socket the kernel says, and a `UID_HEADER` counts for nothing. On TLS the certificate names
    the node and the header the uid. Any other listener has no callers.
    """
    if is_tls(request.transport):
        if nodes is None:
            raise QtandemError("not-enrolled", "This daemon takes no relays")
        return Caller(_vouched_uid(request), peer_node(request.transport, nodes, now))
    uid = sockets.peer_uid(request.transport)
    if uid is None:
        raise QtandemError("not-authorised", "Callers are known on the local socket and on the relays' port only")
    return Caller(uid)


def peer_node(transport: asyncio.BaseTransport | None, nodes: Nodes, now: float) -> str:
    """The enrolled node at the other end of a TLS connection; raises `not-enrolled`."""
    certificate = peer_certificate(transport)
    if now > certificates.expires_at(certificate):
        raise QtandemError("not-enrolled", "The certificate has expired")
    node = certificates.node_of(certificate)
    nodes.admit(certificates.serial(certificate), node, now)
    return node


def peer_certificate(transport: asyncio.BaseTransport | None) -> x509.Certificate:
    """What the client showed, verified by the handshake; raises `not-enrolled` when it showed none."""
    der = shown(transport)
    if der is None:
        raise QtandemError("not-enrolled", "No node certificate was shown")
    return _parsed(der)


def shown(transport: asyncio.BaseTransport | None) -> bytes | None:
    """The client's certificate in DER, None where it showed none."""
    session = transport.get_extra_info("ssl_object") if transport is not None else None
    return session.getpeercert(binary_form=True) if session is not None else None


def is_tls(transport: asyncio.BaseTransport | None) -> bool:
    return transport is not None and transport.get_extra_info("ssl_object") is not None


def is_enrolment(request: web.BaseRequest) -> bool:
    """The calls that pass without a `caller`: their handlers look at token and certificate themselves."""
    return is_tls(request.transport) and request.path in (ENROL_PATH, RENEW_PATH)


def _harden(context: ssl.SSLContext, tls_dir: Path, own: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(tls_dir / CA)
    except OSError as error:
        raise QtandemError(
            "bad-config",
            f"{tls_dir / CA} cannot be used",
            cause=error.strerror or str(error),
            remedy="Make it with qtandem relay init (the daemon's host) or qtandem relay enrol (a node).",
        ) from error
    _load(context, tls_dir / own)
    return context


def _load(context: ssl.SSLContext, path: Path) -> None:
    read_private(path)
    try:
        context.load_cert_chain(path)
    except OSError as error:
        raise QtandemError(
            "bad-config", f"{path} holds no key with its certificate", cause=error.strerror or str(error)
        ) from error


def _vouched_uid(request: web.BaseRequest) -> int:
    values = request.headers.getall(UID_HEADER, [])
    if len(values) != 1 or not values[0].isascii() or not values[0].isdigit() or int(values[0]) > _UID_MAX:
        raise QtandemError("bad-request", f"A relay's call needs one {UID_HEADER} header with a uid")
    return int(values[0])


@lru_cache(maxsize=4096)
def _parsed(der: bytes) -> x509.Certificate:
    return x509.load_der_x509_certificate(der)

"""The site's own small certificate authority: one for the daemon's host, one certificate a relay node.

Certificates carry their role twice: in the extended key usage (server or client) and in a name that only one
role has (`qtandemd`, or `urn:qtandem:relay:NODE`). All times are Unix times.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qtandem.core.errors import QtandemError

SERVER_NAME = "qtandemd"
CA_DAYS, SERVER_DAYS, NODE_DAYS = 3650, 365, 90
_ROLE = "urn:qtandem:relay:"
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._\-]{0,61}[A-Za-z0-9])?")
# Clocks of nodes may be behind the daemon's.
_SKEW = timedelta(hours=1)

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Issuer:
    """The authority's certificate and key."""

    certificate: x509.Certificate
    key: Key


def new_key() -> Key:
    """A private key for a new certificate."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """The key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def read_issuer(certificate: bytes, key: bytes) -> Issuer:
    """The authority from its two PEM texts; raises `bad-config` when they are not a pair of ours."""
    try:
        loaded = serialization.load_pem_private_key(key, None)
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise QtandemError("bad-config", "The authority's files cannot be read", cause=str(error)) from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or parsed.public_key() != loaded.public_key():
        raise QtandemError("bad-config", "ca.key is not the key of ca.pem", remedy="Restore both from one backup.")
    return Issuer(parsed, loaded)


def node_name(text: str) -> str:
    """The text, if it can be a node's name; raises `bad-request`."""
    if _NODE.fullmatch(text) is None:
        raise QtandemError("bad-request", f"{text[:80]!r} is not a node name", remedy="Give the host's short name.")
    return text


def make_authority(now: float) -> Issuer:
    """A new authority, signed by itself."""
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "qtandem relay authority")])
    builder = _builder(name, name, key.public_key(), now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return Issuer(builder.sign(key, hashes.SHA256()), key)


def issue_server(issuer: Issuer, key: Key, hosts: Iterable[str], now: float) -> x509.Certificate:
    """The daemon's certificate. Nodes check `SERVER_NAME`; `hosts` are for other tools."""
    names: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME), *map(_host, hosts)]
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return _leaf(issuer, key.public_key(), SERVER_NAME, names, usage, now, SERVER_DAYS)


def issue_node(issuer: Issuer, public: PublicKey, node: str, now: float) -> x509.Certificate:
    """The client certificate of a node, for a key that it holds itself."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"{_ROLE}{node_name(node)}")]
    return _leaf(issuer, public, node, names, ExtendedKeyUsageOID.CLIENT_AUTH, now, NODE_DAYS)


def make_csr(key: Key, node: str) -> bytes:
    """A signing request as PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_csr(pem: str) -> PublicKey:
    """The public key of a signing request whose signature proves possession; nothing else in it counts."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        valid, public = request.is_signature_valid, request.public_key()
    except (ValueError, InvalidSignature) as error:
        raise QtandemError("bad-request", "The signing request cannot be read", cause=str(error)) from error
    if not valid or not isinstance(public, PublicKey) or public.curve.key_size < 256:
        raise QtandemError("bad-request", "The signing request needs a signed EC key of 256 bits or more")
    return public


def node_of(certificate: x509.Certificate) -> str:
    """The node that a certificate was issued to; raises `not-enrolled` for every other role."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise QtandemError("not-enrolled", "The certificate names no role") from None
    roles = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(_ROLE)]
    if list(usage) != [ExtendedKeyUsageOID.CLIENT_AUTH] or len(roles) != 1:
        raise QtandemError("not-enrolled", "The certificate is not that of a relay node")
    return roles[0].removeprefix(_ROLE)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate as `openssl x509 -fingerprint -sha256` prints it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two are the same SHA-256, however they are written."""
    return _plain(one) == _plain(other) and len(_plain(one)) == 64


def serial(certificate: x509.Certificate) -> str:
    """The serial number in hexadecimal, as the register has it."""
    return f"{certificate.serial_number:x}"


def expires_at(certificate: x509.Certificate) -> float:
    """End of life in Unix time."""
    return certificate.not_valid_after_utc.timestamp()


def wants_renewal(certificate: x509.Certificate, now: float) -> bool:
    """True in the last third of a certificate's life."""
    start, end = certificate.not_valid_before_utc.timestamp(), expires_at(certificate)
    return now > end - (end - start) / 3


def _leaf(
    issuer: Issuer,
    public: PublicKey,
    common_name: str,
    names: list[x509.GeneralName],
    usage: x509.ObjectIdentifier,
    now: float,
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
    authority = issuer.certificate.public_key()
    assert isinstance(authority, PublicKey)
    builder = _builder(subject, issuer.certificate.subject, public, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    parent = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority)
    builder = builder.add_extension(parent, critical=False)
    return builder.sign(issuer.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, now: float, days: int
) -> x509.CertificateBuilder:
    start = datetime.fromtimestamp(int(now), UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _SKEW)
        .not_valid_after(start + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _plain(text: str) -> str:
    return re.sub(r"^sha256[:=]", "", text.strip().lower()).replace(":", "")

"""Only enrolled nodes speak on the relays' port, and only there does a relay's word on the uid count."""

from __future__ import annotations

import os
import ssl
import time
from contextlib import suppress

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from qtandem.core.errors import QtandemError
from qtandem.core.files import write_atomic
from qtandem.core.wire import UID_HEADER
from qtandem.daemons import certificates, enrol, tls

VOUCHED = {UID_HEADER: "1234"}


async def ask(daemon, context: ssl.SSLContext, headers=VOUCHED, path="/v1/facts"):
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"https://{daemon.server}{path}",
            headers=headers,
            ssl=context,
            server_hostname=certificates.SERVER_NAME,
        ) as answer,
    ):
        return answer.status, await answer.json()


async def status(daemon, context: ssl.SSLContext) -> int | str:
    """The answer's status, or "handshake" when TLS itself refuses."""
    try:
        return (await ask(daemon, context))[0]
    except aiohttp.ClientError:
        return "handshake"


def issue(daemon, tls_dir, node="c1", now=None, *, register=False, **changes):
    """A node directory whose certificate our authority signed, whether the register knows it or not."""
    now = time.time() if now is None else now
    issuer = enrol._issuer(daemon.tls_dir)
    key = certificates.new_key()
    make = changes.get("make", certificates.issue_node)
    certificate = make(issuer, key.public_key() if make is certificates.issue_node else key, node, now)
    tls_dir.mkdir()
    write_atomic(tls_dir / tls.CA, (daemon.tls_dir / tls.CA).read_bytes())
    pem = certificates.key_pem(key) + certificates.certificate_pem(certificate)
    write_atomic(tls_dir / tls.NODE, pem, 0o600)
    if register:
        with enrol._register(daemon.tls_dir) as nodes:
            nodes.add_certificate(
                certificates.serial(certificate),
                node,
                certificates.fingerprint(certificate),
                now,
                certificates.expires_at(certificate),
            )
    return tls_dir


async def test_an_enrolled_node_is_known_and_its_uid_header_counts(daemon, node):
    code, body = await ask(daemon, tls.client_context(node))
    assert code == 200
    assert (body["node"], body["uid"]) == ("c1", 1234)


async def test_the_uid_header_counts_for_nothing_on_the_local_socket(site, serve, tmp_path):
    async with serve(site, tmp_path / "local.sock"):
        connector = aiohttp.UnixConnector(str(tmp_path / "local.sock"))
        async with (
            aiohttp.ClientSession("http://localhost", connector=connector) as session,
            session.get("/v1/facts", headers={UID_HEADER: "4242"}) as answer,
        ):
            body = await answer.json()
    assert (body["uid"], body["node"]) == (os.geteuid(), None)


async def test_enrolment_is_not_served_on_the_local_socket(site, serve, tmp_path):
    async with serve(site, tmp_path / "local.sock"):
        connector = aiohttp.UnixConnector(str(tmp_path / "local.sock"))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
            for path in (tls.ENROL_PATH, tls.RENEW_PATH):
                async with session.post(path, json={}) as answer:
                    assert answer.status == 403


@pytest.mark.parametrize("value", [None, "", "-1", "root", "4294967296", "1, 2", "١"])
async def test_a_relay_call_without_a_proper_uid_is_refused(daemon, node, value):
    headers = {} if value is None else {UID_HEADER: value}
    code, body = await ask(daemon, tls.client_context(node), headers)
    assert (code, body["code"]) == (400, "bad-request")


async def test_two_uid_headers_are_refused(daemon, node):
    code, _ = await ask(daemon, tls.client_context(node), [(UID_HEADER, "1"), (UID_HEADER, "0")])
    assert code == 400


async def test_no_certificate_is_refused_on_every_call_but_enrolment(daemon):
    context = ssl.create_default_context(cafile=str(daemon.tls_dir / tls.CA))
    for path in ("/v1/facts", "/v1/healthz", "/v1/enrol/", "/v1/enrol/renew/x", "/v1/start"):
        code, body = await ask(daemon, context, path=path)
        assert (code, body["code"]) == (403, "not-enrolled"), path


async def test_a_certificate_of_another_authority_fails_the_handshake(daemon, node, tmp_path):
    enrol.init(tmp_path / "foreign", [], time.time())
    foreign = issue(type(daemon)(tmp_path / "foreign"), tmp_path / "stranger")
    write_atomic(foreign / tls.CA, (daemon.tls_dir / tls.CA).read_bytes())
    assert await status(daemon, tls.client_context(foreign)) == "handshake"


async def test_a_revoked_certificate_is_refused_on_an_open_connection_too(daemon, node):
    context = tls.client_context(node)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1, ssl=context)) as session:

        async def call() -> tuple[int, str]:
            async with session.get(
                f"https://{daemon.server}/v1/facts", headers=VOUCHED, server_hostname=certificates.SERVER_NAME
            ) as answer:
                return answer.status, await answer.text()

        assert (await call())[0] == 200
        enrol.revoke(daemon.tls_dir, "c1", time.time())
        code, text = await call()
    assert code == 403
    assert "revoked" in text


async def test_an_expired_certificate_fails_the_handshake(daemon, tmp_path):
    long_ago = time.time() - 2 * certificates.NODE_DAYS * 86400
    expired = issue(daemon, tmp_path / "expired", now=long_ago, register=True)
    assert await status(daemon, tls.client_context(expired)) == "handshake"


async def test_a_certificate_that_expires_while_connected_is_refused(daemon, node):
    daemon.offset_s = (certificates.NODE_DAYS + 1) * 86400.0
    code, body = await ask(daemon, tls.client_context(node))
    assert code == 403
    assert "expired" in body["message"]


async def test_the_servers_certificate_is_no_node_certificate(daemon, tmp_path):
    server = issue(
        daemon,
        tmp_path / "server",
        make=lambda issuer, key, node, now: certificates.issue_server(issuer, key, [], now),
        register=True,
    )
    assert await status(daemon, tls.client_context(server)) == "handshake"


async def test_a_client_certificate_that_names_no_relay_role_is_refused(daemon, tmp_path):
    def make(issuer: certificates.Issuer, key: ec.EllipticCurvePrivateKey, node: str, now: float):
        usage = certificates.ExtendedKeyUsageOID.CLIENT_AUTH
        names = [certificates.x509.UniformResourceIdentifier("urn:qtandem:monitor:c1")]
        return certificates._leaf(issuer, key.public_key(), node, names, usage, now, 10)

    other = issue(daemon, tmp_path / "other", make=make, register=True)
    assert await status(daemon, tls.client_context(other)) == 403


async def test_a_certificate_that_is_not_in_the_register_is_refused(daemon, tmp_path):
    assert await status(daemon, tls.client_context(issue(daemon, tmp_path / "unknown"))) == 403


async def test_a_node_cannot_pose_as_the_daemon(daemon, node, tmp_path):
    """A relay refuses a server that shows a node's certificate, though our authority signed it."""
    posing = tmp_path / "posing"
    posing.mkdir()
    write_atomic(posing / tls.CA, (node / tls.CA).read_bytes())
    write_atomic(posing / tls.SERVER, (node / tls.NODE).read_bytes(), 0o600)
    left, right = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.server_context(posing).wrap_bio(left, right, server_side=True)
    client = tls.client_context(node).wrap_bio(right, left, server_hostname=certificates.SERVER_NAME)

    def handshake() -> None:
        for side in (client, server) * 4:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake()


async def test_tls_1_2_is_refused(daemon, node):
    context = tls.client_context(node)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await status(daemon, context) == "handshake"


@pytest.mark.parametrize("name", [tls.SERVER, tls.NODE])
def test_a_key_that_others_can_read_is_not_used(site, tmp_path, name):
    node = issue(site, tmp_path / "node")
    directory = site.tls_dir if name == tls.SERVER else node
    (directory / name).chmod(0o640)
    make = tls.server_context if name == tls.SERVER else tls.client_context
    with pytest.raises(QtandemError, match="can be read by others"):
        make(directory)


def test_missing_files_say_what_to_do(tmp_path):
    for make in (tls.server_context, tls.client_context):
        with pytest.raises(QtandemError) as caught:
            make(tmp_path)
        assert "qtandem relay" in caught.value.remedy

"""Tokens are one-time, expiring, hashed and bound to a node; the node sends nothing to a server it was not told of."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import threading
import time

import aiohttp
import pytest
from cryptography import x509

from qtandem.core.errors import QtandemError
from qtandem.core.wire import UID_HEADER
from qtandem.daemons import certificates, enrol, tls
from qtandem.daemons.nodes import Nodes


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def refused(daemon, node: str, token: str, tls_dir, **options) -> QtandemError:
    with pytest.raises(QtandemError) as caught:
        await asyncio.to_thread(enrol.enrol, daemon.server, daemon.fingerprint, token, node, tls_dir, **options)
    return caught.value


def test_init_is_idempotent_and_never_makes_a_key_anew(tmp_path):
    first = enrol.init(tmp_path / "tls", ["daemon.site"], time.time())
    keys = {name: (tmp_path / "tls" / name).read_bytes() for name in (tls.CA_KEY, tls.SERVER)}
    again = enrol.init(tmp_path / "tls", ["daemon.site"], time.time())
    assert (first.created, again.created) == (True, False)
    assert first.fingerprint == again.fingerprint
    assert keys == {name: (tmp_path / "tls" / name).read_bytes() for name in keys}
    assert [mode(tmp_path / "tls" / name) for name in (tls.CA_KEY, tls.SERVER, tls.REGISTER)] == [0o600] * 3


def test_init_refuses_to_make_an_authority_on_a_node(tmp_path):
    (tmp_path / tls.CA).write_text("the daemon's")
    with pytest.raises(QtandemError) as caught:
        enrol.init(tmp_path, [], time.time())
    assert caught.value.code == "bad-config"
    assert not (tmp_path / tls.CA_KEY).exists()


async def test_a_node_enrols_and_its_key_is_private(daemon, tmp_path):
    got = await daemon.enrol("c1", tmp_path / "node")
    assert got.node == "c1"
    assert got.expires_at == pytest.approx(time.time() + certificates.NODE_DAYS * 86400, abs=60)
    assert mode(tmp_path / "node" / tls.NODE) == 0o600
    assert certificates.node_of(enrol.own_certificate(tmp_path / "node")) == "c1"
    assert not (tmp_path / "node" / tls.CA_KEY).exists()


async def test_a_stranger_who_sends_half_a_call_is_not_waited_for(daemon, monkeypatch):
    monkeypatch.setattr(enrol, "BODY_S", 0.2)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(*enrol.split_address(daemon.server), ssl=context)
    writer.write(b"POST /v1/enrol HTTP/1.1\r\nHost: q\r\nContent-Length: 100\r\n\r\n{")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5.0)
    assert answer.split()[1] == b"400"
    writer.close()


async def test_a_key_is_not_overwritten_silently_and_the_token_is_not_spent(daemon, node, tmp_path):
    before = (node / tls.NODE).read_bytes()
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time())
    assert (await refused(daemon, "c1", token, node)).code == "already-exists"
    assert (node / tls.NODE).read_bytes() == before
    await asyncio.to_thread(enrol.enrol, daemon.server, daemon.fingerprint, token, "c1", node, replace=True)
    assert (node / tls.NODE).read_bytes() != before


async def test_the_daemons_own_directory_is_never_made_a_nodes(daemon):
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time())
    assert (await refused(daemon, "c1", token, daemon.tls_dir)).code == "already-exists"


async def test_a_replayed_token_is_refused(daemon, tmp_path):
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time())
    await asyncio.to_thread(enrol.enrol, daemon.server, daemon.fingerprint, token, "c1", tmp_path / "a")
    error = await refused(daemon, "c1", token, tmp_path / "b")
    assert error.code == "not-enrolled"
    assert "used already" in error.message
    assert not (tmp_path / "b" / tls.NODE).exists()


async def test_a_token_used_by_many_at_once_enrols_one(daemon, tmp_path):
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time())

    def one(number: int) -> bool:
        try:
            enrol.enrol(daemon.server, daemon.fingerprint, token, "c1", tmp_path / str(number))
        except QtandemError:
            return False
        return True

    assert sum(await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(8)))) == 1


async def test_an_expired_token_is_refused(daemon, tmp_path):
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time() - 10, ttl_s=5)
    assert "expired" in (await refused(daemon, "c1", token, tmp_path / "a")).message


async def test_an_unknown_token_is_refused(daemon, tmp_path):
    assert "not known" in (await refused(daemon, "c1", "x" * 43, tmp_path / "a")).message


async def test_a_token_is_bound_to_its_node_and_survives_a_wrong_one(daemon, tmp_path):
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time())
    assert (await refused(daemon, "c2", token, tmp_path / "a")).code == "not-enrolled"
    await asyncio.to_thread(enrol.enrol, daemon.server, daemon.fingerprint, token, "c1", tmp_path / "a")


def test_tokens_are_stored_hashed(site):
    token = enrol.issue_token(site.tls_dir, "c1", time.time())
    assert token.encode() not in (site.tls_dir / tls.REGISTER).read_bytes()


def test_a_token_file_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o644)
    with pytest.raises(QtandemError, match="can be read by others"):
        enrol.read_token(file)
    file.chmod(0o600)
    assert enrol.read_token(file) == "secret"


async def test_nothing_is_sent_to_a_server_of_another_fingerprint(site, tmp_path):
    """An impostor with a certificate of its own sees the handshake and not one byte more."""
    enrol.init(tmp_path / "impostor", [], time.time())
    context = tls.server_context(tmp_path / "impostor")
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            connection, _ = listener.accept()
            connection.settimeout(5)
            with context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=True) as secured:
                try:
                    received.extend(secured.recv(65536))
                except OSError:
                    return

        thread = threading.Thread(target=impostor)
        thread.start()
        token = enrol.issue_token(site.tls_dir, "c1", time.time())
        with pytest.raises(QtandemError) as caught:
            await asyncio.to_thread(
                enrol.enrol,
                f"127.0.0.1:{listener.getsockname()[1]}",
                enrol.server_fingerprint(site.tls_dir),
                token,
                "c1",
                tmp_path / "node",
            )
        thread.join(5)
    assert caught.value.code == "wrong-server"
    assert bytes(received) == b""
    assert not (tmp_path / "node" / tls.NODE).exists()


async def test_a_fingerprint_may_be_written_in_any_usual_form(daemon, tmp_path):
    plain = daemon.fingerprint.replace(":", "").lower()
    for number, form in enumerate([plain, f"sha256:{plain}", daemon.fingerprint]):
        token = enrol.issue_token(daemon.tls_dir, "c1", time.time())
        await asyncio.to_thread(enrol.enrol, daemon.server, form, token, "c1", tmp_path / str(number))


@pytest.mark.parametrize("empty", ["", "sha256:", ":::"])
async def test_an_empty_fingerprint_pins_nothing_and_is_refused(daemon, tmp_path, empty):
    token = enrol.issue_token(daemon.tls_dir, "c1", time.time())
    with pytest.raises(QtandemError) as caught:
        await asyncio.to_thread(enrol.enrol, daemon.server, empty, token, "c1", tmp_path / "node")
    assert caught.value.code == "wrong-server"


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 64, "c1\n", "-c"])
def test_odd_node_names_are_refused(site, name):
    with pytest.raises(QtandemError) as caught:
        enrol.issue_token(site.tls_dir, name, time.time())
    assert caught.value.code == "bad-request"


async def test_a_signing_request_without_its_key_is_refused(daemon):
    pem = certificates.make_csr(certificates.new_key(), "c1")
    tampered = pem.replace(pem[200:204], b"AAAA")
    call = enrol.EnrolCall(token="t" * 43, node="c1", csr=tampered.decode())
    with Nodes(daemon.tls_dir / tls.REGISTER) as nodes, pytest.raises(QtandemError) as caught:
        enrol.Authority(daemon.tls_dir, nodes, time.time).enrol(call)
    assert caught.value.code == "bad-request"


async def test_listing_and_revoking(daemon, node):
    (row,) = enrol.listing(daemon.tls_dir, time.time())
    assert (row.node, row.state) == ("c1", "waiting")
    pending = enrol.issue_token(daemon.tls_dir, "c1", time.time())
    assert enrol.revoke(daemon.tls_dir, "c1", time.time()) == 1
    (row,) = enrol.listing(daemon.tls_dir, time.time())
    assert row.state == "revoked"
    assert (await refused(daemon, "c1", pending, node / "again")).code == "not-enrolled"
    with pytest.raises(QtandemError):
        enrol.revoke(daemon.tls_dir, "nobody", time.time())


async def test_renewal_over_the_present_certificate_and_the_old_one_retires(daemon, node, start_relay):
    running = await start_relay(daemon.server, node)
    async with running.session() as session:
        async with session.get("/v1/facts") as answer:
            assert answer.status == 200
        old = enrol.own_certificate(node)
        assert not await running.relay.renew_certificate()
        running.relay._clock = lambda: time.time() + certificates.NODE_DAYS * 86400 * 0.9
        assert await running.relay.renew_certificate()
        new = enrol.own_certificate(node)
        assert certificates.serial(new) != certificates.serial(old)
        assert new.public_key() != old.public_key()
        assert mode(node / tls.NODE) == 0o600
        async with session.get("/v1/facts") as answer:
            assert answer.status == 200
    assert [row.state for row in enrol.listing(daemon.tls_dir, time.time())] == ["revoked", "active"]


async def test_renewal_with_a_revoked_certificate_is_refused(daemon, node, start_relay):
    running = await start_relay(daemon.server, node)
    enrol.revoke(daemon.tls_dir, "c1", time.time())
    running.relay._clock = lambda: time.time() + certificates.NODE_DAYS * 86400 * 0.9
    with pytest.raises(QtandemError):
        await running.relay.renew_certificate()


async def test_a_node_certificate_does_not_enrol_through_a_vouched_call(daemon, node):
    call = enrol.RenewCall(csr=certificates.make_csr(certificates.new_key(), "c1").decode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://{daemon.server}{tls.RENEW_PATH}",
            data=call.model_dump_json(),
            headers={UID_HEADER: "0"},
            ssl=tls.client_context(node),
            server_hostname=certificates.SERVER_NAME,
        ) as answer,
    ):
        assert answer.status == 403


def test_the_server_certificate_is_renewed_in_its_last_third(tmp_path):
    enrol.init(tmp_path, ["daemon.site", "10.0.0.1"], time.time())
    context, before = tls.server_context(tmp_path), enrol.server_fingerprint(tmp_path)
    assert not enrol.refresh_server(tmp_path, context, time.time())
    assert enrol.refresh_server(tmp_path, context, time.time() + 300 * 86400)
    assert enrol.server_fingerprint(tmp_path) != before
    renewed = x509.load_pem_x509_certificate((tmp_path / tls.SERVER).read_bytes())
    names = renewed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [certificates.SERVER_NAME, "daemon.site"]
    assert mode(tmp_path / tls.SERVER) == 0o600


def test_errors_and_models_do_not_show_the_token():
    call = enrol.EnrolCall(token="very-secret-token", node="c1", csr="x")
    assert "very-secret-token" not in repr(call)


async def test_a_malformed_call_is_refused_without_repeating_it(daemon):
    context = ssl.create_default_context(cafile=str(daemon.tls_dir / tls.CA))
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://{daemon.server}{tls.ENROL_PATH}",
            json={"token": "very-secret-token", "nodes": "c1"},
            ssl=context,
        ) as answer,
    ):
        assert answer.status == 400
        assert "very-secret-token" not in await answer.text()

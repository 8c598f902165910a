"""`qtandem relay`: the hosts that are not the daemon's."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qtandem.daemons.commands.options import ConfigPath, Json, group

if TYPE_CHECKING:
    from qtandem.core.settings import Settings

app = group("Relays: enrol the hosts that are not the daemon's.")


@app.command()
def init(
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name or address of this host.")
    ] = None,
    config: ConfigPath = "",
    json: Json = False,
) -> None:
    """On the daemon's host: make the authority and the server certificate, and print its fingerprint."""
    from qtandem.daemons import enrol
    from qtandem.daemons.commands.output import print_json

    names = [socket.gethostname(), socket.getfqdn(), *(host or [])]
    made = enrol.init(_settings(config).daemon.tls_dir, list(dict.fromkeys(names)), time.time())
    print_json({"fingerprint": made.fingerprint, "created": made.created}) if json else print(made.fingerprint)


@app.command()
def token(
    node: Annotated[str, typer.Argument(help="Host name of the node.")],
    ttl: Annotated[float, typer.Option(metavar="SECONDS", help="How long the token can be used.")] = 3600.0,
    config: ConfigPath = "",
    json: Json = False,
) -> None:
    """On the daemon's host: print a one-time token for a node. It cannot be shown again."""
    from qtandem.daemons import enrol
    from qtandem.daemons.commands.output import print_json

    secret = enrol.issue_token(_settings(config).daemon.tls_dir, node, time.time(), ttl)
    print_json({"node": node, "token": secret, "ttl_s": ttl}) if json else print(secret)


@app.command("enrol")
def enrol_node(
    fingerprint: Annotated[str, typer.Option(metavar="SHA256", help="As init printed it.")],
    token_file: Annotated[Path, typer.Option(metavar="FILE", help="File of mode 0600 with the token.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Default: that of the configuration.")] = "",
    node: Annotated[str, typer.Option(metavar="NAME", help="Default: this host's name.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the certificate that is there.")] = False,
    config: ConfigPath = "",
    json: Json = False,
) -> None:
    """On a node: get its certificate from the daemon."""
    from qtandem.core.errors import QtandemError
    from qtandem.daemons import enrol
    from qtandem.daemons.commands.output import moment, print_json

    settings = _settings(config)
    address = server or settings.relay.server
    if not address:
        raise QtandemError("bad-request", "No server is named", remedy="Give --server HOST:PORT.")
    done = enrol.enrol(
        address,
        fingerprint,
        enrol.read_token(token_file),
        node or socket.gethostname(),
        settings.daemon.tls_dir,
        replace=replace,
    )
    if json:
        print_json({"node": done.node, "expires_at": done.expires_at})
    else:
        print(
            f"{done.node} is enrolled until {moment(done.expires_at)}; start the relay: systemctl start qtandem-relay"
        )


@app.command("list")
def listing(config: ConfigPath = "", json: Json = False) -> None:
    """On the daemon's host: the certificates that nodes have."""
    from dataclasses import asdict

    from qtandem.daemons import enrol
    from qtandem.daemons.commands.output import moment, print_json, print_table

    nodes = [asdict(node) for node in enrol.listing(_settings(config).daemon.tls_dir, time.time())]
    if json:
        print_json({"nodes": nodes})
        return
    columns = list(nodes[0]) if nodes else ["node"]
    times = {"issued_at", "expires_at", "revoked_at"}
    print_table(
        [column.upper().removesuffix("_AT") for column in columns],
        ([moment(node[column]) if column in times else node[column] for column in columns] for node in nodes),
        empty="no node is enrolled",
    )


@app.command()
def revoke(
    node: Annotated[str, typer.Argument(help="Host name of the node.")], config: ConfigPath = "", json: Json = False
) -> None:
    """On the daemon's host: refuse a node from its next call on."""
    from qtandem.daemons import enrol
    from qtandem.daemons.commands.output import print_json

    count = enrol.revoke(_settings(config).daemon.tls_dir, node, time.time())
    print_json({"node": node, "revoked": count}) if json else print(f"{count} certificates of {node} are revoked")


def _settings(config: str) -> Settings:
    from qtandem.core.config import load

    return load(Path(config) if config else None).settings

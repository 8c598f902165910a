"""Names of hosts as managers, certificates and the system write them."""

from __future__ import annotations

from collections.abc import Iterable


def among(host: str, hosts: Iterable[str]) -> bool:
    """Whether `hosts` name this host; first labels suffice, since managers use short names and others full ones."""
    short = host.partition(".")[0]
    return any(host == known or short == known.partition(".")[0] for known in hosts)

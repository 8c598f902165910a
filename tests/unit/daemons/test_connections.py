"""How many connections the daemon keeps for whom."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from qtandem.daemons.app import bound_connections


class Server:
    def connection_made(self, handler: object, transport: object) -> None: ...

    def connection_lost(self, handler: object, exc: BaseException | None = None) -> None: ...


@dataclass(eq=False)
class Connection:
    """A TCP connection, over TLS where it has a certificate (empty: TLS without one)."""

    certificate: bytes | None = None
    aborted: bool = False
    socket: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_INET))

    def get_extra_info(self, name: str) -> object:
        if name == "socket":
            return self.socket
        return self if name == "ssl_object" and self.certificate is not None else None

    def getpeercert(self, binary_form: bool) -> bytes | None:
        assert binary_form
        return self.certificate or None

    def abort(self) -> None:
        self.aborted = True
        self.socket.close()


def test_strangers_together_and_each_node_have_a_bound() -> None:
    server = Server()
    bound_connections(server, per_node=2, strangers=3)  # type: ignore[arg-type]
    made = [Connection(certificate) for certificate in (None, b"", b"", None, b"n1", b"n1", b"n1", b"n2")]
    for each in made:
        server.connection_made(each, each)
    assert [each.aborted for each in made] == [False, False, False, True, False, False, True, False]
    for each in made:
        each.socket.close()
        server.connection_lost(each)
    again = Connection()
    server.connection_made(again, again)
    assert not again.aborted
    again.socket.close()

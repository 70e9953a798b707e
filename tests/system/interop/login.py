"""A client on python-qpid-proton that logs in over TLS: login.py HOST:PORT MECHANISM USER SECRET AUTHORITY CERTIFICATE KEY.

A mechanism takes of the words what it needs. It prints `open` when it is let in, and stays until its standard input ends;
`refused` when it is not.
"""

from __future__ import annotations

import sys
from typing import Any

from proton import SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Client(MessagingHandler):
    """One connection."""

    def __init__(self, address: str, mechanism: str, *words: str) -> None:
        super().__init__()
        self.address, self.mechanism, self.words = address, mechanism, words

    def on_start(self, event: Any) -> None:
        user, secret, authority, certificate, key = self.words
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(authority)
        who: dict[str, Any] = {"ssl_domain": domain}
        if self.mechanism == "EXTERNAL":
            domain.set_credentials(certificate, key, None)
        elif self.mechanism != "ANONYMOUS":
            who |= {"user": user, "password": secret}
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        event.container.connect(f"amqps://{self.address}", allowed_mechs=self.mechanism, reconnect=False, **who)

    def on_connection_opened(self, event: Any) -> None:
        print("open", flush=True)
        sys.stdin.read()
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        print("refused", flush=True)


if __name__ == "__main__":
    Container(Client(*sys.argv[1:])).run()

"""A client on python-qpid-proton that logs in over TLS, once for each line HOST:PORT MECHANISM USER SECRET AUTHORITY CERTIFICATE
KEY of its standard input.

A mechanism takes of the words what it needs. It prints `open` when it is let in, and stays until there is an empty line;
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
        self.said = False

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
        self.say("open")
        sys.stdin.readline()
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        self.say("refused")

    def say(self, word: str) -> None:
        """Once."""
        if not self.said:
            self.said = True
            print(word, flush=True)


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        Container(Client(*line.split())).run()

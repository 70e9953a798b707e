"""A client on python-qpid-proton that logs in: login.py HOST:PORT MECHANISM [USER PASSWORD], or over TLS with its certificate:
login.py HOST:PORT EXTERNAL CERTIFICATE KEY AUTHORITY.

It prints `open` when it is let in, and stays until its standard input ends; `refused` when it is not.
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
        who: dict[str, Any] = {}
        if self.mechanism == "EXTERNAL":
            certificate, key, authority = self.words
            domain = who["ssl_domain"] = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(authority)
            domain.set_credentials(certificate, key, None)
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        elif self.words:
            who["user"], who["password"] = self.words
        scheme = "amqps" if self.mechanism == "EXTERNAL" else "amqp"
        event.container.connect(
            f"{scheme}://{self.address}", allowed_mechs=self.mechanism, allow_insecure_mechs=True, reconnect=False, **who
        )

    def on_connection_opened(self, event: Any) -> None:
        print("open", flush=True)
        sys.stdin.read()
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        print("refused", flush=True)


if __name__ == "__main__":
    Container(Client(*sys.argv[1:])).run()

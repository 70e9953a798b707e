"""A client on python-qpid-proton that logs in: login.py HOST:PORT MECHANISM [USER PASSWORD].

It prints `open` when it is let in, and stays until its standard input ends; `refused` when it is not.
"""

from __future__ import annotations

import sys
from typing import Any

from proton.handlers import MessagingHandler
from proton.reactor import Container


class Client(MessagingHandler):
    """One connection."""

    def __init__(self, address: str, mechanism: str, user: str | None = None, password: str | None = None) -> None:
        super().__init__()
        self.address, self.mechanism, self.user, self.password = address, mechanism, user, password

    def on_start(self, event: Any) -> None:
        event.container.connect(
            f"amqp://{self.address}",
            allowed_mechs=self.mechanism,
            user=self.user,
            password=self.password,
            allow_insecure_mechs=True,
            reconnect=False,
        )

    def on_connection_opened(self, event: Any) -> None:
        print("open", flush=True)
        sys.stdin.read()
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        print("refused", flush=True)


if __name__ == "__main__":
    Container(Client(*sys.argv[1:])).run()

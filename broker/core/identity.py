"""What a socket tells of who is at its other end, before a byte of AMQP has come.

A `Socket` is made for each connection when its transport is ready: at once when it is in the clear, after the handshake of TLS
when it is not. It never changes.

Invariant: a `Certificate` is one that was verified against the broker's own list of authorities. One that was not is never shown
to anybody: the handshake fails.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a peer's verified certificate says (RFC 5280).

    `subject` is its distinguished name as RFC 4514 text, `common_name` the most specific CN in it, or "". The rest are the
    subject's alternative names as they stand there: `dns_names`, `addresses` (IP, in their usual text), `uris` and `emails`.
    `serves` tells whether it is good for a server: it has no list of extended purposes, or one with serverAuth.
    """

    subject: str
    common_name: str = ""
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    serves: bool = True


@dataclass(frozen=True, slots=True)
class Socket:
    """The other end of a connection: its `address` as text, `host:port`, whether what goes over it is `encrypted`, and the
    `certificate` that the peer has shown, if it has. `own`: the other end is of this process, too, and nobody else can
    speak over it."""

    address: str
    encrypted: bool = False
    certificate: Certificate | None = None
    own: bool = False

    @property
    def host(self) -> str:
        """Where it comes from, without the port."""
        return self.address.rpartition(":")[0]

"""What is known about the peer of a socket before the first byte of AMQP.

A `Socket` is made for each connection when its transport is ready: without TLS at once, with TLS after the handshake. It never
changes.

Invariant: a `Certificate` was verified against the broker's own list of authorities. If the verification fails, the handshake
fails, and there is no `Certificate`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Certificate:
    """The content of a peer's verified certificate (RFC 5280).

    `subject` is its distinguished name as RFC 4514 text, `common_name` the most specific CN in it, or "". The others are the
    subject's alternative names, unchanged: `dns_names`, `addresses` (IP, in their usual text), `uris` and `emails`. `serves`:
    whether it is valid for a server: it has no list of extended purposes, or one with serverAuth.
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
    """The peer of a connection: its `address` as text, `host:port`, whether the connection is `encrypted`, and the peer's
    `certificate`, if it sent one. `own`: the peer is this same process, and nobody else can use the connection."""

    address: str
    encrypted: bool = False
    certificate: Certificate | None = None
    own: bool = False

    @property
    def host(self) -> str:
        """The address without the port."""
        return self.address.rpartition(":")[0]

"""The bytes of clients' messages that are not committed yet, and the connections that wait while there are too many.

Credit limits the number of messages that a producer may send, not their size: a thousand of 16 MiB are allowed. So the bytes are
counted too, for both logs together. Life of a message here: its ledger calls `came` when it takes the message, and `gone` when
its batch is applied or void. While the sum is above the limit, a connection that sends more messages is not read: its client
finds a full socket, as with any slow peer. When the sum has fallen to half, all waiting connections are read again. Connections
that send parts of large messages have a lower limit, because parts arrive as fast as the network, and each part is in memory
several times on its way.

Invariants: `nbytes` is the sum of the bytes in batches that are not applied; a connection waits only while `nbytes` is above half
of its limit, so the bytes that it waits for are always about to be committed; links between brokers never wait here.
"""

from __future__ import annotations

from typing import Protocol

from broker.core import limits


class Source(Protocol):
    """A connection that messages come from."""

    def stop_reading(self) -> None:
        """Stop reading the socket."""

    def read_again(self) -> None:
        """Take it again."""


class Inflow:
    """See the module. `limit_bytes` is the limit; `parts_limit_bytes` is the one for connections that send parts of large
    messages."""

    def __init__(self, limit_bytes: int, parts_limit_bytes: int = limits.PARTS_INFLOW_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.parts_limit_bytes = parts_limit_bytes
        self.nbytes = 0
        self.letter_bytes = 0
        """How many of these bytes are dead letters."""
        self._waiting: dict[Source, None] = {}
        self._with_parts: dict[Source, None] = {}

    def came(self, nbytes: int) -> None:
        """A ledger has taken messages of so many bytes."""
        self.nbytes += nbytes

    def gone(self, nbytes: int) -> None:
        """So many bytes are applied, or void."""
        self.nbytes -= nbytes
        if self._waiting and self.nbytes <= self.limit_bytes // 2:
            waiting, self._waiting = self._waiting, {}
            for source in waiting:
                source.read_again()
        if self._with_parts and self.nbytes <= self.parts_limit_bytes // 2:
            waiting, self._with_parts = self._with_parts, {}
            for source in waiting:
                source.read_again()

    def brought(self, source: Source, *, parts: bool = False) -> None:
        """This connection has brought messages, or `parts` of a large one: while there is too much, it waits."""
        limit_bytes, waiting = (self.parts_limit_bytes, self._with_parts) if parts else (self.limit_bytes, self._waiting)
        if self.nbytes > limit_bytes and source not in self._waiting and source not in self._with_parts:
            waiting[source] = None
            source.stop_reading()

    def forget(self, source: Source) -> None:
        """This connection is gone."""
        self._waiting.pop(source, None)
        self._with_parts.pop(source, None)

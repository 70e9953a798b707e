"""The messages that wait to be sent to each member, in the order of the core.

Almost every message leaves at once. If the bytes of a message must first be read from disk, later messages for the same
member wait behind it.

Life of an item: `send` or `send_later` puts it at the end of its member's line; it leaves when all items before it have left.
`clear` drops the line and the results of reads in progress for it, when the link is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ha.core.membership import Membership
from ha.core.messages import Message


class Sending(Protocol):
    """Where messages leave. Calls return at once and never raise."""

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """Send a message with these batches (Append), or with its one chunk of bytes (SnapshotChunk). Messages keep their
        order; they are dropped if the peer is not connected."""


class Peers(Sending, Protocol):
    """The links to the other members, by address."""

    def set_members(self, members: Membership) -> None:
        """Keep links to these members."""

    def close(self, peer: str, reason: str) -> None:
        """Close the link to this peer, which has sent an invalid message; the link may be opened again."""

    def reads_snapshots(self, peer: str) -> bool:
        """Whether this peer, which needs a snapshot, can read those of this release."""


class NoPeers:
    """The links of a log that only this broker has."""

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """There is no peer."""

    def set_members(self, members: Membership) -> None:
        """There is no peer."""

    def close(self, peer: str, reason: str) -> None:
        """There is no peer."""

    def reads_snapshots(self, peer: str) -> bool:
        """There is no peer."""
        return False


class _Item:
    __slots__ = ("batches", "message", "wanted")

    def __init__(self, message: Message, batches: Sequence[bytes] | None, wanted: Callable[[], bool] | None) -> None:
        self.message = message
        self.batches = batches
        self.wanted = wanted


class Outbox:
    """One line for each member."""

    def __init__(self, peers: Sending) -> None:
        self._peers = peers
        self._lines: dict[str, deque[_Item]] = {}

    def send(self, peer: str, message: Message, batches: Sequence[bytes]) -> None:
        """Send now, or when all items before it have left."""
        line = self._lines.get(peer)
        if line:
            line.append(_Item(message, batches, None))
        else:
            self._peers.send(peer, message, batches)

    def send_later(
        self,
        peer: str,
        message: Message,
        reading: Deferred[Any],
        wanted: Callable[[], bool],
        failed: Callable[[str, Exception], None],
    ) -> None:
        """Send when `reading` has the batches, if the message is still `wanted` then. `failed` is called if the read fails."""
        item = _Item(message, None, wanted)
        line = self._lines.setdefault(peer, deque())
        line.append(item)

        def arrived(batches: Sequence[bytes]) -> None:
            item.batches = batches
            self._flush(peer, line)

        def went_wrong(failure: Failure) -> None:
            if self._lines.get(peer) is line:
                self.clear(peer)
                failed(peer, exception_of(failure))

        reading.addCallbacks(arrived, went_wrong)

    def clear(self, peer: str) -> None:
        """Drop this member's line."""
        self._lines.pop(peer, None)

    def _flush(self, peer: str, line: deque[_Item]) -> None:
        if self._lines.get(peer) is not line:
            return
        while line and line[0].batches is not None:
            item = line.popleft()
            if item.wanted is None or item.wanted():
                self._peers.send(peer, item.message, item.batches or ())


def exception_of(failure: Failure) -> Exception:
    """What a read in a thread has raised."""
    return failure.value if isinstance(failure.value, Exception) else RuntimeError(str(failure.value))

"""Decides when a log takes another batch from its broker, and when the broker is told so.

Life of a batch here: it is proposed, it is in progress, and it is applicable once it is committed and durable here. Messages
that wait while a batch is in progress make the next one larger, and so cheaper. So one large batch at a time is enough, or a
few small ones. A full batch gains nothing by waiting, so several full ones follow each other, up to a limit that keeps the
wait of later messages short.

Invariant: the broker is told once that proposals have become welcome, if it has asked in vain since it was told last, or the disk
has refused writes (`declined`). Otherwise nothing waits for that, and nobody looks. It asks again by itself when a term begins.
"""

from __future__ import annotations

from ha.core.log import Log
from ha.core.settings import MIB

LARGE_BATCH_BYTES = 64 * 1024
FULL_BATCH_BYTES = 512 * 1024
SMALL_WINDOW = 4
FULL_WINDOW_BYTES = 3 * MIB


class Proposing:
    """See the module."""

    def __init__(self) -> None:
        self.refused = False
        """Whether the disk has refused the last write."""
        self._through = 0
        self._last_bytes = 0
        self.declined = False
        """Whether the broker is to be told when proposals are welcome."""

    def begin_after(self, index: int) -> None:
        """A term begins: no batch up to this index counts as in progress."""
        self._through = max(self._through, index)

    def proposed(self, index: int, nbytes: int) -> None:
        """One more batch is in progress."""
        self._through, self._last_bytes = index, nbytes

    def refuse(self) -> None:
        """The disk refuses writes: no proposals are welcome."""
        self.refused = self.declined = True

    def has_room(self, log: Log, applicable: int) -> bool:
        """Whether another batch fits beside those in progress: a few if they are small or full, one if the size is in
        between."""
        if self.refused:
            return False
        under_way = self._through - applicable
        if self._last_bytes < LARGE_BATCH_BYTES:
            return under_way < SMALL_WINDOW
        if self._last_bytes < FULL_BATCH_BYTES or not under_way:
            return under_way < 1
        return log.bytes_between(applicable, self._through) <= FULL_WINDOW_BYTES

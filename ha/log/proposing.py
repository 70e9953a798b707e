"""When a log takes another batch from its broker, and that its broker is told so.

Life of a batch here: it is proposed, is under way, and is applicable once it is committed and durable here. What waits while a
batch is under way makes the next one larger, and so cheaper: one large batch at a time is enough, and a few small ones. One that
is full already gains nothing by waiting, so several follow each other, as long as they do not make the wait of what comes then
long.

Invariant: the broker is told once each time when proposals have become welcome.
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
        """Whether the disk has refused what was written last."""
        self._through = 0
        self._last_bytes = 0
        self._was_welcome = False

    def begin_after(self, index: int) -> None:
        """A term begins: nothing up to this index is under way."""
        self._through = max(self._through, index)

    def proposed(self, index: int, nbytes: int) -> None:
        """One batch more is under way."""
        self._through, self._last_bytes = index, nbytes

    def refuse(self) -> None:
        """The disk refuses: nothing is welcome."""
        self.refused, self._was_welcome = True, False

    def has_room(self, log: Log, applicable: int) -> bool:
        """Whether few enough batches are under way: a few when they are small or full, one in between."""
        if self.refused:
            return False
        under_way = self._through - applicable
        if self._last_bytes < LARGE_BATCH_BYTES:
            return under_way < SMALL_WINDOW
        if self._last_bytes < FULL_BATCH_BYTES or not under_way:
            return under_way < 1
        return log.bytes_between(applicable, self._through) <= FULL_WINDOW_BYTES

    def became(self, welcome: bool) -> bool:
        """Whether proposals have become welcome since this was asked last."""
        became, self._was_welcome = welcome and not self._was_welcome, welcome
        return became

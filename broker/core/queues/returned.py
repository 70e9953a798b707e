"""The messages of a queue that became available again, noted once for all scans.

Each scan has its own position in the list of notes, and reads on from there when it is its turn. So a message that returns costs
the same, however many scans the queue has.

Invariants: every scan reads a note of each message that became available after the scan began, unless the message is gone or
acquired; a note is read once; the notes are no more than twice the messages that were available when they were last trimmed, plus
one for each scan, plus a constant.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

_MIN_TRIM = 64


class Reader(Protocol):
    """It reads the notes."""

    n_read: int
    """The notes that it has read."""

    def is_available(self, sequence: int) -> bool:
        """Whether this message is on the queue and not acquired."""

    def restart(self) -> None:
        """All that was acquired is available again: it has no position any more, and there is nothing to read."""


class Returned:
    """See the module."""

    __slots__ = ("_trim_at", "readers", "sequences")

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.sequences: list[int] = []
        """The notes; only if there are readers."""
        self._trim_at = _MIN_TRIM

    def add(self, reader: Reader) -> None:
        """It reads what is noted from now on."""
        reader.n_read = len(self.sequences)
        self.readers.append(reader)

    def remove(self, reader: Reader) -> None:
        """It reads no more."""
        self.readers.remove(reader)
        if not self.readers:
            self.sequences.clear()

    def note(self, sequence: int) -> None:
        """This message is available again; there are readers."""
        self.sequences.append(sequence)
        if len(self.sequences) > self._trim_at:
            self._trim()

    def restart(self) -> None:
        """All that was acquired is available again."""
        self.sequences.clear()
        for reader in self.readers:
            reader.restart()

    def _trim(self) -> None:
        """Keep the last note of each message that is available and that a reader has not read."""
        readers, sequences = self.readers, self.sequences
        is_available, first = readers[0].is_available, min(reader.n_read for reader in readers)
        last = {sequence: place for place, sequence in enumerate(sequences[first:], first)}
        kept = sorted(place for sequence, place in last.items() if is_available(sequence))
        for reader in readers:
            reader.n_read = bisect_left(kept, reader.n_read)
        self.sequences = [sequences[place] for place in kept]
        self._trim_at = 2 * len(kept) + len(readers) + _MIN_TRIM

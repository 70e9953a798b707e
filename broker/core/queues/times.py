"""The times when messages of a queue expire, or when they may be delivered: a column of times by sequence, for the messages that
have one.

Life of an entry: a TIMES record puts it. On the primary it is taken once when its time has come, and may be put `again`. It is
removed with its message. A new term begins with `rewind`: all entries whose time has come can be taken again.

Times are whole ms since 1970 of the log's time (broker.core.log_time); 0 means no time. Entries are in chunks of `CHUNK`
consecutive sequences: 8 bytes for each message of a chunk with an entry, and nothing for other messages.

Invariants: an entry that was taken is not taken again before `again`, a rewind, or a new time other than `OVER`; a chunk without
entries is dropped; the agenda has each chunk with entries to take, at a time not later than its first one; taking a chunk costs
as much as reading it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from broker.core.queues.lane import inside
from broker.core.schedule import Agenda

_SHIFT = 9
CHUNK = 1 << _SHIFT
"""Sequences of one chunk."""
_TAKEN = 1 << 63
OVER = 1
"""A time that ends the waiting of an entry, and changes nothing if it was taken."""
MAX_MS = 1 << 52
"""The latest time; a later one is taken for this."""


class _Chunk:
    __slots__ = ("column", "due_ms", "n")

    def __init__(self) -> None:
        self.column = array("Q", bytes(8 * CHUNK))
        self.n = 0
        """Entries, taken ones too."""
        self.due_ms = 0
        """When it is to be looked at; 0: nothing of it is to be taken."""


class Times:
    """See the module. `waiting`: entries that were not taken."""

    __slots__ = ("_agenda", "_chunks", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._chunks: dict[int, _Chunk] = {}
        self._agenda: Agenda[int] = Agenda()

    def __len__(self) -> int:
        return sum(chunk.n for chunk in self._chunks.values())

    @property
    def next_ms(self) -> float | None:
        """When something is to be taken next, or to be looked at; None when nothing is."""
        return self._agenda.next_s

    def put(self, first_seq: int, column: array[int]) -> None:
        """These are the times of the messages from `first_seq` on; 0 leaves a message as it is."""
        at, end = 0, len(column)
        while at < end:
            key, lo = (first_seq + at) >> _SHIFT, (first_seq + at) & (CHUNK - 1)
            part = column[at : at + CHUNK - lo]
            at += len(part)
            times = [each for each in part if each]
            if not times:
                continue
            chunk = self._chunks.get(key)
            if chunk is None:
                chunk = self._chunks[key] = _Chunk()
            self._fill(chunk, lo, part)
            self._look_at(key, chunk, min(times))

    def _fill(self, chunk: _Chunk, lo: int, part: array[int]) -> None:
        was = chunk.column[lo : lo + len(part)]
        if any(was):
            self._forget(chunk, lo, was)
            part = array("Q", [_after(old, new) for new, old in zip(part, was, strict=True)])
        chunk.column[lo : lo + len(part)] = part
        chunk.n += len(part) - part.count(0)
        self.waiting += sum(0 < each < _TAKEN for each in part)

    def _forget(self, chunk: _Chunk, lo: int, was: array[int]) -> None:
        """Do not count these entries at `lo` any more."""
        chunk.n -= len(was) - was.count(0)
        self.waiting -= sum(0 < each < _TAKEN for each in was)
        chunk.column[lo : lo + len(was)] = array("Q", bytes(8 * len(was)))

    def _look_at(self, key: int, chunk: _Chunk, when_ms: int) -> None:
        if not chunk.due_ms or when_ms < chunk.due_ms:
            chunk.due_ms = when_ms
            self._agenda.put(key, when_ms)

    def removed(self, first_seq: int, count: int) -> None:
        """These messages were removed, or did not exist."""
        end = first_seq + count
        for key in inside(self._chunks, first_seq >> _SHIFT, (end - 1 >> _SHIFT) + 1):
            chunk, base = self._chunks[key], key << _SHIFT
            lo, hi = max(first_seq - base, 0), min(end - base, CHUNK)
            was = chunk.column[lo:hi]
            if any(was):
                self._forget(chunk, lo, was)
            if not chunk.n:
                del self._chunks[key]
                self._agenda.drop(key)

    # ---- what is asked

    def at(self, sequence: int) -> int:
        """The time of this message, taken or not; 0: it has none."""
        chunk = self._chunks.get(sequence >> _SHIFT)
        return 0 if chunk is None else chunk.column[sequence & (CHUNK - 1)] & ~_TAKEN

    def is_waiting(self, sequence: int) -> bool:
        """Whether this message has a time that was not taken."""
        chunk = self._chunks.get(sequence >> _SHIFT)
        return chunk is not None and 0 < chunk.column[sequence & (CHUNK - 1)] < _TAKEN

    def any_of(self, first_seq: int, count: int) -> bool:
        """Whether one of these messages may have a time: whether one near them has."""
        chunks = self._chunks
        return any(key in chunks for key in range(first_seq >> _SHIFT, ((first_seq + count - 1) >> _SHIFT) + 1))

    # ---- what the primary does

    def take(self, now_ms: int, most: int) -> list[int]:
        """Sequences whose time has come, each once; about `most`, from the chunks with the earliest times."""
        found: list[int] = []
        while len(found) < most and (key := self._agenda.take_next(now_ms)) is not None:
            chunk = self._chunks[key]
            chunk.due_ms = 0
            column, base = chunk.column, key << _SHIFT
            later = 0
            for at, when_ms in enumerate(column):
                if 0 < when_ms < _TAKEN:
                    if when_ms <= now_ms:
                        column[at] = when_ms | _TAKEN
                        found.append(base + at)
                    elif not later or when_ms < later:
                        later = when_ms
            if later:
                self._look_at(key, chunk, later)
        self.waiting -= len(found)
        return found

    def claim(self, sequence: int) -> bool:
        """Take this message's time now. Whether it was there to be taken."""
        if not self.is_waiting(sequence):
            return False
        self._chunks[sequence >> _SHIFT].column[sequence & (CHUNK - 1)] |= _TAKEN
        self.waiting -= 1
        return True

    def again(self, sequences: Iterable[int], when_ms: int) -> None:
        """These were taken, and are to be looked at again then."""
        for sequence in sequences:
            key, at = sequence >> _SHIFT, sequence & (CHUNK - 1)
            chunk = self._chunks.get(key)
            if chunk is not None and chunk.column[at] & _TAKEN:
                chunk.column[at] &= ~_TAKEN
                self.waiting += 1
                self._look_at(key, chunk, when_ms)

    def rewind(self) -> None:
        """Nothing was taken."""
        for key, chunk in self._chunks.items():
            chunk.column = _untaken(chunk.column)
            chunk.due_ms = 0
            self._look_at(key, chunk, min(filter(None, chunk.column)))
        self.waiting = len(self)

    def rewind_after(self, when_ms: int) -> None:
        """Nothing was taken whose time is later than this."""
        for key, chunk in self._chunks.items():
            column = chunk.column
            found = [at for at, each in enumerate(column) if each & _TAKEN and each & ~_TAKEN > when_ms]
            for at in found:
                column[at] &= ~_TAKEN
            if found:
                self.waiting += len(found)
                self._look_at(key, chunk, min([column[at] for at in found]))

    # ---- checkpoints

    def columns(self) -> Iterator[tuple[int, array[int]]]:
        """First sequence and times of each chunk, as copies."""
        for key, chunk in self._chunks.items():
            yield key << _SHIFT, _untaken(chunk.column)


def _after(old: int, new: int) -> int:
    """What an entry is when it gets a new time."""
    return old if not new else new | old & _TAKEN if new == OVER else new


def _untaken(column: array[int]) -> array[int]:
    """A copy, in which nothing was taken."""
    if max(column) < _TAKEN:
        return column[:]
    return array("Q", [each & ~_TAKEN for each in column])

"""The messages of one move that are between the two brokers, in columns: no message has an object of its own.

Life of a run: consecutive messages of one queue arrive together (`add`). They are sent in the order of arrival, in one or more
parts (`next_part`). They leave as ranges of sequences, in any order (`leave`), and then the source can settle their deliveries.
A run is forgotten when all of its messages have left.

Invariants: a sequence is in at most one run; the messages of a run have consecutive deliveries at the source; the bytes of a
message are kept until it is sent, its size, checksum and traits until it has left.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import google_crc32c


class Part(NamedTuple):
    """Messages to send: those from `start` to `stop - 1` of a run, whose bytes end at `ends[start + 1]`, ..."""

    sequence: int
    """Of the first one."""
    data: bytes
    ends: list[int]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The size of its messages."""
        return self.ends[self.stop] - self.ends[self.start]


class Gone(NamedTuple):
    """Messages that have left: their deliveries at the source as runs (first, count), their bytes, the sum of their CRC-32C."""

    deliveries: list[tuple[int, int]]
    nbytes: int
    checksum: int


class _Run:
    __slots__ = ("checksums", "ends", "first", "first_id", "largest", "left", "messages", "sent", "traits")

    def __init__(self, first: int, first_id: int, messages: list[bytes], traits: Sequence[bytes]) -> None:
        self.first = first
        self.first_id = first_id
        self.messages = messages
        self.traits = traits
        sizes = list(map(len, messages))
        self.largest = max(sizes)
        self.ends = list(accumulate(sizes, initial=0))
        self.checksums = list(accumulate(map(google_crc32c.value, messages), initial=0))
        self.sent = 0
        self.left = len(messages)

    def cut(self, most: int, largest: int) -> int:
        """Where the next part ends: before the first message above `largest`, which is a part by itself."""
        start, ends = self.sent, self.ends
        stop = min(start + most, len(ends) - 1)
        if self.largest <= largest:
            return stop
        return max(start + 1, next((at for at in range(start, stop) if ends[at + 1] - ends[at] > largest), stop))


class InFlight:
    """See the module. `count` and `nbytes` are those of all messages that are here or on their way."""

    def __init__(self) -> None:
        self.count = 0
        self.nbytes = 0
        self._firsts: list[int] = []
        """The first sequence of each run, ascending."""
        self._runs: dict[int, _Run] = {}
        self._waiting: deque[_Run] = deque()
        """The runs that are not sent completely, in the order of arrival."""

    def add(self, first: int, first_id: int, messages: list[bytes], traits: Sequence[bytes]) -> bool:
        """A run of messages arrives: `first` is its first sequence, `first_id` its first delivery at the source. `traits`: one
        for each, or none. Returns False if one of these sequences is here already; then nothing is added."""
        at = bisect_right(self._firsts, first + len(messages) - 1)
        if at:
            before = self._runs[self._firsts[at - 1]]
            if before.first + len(before.ends) - 1 > first:
                return False
        run = self._runs[first] = _Run(first, first_id, messages, traits)
        insort(self._firsts, first)
        self._waiting.append(run)
        self.count += len(messages)
        self.nbytes += run.ends[-1]
        return True

    def next_part(self, most: int, largest: int) -> Part | None:
        """The next messages to send: at least one and up to `most`. A message above `largest` bytes comes alone, so that the
        caller can refuse it. None: nothing waits."""
        if not self._waiting:
            return None
        run = self._waiting[0]
        start, stop = run.sent, run.cut(most, largest)
        part = Part(run.first + start, b"".join(run.messages[start:stop]), run.ends, start, stop)
        run.sent = stop
        if stop == len(run.messages):
            self._waiting.popleft()
            run.messages = []
        return part

    def traits(self, sequence: int, count: int) -> list[bytes]:
        """The traits of messages of one run."""
        run = self._with(sequence)
        return list(run.traits[sequence - run.first : sequence - run.first + count])

    def leave(self, sequences: range) -> Gone:
        """These messages, which were sent or refused, leave."""
        deliveries: list[tuple[int, int]] = []
        at, nbytes, checksum = sequences.start, 0, 0
        while at < sequences.stop:
            run = self._with(at)
            start, stop = at - run.first, min(len(run.ends) - 1, sequences.stop - run.first)
            deliveries.append((run.first_id + start, stop - start))
            nbytes += run.ends[stop] - run.ends[start]
            checksum += run.checksums[stop] - run.checksums[start]
            run.left -= stop - start
            if not run.left:
                del self._runs[run.first]
                del self._firsts[bisect_right(self._firsts, run.first) - 1]
            at = run.first + stop
        self.count -= len(sequences)
        self.nbytes -= nbytes
        return Gone(deliveries, nbytes, checksum)

    def stop(self) -> None:
        """Nothing more is sent."""
        self._waiting.clear()

    def _with(self, sequence: int) -> _Run:
        return self._runs[self._firsts[bisect_right(self._firsts, sequence) - 1]]

"""Sets of natural numbers, and how often each was seen, in memory that does not grow with the messages.

Life of a set: numbers mostly arrive in consecutive runs. They are kept as bits, `CHUNK` numbers in an int; all full
chunks share one int. So a complete stream costs one entry of a dictionary for every 16,384 messages, and a stream with
gaps everywhere costs one bit for each message.

Invariants: numbers are never removed; `len` is the number of different numbers that were added.
"""

from __future__ import annotations

from collections.abc import Iterator

CHUNK = 1 << 14
_FULL = (1 << CHUNK) - 1
MOST_TIMES = 64
"""If a number was seen more often, only `Tally.beyond_count` counts it."""


class Numbers:
    """A set of natural numbers."""

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._count = 0

    def add(self, first: int, count: int = 1) -> None:
        """Add `first` and the following numbers, `count` in all."""
        for chunk, bits in _split(first, count):
            self.add_bits(chunk, bits)

    def add_bits(self, chunk: int, bits: int) -> int:
        """Add numbers of one chunk, given as bits. Returns the numbers that were already there."""
        before = self._chunks.get(chunk, 0)
        if before is _FULL:
            return bits
        after = before | bits
        self._count += after.bit_count() - before.bit_count() if before else bits.bit_count()
        self._chunks[chunk] = _FULL if after == _FULL else after
        return before & bits

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return bool(self._chunks.get(number // CHUNK, 0) >> number % CHUNK & 1)

    def __sub__(self, other: Numbers) -> Numbers:
        """The numbers that are not in the other set."""
        mine, others = self._chunks.items(), other._chunks
        return self._made((chunk, bits & ~others.get(chunk, 0)) for chunk, bits in mine if bits is not others.get(chunk))

    def __and__(self, other: Numbers) -> Numbers:
        """The numbers that are in both sets."""
        return self._made((chunk, bits & other._chunks.get(chunk, 0)) for chunk, bits in self._chunks.items())

    def __or__(self, other: Numbers) -> Numbers:
        """The numbers that are in at least one of the sets."""
        made = self._made(iter(self._chunks.items()))
        for chunk, bits in other._chunks.items():
            made.add_bits(chunk, bits)
        return made

    def first(self, most: int) -> list[int]:
        """The lowest numbers, at most this many."""
        found: list[int] = []
        for chunk in sorted(self._chunks):
            bits = self._chunks[chunk]
            while bits and len(found) < most:
                found.append(chunk * CHUNK + (bits & -bits).bit_length() - 1)
                bits &= bits - 1
        return found

    @staticmethod
    def _made(parts: Iterator[tuple[int, int]]) -> Numbers:
        made = Numbers()
        for chunk, bits in parts:
            if bits:
                made.add_bits(chunk, bits)
        return made


class Tally:
    """How often each number was seen."""

    __slots__ = ("_levels", "beyond_count")

    def __init__(self) -> None:
        self._levels: list[Numbers] = [Numbers()]
        self.beyond_count = 0
        """How often numbers were seen that had already been seen MOST_TIMES."""

    def add(self, first: int, count: int = 1) -> None:
        """Count `first` and the following numbers, `count` in all, once more."""
        for chunk, bits in _split(first, count):
            again = bits
            for level in self._levels:
                again = level.add_bits(chunk, again)
                if not again:
                    break
            else:
                if len(self._levels) < MOST_TIMES:
                    self._levels.append(Numbers())
                    self._levels[-1].add_bits(chunk, again)
                else:
                    self.beyond_count += again.bit_count()

    def at_least(self, times: int) -> Numbers:
        """The numbers that were seen at least this often (1, 2, ...)."""
        return self._levels[times - 1] if times <= len(self._levels) else Numbers()

    def repeats(self) -> int:
        """How often numbers were seen after their first time."""
        return sum(map(len, self._levels[1:])) + self.beyond_count

    def repeats_not_in(self, allowed: Tally) -> int:
        """How many of the repeats are more than `allowed` has: if it has a number twice, the number may be seen three
        times.
        """
        over = (len(level - allowed.at_least(times)) for times, level in enumerate(self._levels[1:], 1))
        return sum(over) + self.beyond_count


def _split(first: int, count: int) -> Iterator[tuple[int, int]]:
    """The chunks of a run, with the bits of the run in each."""
    assert first >= 0
    while count > 0:
        chunk, start = divmod(first, CHUNK)
        size = min(count, CHUNK - start)
        yield chunk, ((1 << size) - 1) << start
        first, count = first + size, count - size

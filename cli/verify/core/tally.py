"""Sets of natural numbers, and how often each was seen, in memory that does not grow with the messages.

Life of a set: numbers come mostly in runs that follow one another. They are kept as bits, `CHUNK` numbers to an int; a chunk that
is full shares one int with all that are full. So a stream of which nothing is missing costs a dictionary's entry for every 16,384
messages, and one with holes everywhere a bit for each.

Invariants: numbers are never taken out; `len` is what was added, each number once.
"""

from __future__ import annotations

from collections.abc import Iterator

CHUNK = 1 << 14
_FULL = (1 << CHUNK) - 1
MOST_TIMES = 64
"""A number that was seen more often is counted in `Tally.beyond_count` alone."""


class Numbers:
    """A set of natural numbers."""

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._count = 0

    def add(self, first: int, count: int = 1) -> None:
        """Add `first` and the following ones, `count` in all."""
        for chunk, bits in _split(first, count):
            self.add_bits(chunk, bits)

    def add_bits(self, chunk: int, bits: int) -> int:
        """Add numbers of one chunk, given as bits. Returns those that were there already."""
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
        """Those that are not in the other set."""
        mine, others = self._chunks.items(), other._chunks
        return self._made((chunk, bits & ~others.get(chunk, 0)) for chunk, bits in mine if bits is not others.get(chunk))

    def __and__(self, other: Numbers) -> Numbers:
        """Those that are in both sets."""
        return self._made((chunk, bits & other._chunks.get(chunk, 0)) for chunk, bits in self._chunks.items())

    def __or__(self, other: Numbers) -> Numbers:
        """Those that are in either."""
        made = self._made(iter(self._chunks.items()))
        for chunk, bits in other._chunks.items():
            made.add_bits(chunk, bits)
        return made

    def first(self, most: int) -> list[int]:
        """The lowest ones, at most so many."""
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
        """Sightings of numbers that had been seen MOST_TIMES already."""

    def add(self, first: int, count: int = 1) -> None:
        """`first` and the following ones, `count` in all, were seen once more."""
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
        """The numbers that were seen so often (1, 2, ...) or more."""
        return self._levels[times - 1] if times <= len(self._levels) else Numbers()

    def repeats(self) -> int:
        """How many sightings were not a number's first."""
        return sum(map(len, self._levels[1:])) + self.beyond_count

    def repeats_not_in(self, allowed: Tally) -> int:
        """How many of the repeats are beyond what `allowed` has: a number that it has twice may be seen three times."""
        over = (len(level - allowed.at_least(times)) for times, level in enumerate(self._levels[1:], 1))
        return sum(over) + self.beyond_count


def _split(first: int, count: int) -> Iterator[tuple[int, int]]:
    """The chunks of a run, with the run's bits in each."""
    assert first >= 0
    while count > 0:
        chunk, start = divmod(first, CHUNK)
        size = min(count, CHUNK - start)
        yield chunk, ((1 << size) - 1) << start
        first, count = first + size, count - size

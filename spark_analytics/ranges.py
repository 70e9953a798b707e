"""Sets of numbers as closed ranges, `[[first, last], ...]`, in order and without contact.

A sender numbers its lines without a gap, so its lines make few ranges.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[list[int]]


def united(*several: Iterable[list[int]]) -> Ranges:
    """The numbers of all of these, in any order of the arguments."""
    joined: Ranges = []
    for first, last in sorted(one for ranges in several for one in ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def of_bits(first: int, bits: int) -> Ranges:
    """The numbers of the bits that are set in a long; the lowest bit stands for `first`."""
    found, bits = [], bits & 0xFFFF_FFFF_FFFF_FFFF
    while bits:
        begin = (bits & -bits).bit_length() - 1
        rest = bits >> begin
        length = (rest + 1 & ~rest).bit_length() - 1
        found.append([first + begin, first + begin + length - 1])
        bits = rest >> length << begin + length
    return found


def common(one: Ranges, other: Ranges) -> Ranges:
    """The numbers that are in both."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            found.append([first, last])
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def capped(ranges: Ranges, most: int) -> Ranges:
    """At most so many ranges: the oldest ones are joined, together with the gaps between them."""
    if len(ranges) <= most:
        return ranges
    merged = len(ranges) - most
    return [[ranges[0][0], ranges[merged][1]], *ranges[merged + 1 :]]

"""Sets of numbers as closed ranges, `[[first, last], ...]`, in order and apart; and *runs*, in order but perhaps over each other.

A sender numbers its lines without a break, so what it has written is few ranges. A number that is there twice is in two runs.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[list[int]]


def united(*several: Iterable[list[int]]) -> Ranges:
    """The numbers of all of these, whatever their order."""
    joined: Ranges = []
    for first, last in sorted(one for ranges in several for one in ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def doubled(runs: Iterable[list[int]]) -> Ranges:
    """The numbers that are in more than one run."""
    found, reach = [], -1
    for first, last in sorted(runs):
        if first <= reach:
            found.append([first, min(last, reach)])
        reach = max(reach, last)
    return united(found)


def common(one: Ranges, other: Ranges) -> Ranges:
    """The numbers of both."""
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


def without(one: Ranges, other: Ranges) -> Ranges:
    """The numbers of one that the other has not got."""
    gaps, begin = [], -1
    for first, last in other:
        if begin <= first - 1:
            gaps.append([begin, first - 1])
        begin = last + 1
    if one and begin <= one[-1][1]:
        gaps.append([begin, one[-1][1]])
    return common(one, gaps)


def reaching(ranges: Ranges, first: int, last: int) -> Ranges:
    """Those that have to do with the numbers from first to last."""
    return [one for one in ranges if one[0] <= last and one[1] >= first]


def size(ranges: Iterable[list[int]]) -> int:
    """How many numbers."""
    return sum(last - first + 1 for first, last in ranges)


def capped(ranges: Ranges, most: int) -> Ranges:
    """At most so many ranges: of the oldest, the gaps between them are taken in."""
    if len(ranges) <= most:
        return ranges
    merged = len(ranges) - most
    return [[ranges[0][0], ranges[merged][1]], *ranges[merged + 1 :]]

"""Whether a bag of numbers is a range, each number once, told by two sums: how many they are, and their *fingerprint*.

A fingerprint is the sum of 40 bits of each number's hash. Numbers between `first` and `last`, as many as there are between them,
are all of them unless some are there twice and as many are missing; then the fingerprint differs from the range's, but for a
chance of one in a million million. So nobody need remember which numbers there were while lines are added up.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_BITS: Final = 40
"""So that the sum of eight million fits a long."""
_MASK: Final = (1 << _BITS) - 1
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_SEED: Final = np.uint64(42)
_EIGHT: Final = np.uint64(8)


def of_range(first: int, last: int) -> int:
    """The fingerprint of all numbers from `first` to `last`, both included."""
    found = hashed(np.arange(first, last + 1, dtype=np.int64))
    return int(found.sum()) if len(found) < 1 << (63 - _BITS) else sum(map(int, found))


def hashed(numbers: np.ndarray) -> np.ndarray:
    """40 bits of each long's hash, as longs: XXH64, as Spark computes it."""
    with np.errstate(over="ignore"):
        found = (_SEED + _P5 + _EIGHT) ^ (_turned(numbers.astype(np.uint64) * _P2, 31) * _P1)
        found = _turned(found, 27) * _P1 + _P4
        found = (found ^ (found >> np.uint64(33))) * _P2
        found = (found ^ (found >> np.uint64(29))) * _P3
        return ((found ^ (found >> np.uint64(32))) & np.uint64(_MASK)).astype(np.int64)


def _turned(words: np.ndarray, bits: int) -> np.ndarray:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
